"""What makes the controller count again, and what of it gives something back, which somebody may wait for."""

from collections.abc import Iterator
from itertools import groupby

import pytest

from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace, api_client
from webhook.configuration.loader import load_directory
from webhook.controller.usage_counter import UsageCounter

Changes = list[tuple[str, bool]]


@pytest.fixture
def changes(quotas: ControlPlane) -> Iterator[Changes]:
    """Yield (namespace, gives something back) of every change, as it comes."""
    told: Changes = []
    counter = UsageCounter(api_client(quotas), load_directory(None), lambda *change: told.append(change))
    counter.start()
    assert eventually(lambda: counter.synced)
    yield told
    counter.stop()


def test_only_what_ends_gives_something_back(changes: Changes, quotas: ControlPlane) -> None:
    team = Namespace(quotas)

    def told() -> list[bool]:
        """Return what was told, what was told several times at once only once."""
        return [key for key, _ in groupby(back for namespace, back in changes if namespace == team.name)]

    team.pod("finishes")
    assert eventually(lambda: told() == [False]), told()
    team.set_phase("finishes", "Running")
    team.set_phase("finishes", "Succeeded")
    assert eventually(lambda: told() == [False, True]), told()
    team.delete_pod("finishes")
    assert eventually(lambda: told() == [False, True, False]), told()
    team.pod("goes")
    team.delete_pod("goes")
    assert eventually(lambda: told() == [False, True, False, True]), told()
