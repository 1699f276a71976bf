"""Controllers that come and go: what they wait for, what they find when they are back, who takes over."""

from fractions import Fraction
from typing import Any

import pytest

from policies.quota.amounts import GPUS
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.decide import ReservationRequest, VerdictReason, decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from tests.cluster.controllers import Running, eventually, gpus, is_ready, uses
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from tests.reservation_requests import creation_request
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import CATALOGUES

CARD = {GPUS: Fraction(1)}
IN_FLIGHT_SECONDS = 15.0
"""Until what is reserved and never stored is given up: what holds meanwhile has to be read within them."""


class NotingClient(ApiClient):
    """A client that notes what is read by it."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(load_access(str(plane.kubeconfig())))
        self.read: list[str] = []

    def get(self, path: str, **options: Any) -> bytes:
        self.read.append(path)
        return super().get(path, **options)


def test_many_new_quotas_are_counted_from_the_same_lists(quotas: ControlPlane) -> None:
    teams = [Namespace(quotas) for _ in range(30)]
    for team in teams:
        team.quota({"gpus": "8"})
    teams[0].pod("trainer", 2)
    client = NotingClient(quotas)
    with Running(quotas, no_quota=3.0, api=client):  # as long as their ledgers are made in that time
        assert uses(teams[0], 2)
        assert all(uses(team, 0) for team in teams[1:])

    namespaces = {
        f"/namespaces/{team.name}/{plural}" for team in teams for plural in ("pods", "resourceclaims")
    }
    listed = [each for each in client.read if each.endswith(tuple(namespaces))]
    assert len(listed) < len(teams), listed
    quotas_read = [each for each in client.read if each.endswith("/gpuquotas/default")]
    assert len([each for each in quotas_read if any(f"/{team.name}/" in each for team in teams)]) <= 3 * len(
        teams
    )


def test_what_was_deleted_while_no_controller_ran_is_given_back(quotas: ControlPlane) -> None:
    team = Namespace(quotas)
    with Running(quotas):
        team.quota({"gpus": "8"})
        team.pod("stays", 1)
        team.pod("goes", 4)
        assert uses(team, 5)
    team.delete_pod("goes")
    assert gpus(team) == 5

    with Running(quotas):
        assert uses(team, 1)


def moving(team: Namespace, running: Running) -> tuple[str, str]:
    """Count a pod, reserve for another, and change `unclassifiedPods`; return both catalogue versions."""
    team.quota({"gpus": "8", "classes": {"nvidia-t4": "8"}}, unclassifiedPods="TotalOnly")
    team.pod("unpinned", 2)
    assert uses(team, 2)
    before = str(team.ledger_object().class_catalogue)
    team.reserve(creation_request("in-flight", CARD, before))
    team.change_quota({"unclassifiedPods": "MostExpensive"})
    assert eventually(lambda: team.ledger_object().unclassified_pods is UnclassifiedPods.MOST_EXPENSIVE)
    return before, running.catalogue_version(team)


@pytest.mark.slow
def test_what_is_not_published_is_counted_anew_and_denies_while_something_is_in_flight(
    quotas: ControlPlane,
) -> None:
    team = Namespace(quotas)
    with Running(quotas, expiry=IN_FLIGHT_SECONDS) as running:
        before, after = moving(team, running)
        assert eventually(lambda: (team.used() or {}).get("classes/nvidia-t4") == 2)

        ledger_object = team.ledger_object()
        assert "in-flight" in ledger_object.reservations
        assert eventually(lambda: getattr(team.condition("Ready"), "reason", "") == "InFlight")
        assert not is_ready(team)
        assert f"not published in ConfigMap {CATALOGUES}" in getattr(team.condition("Ready"), "message", "")
        for catalogue in (before, after):
            requested = creation_request("next", CARD, catalogue)
            assert _verdict(ledger_object, requested) is VerdictReason.OTHER_CATALOGUE
        assert eventually(lambda: team.ledger_object().class_catalogue == after)
        assert not team.ledger_object().reservations
        assert _verdict(team.ledger_object(), creation_request("next", CARD, after)) is VerdictReason.RESERVED


def _verdict(ledger: QuotaLedger, requested: ReservationRequest) -> VerdictReason:
    (verdict,) = decide(ledger, [requested]).verdicts
    return verdict.reason
