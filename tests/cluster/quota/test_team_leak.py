"""What is let in to a namespace of a team and then never stored is given back to the whole team."""

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest

from policies.quota.amounts import GPUS
from tests.cluster.controllers import Counting, eventually
from tests.cluster.quota.burst import CLIENTS
from tests.cluster.quota.quotas import gpu_pod
from tests.cluster.quota.second_webhook import SecondWebhook, disputed_pod
from tests.cluster.quota.settled import is_settled, live
from tests.cluster.quota.teams import Team

OBJECTS, HARD = 60, 100
SETTLED_WITHIN = 60.0
"""Seconds after the last creation until nothing is held that is not stored; a controller takes it for lost after 10."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_what_others_deny_and_names_that_were_taken(counted: Counting) -> None:
    team = Team(counted.plane, "leaky", 3)
    leaky, other, last = team.namespaces
    team.grant({"gpus": HARD}, guaranteed={last.name: {"gpus": 10}})
    team.await_force()

    with SecondWebhook(counted.plane, leaky.name) as second:
        assert eventually(lambda: leaky.create(disputed_pod(1))[0] and second.reported["asked"])
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda index: leaky.create(disputed_pod(index)), range(OBJECTS)))

    lost = leaky.ledger_object().reserved.get(GPUS, Fraction(0)) > 0
    assert eventually(lambda: all(map(is_settled, team.namespaces)), seconds=SETTLED_WITHIN), team.status()
    free = HARD - 10 - int(live(leaky))
    assert lost, "nothing was to be given back"
    assert other.create(gpu_pod("too-large", free + 1))[0] == 403
    assert other.create(gpu_pod("all-the-rest", free))[0] == 201
    assert last.create(gpu_pod("guaranteed", 10))[0] == 201
