"""Certificates in a cluster: made once by many at a time, rotated without a failed call, repaired by whoever sees it first."""

from collections.abc import Iterator

import pytest

from tests.controlplane import ControlPlane
from tests.controlplane.certificates import Installation, within


@pytest.fixture
def installation(quotas: ControlPlane) -> Iterator[Installation]:
    with Installation(quotas) as installed:
        yield installed


def test_replicas_that_start_together_agree_on_one_authority(installation: Installation) -> None:
    installation.apply()
    installation.start()
    seconds = within(60, installation.ready)
    print(f"three replicas ready after {seconds:.1f} s")
    assert installation.published()
    print(installation.logs())
