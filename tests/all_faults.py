"""What repeats a fact for minutes, or at a larger size: GPU_ADMISSION_ALL_FAULTS=1 runs it."""

import os

import pytest

ALL_FAULTS = os.environ.get("GPU_ADMISSION_ALL_FAULTS") == "1"
longer = pytest.mark.skipif(not ALL_FAULTS, reason="GPU_ADMISSION_ALL_FAULTS=1 runs it")
