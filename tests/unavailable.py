"""Skips tests whose binaries are missing, or fails them where GPU_ADMISSION_REQUIRE_CLUSTER=1 says that they must run."""

import os
from typing import NoReturn

import pytest

from tests.controlplane import ControlPlaneUnavailable


def skip_without(unavailable: ControlPlaneUnavailable) -> NoReturn:
    if os.environ.get("GPU_ADMISSION_REQUIRE_CLUSTER") == "1":
        pytest.fail(f"GPU_ADMISSION_REQUIRE_CLUSTER=1: {unavailable}", pytrace=False)
    pytest.skip(str(unavailable))
