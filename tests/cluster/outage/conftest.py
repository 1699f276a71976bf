"""The authority that the configurations are given, which nobody gets to verify."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs.files import ensure_self_signed
from tests.controlplane.webhook import SERVER_NAME


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    ensure_self_signed(directory, [SERVER_NAME], datetime.now(UTC))
    return directory / "ca.crt"
