"""The seed of random cases: another one in every run, but in CI, as tests/conftest.py has it.

GPU_ADMISSION_SEED draws the cases of a run that failed again.
"""

import os
import random

from tests.conftest import DERANDOMIZE

SEED = int(os.environ.get("GPU_ADMISSION_SEED", 20260724 if DERANDOMIZE else random.randrange(10**8)))  # noqa: S311
SAID = f"GPU_ADMISSION_SEED={SEED}"
