from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.webhook.server.harness import Server, certificates, serving


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return certificates(tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests of a module that leave it as they find it."""
    with serving(certificates(tmp_path_factory.mktemp("certificates")), threads=8) as running:
        yield running
