from collections.abc import Iterator

import pytest

from tests.controlplane import ControlPlane
from tests.controlplane.certificates import Installation, within


@pytest.fixture
def installation(quotas: ControlPlane) -> Iterator[Installation]:
    with Installation(quotas) as installed:
        installed.apply()
        yield installed


@pytest.fixture
def running(installation: Installation) -> Installation:
    installation.start()
    within(60, installation.ready)
    return installation
