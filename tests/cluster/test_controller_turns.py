"""Controllers that come and go: what they wait for, what they find when they are back, who takes over."""

import time
from fractions import Fraction
from pathlib import Path

from policies.quota.amounts import GPUS
from policies.quota.ledger.decide import Reason, ReservationRequest, decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from tests.cluster.controllers import Running, eventually, gpus, uses
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from webhook.configuration.loader import load_directory


def test_no_quota_is_counted_before_replicas_can_know_of_it(quotas: ControlPlane) -> None:
    team = Namespace(quotas)
    with Running(quotas, no_quota=1.5):
        created = time.monotonic()
        team.quota({"gpus": "8"})
        assert eventually(lambda: team.used() is not None)

    assert time.monotonic() - created >= 1.5


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


def test_another_catalogue_counts_everything_anew(quotas: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "classes.yaml").write_text(
        """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUClass
metadata: {name: shared-t4}
spec: {memoryGiB: 16, nodeLabels: [{key: pool, values: [shared]}], equivalents: {nvidia.com/gpu: "1/4"}}
"""
    )
    team = Namespace(quotas)
    with Running(quotas) as running:
        team.quota({"gpus": "8"})
        team.pod("small", 2, nodeSelector={"pool": "shared"})
        assert uses(team, 2)
        before = team.row().class_catalogue

        running.controller.configure(load_directory(tmp_path))

        assert eventually(lambda: gpus(team) == Fraction(1, 2))
        assert team.row().class_catalogue != before


def test_another_unpinned_counts_everything_anew_and_waits_for_what_is_in_flight(
    quotas: ControlPlane,
) -> None:
    team, card = Namespace(quotas), {GPUS: Fraction(1)}
    with Running(quotas, expiry=3.0) as running:
        team.quota({"gpus": "8", "classes": {"nvidia-t4": "8"}}, unpinned="TotalOnly")
        team.pod("unpinned", 2)
        assert uses(team, 2)
        before = str(team.row().class_catalogue)
        team.reserve(ReservationRequest.creation("in-flight", card, before))

        team.change_quota({"unpinned": "MostExpensive"})
        after = running.controller.counting.counted_by(team.row())
        ledger = team.row()
        assert after != before
        assert _verdict(ledger, ReservationRequest.creation("next", card, after)) is Reason.OTHER_CATALOGUE

        assert eventually(lambda: (team.used() or {}).get("classes/nvidia-t4") == 2)
        assert "in-flight" in team.row().reservations
        assert (
            _verdict(team.row(), ReservationRequest.creation("next", card, before)) is Reason.OTHER_CATALOGUE
        )
        assert (
            _verdict(team.row(), ReservationRequest.creation("next", card, after)) is Reason.OTHER_CATALOGUE
        )
        assert eventually(lambda: team.row().class_catalogue == after)
        assert not team.row().reservations
        assert _verdict(team.row(), ReservationRequest.creation("next", card, after)) is Reason.RESERVED


def _verdict(ledger: QuotaLedger, asked: ReservationRequest) -> Reason:
    (verdict,) = decide(ledger, [asked]).verdicts
    return verdict.reason


def test_the_next_one_takes_over_when_the_leader_goes(quotas: ControlPlane) -> None:
    team = Namespace(quotas)
    with Running(quotas, lease="handover") as first:
        assert eventually(lambda: first.leader.is_leader)
        with Running(quotas, lease="handover") as second:
            team.quota({"gpus": "8"})
            team.pod("trainer", 5)
            assert uses(team, 5)
            assert not second.leader.is_leader
            assert second.leader.holder == first.leader.identity

            first.stop()
            team.delete_pod("trainer")

            assert uses(team, 0)
            assert second.leader.is_leader
