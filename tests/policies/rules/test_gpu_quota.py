"""Rule gpu-quota: what it says of each verdict of the ledger. What is charged and reserved: tests/policies/quota."""

from fractions import Fraction

import pytest

from policies.pods.pod import Pod
from policies.quota.charge import Unpinned
from policies.quota.charge_request import (
    ChargeRequest,
    QuotaGrant,
    ReservationOutcome,
    charge_request_for_pod,
)
from policies.quota.ledger.decide import Reason, ReservationVerdict, Shortfall
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.rules.gpu_quota import GPUQuotaOptions, reserve
from tests.builders import context, uid

LEDGER = QuotaLedger(
    quota_uid="quota", generation=1, hard={"gpus": Fraction(8)}, unpinned=Unpinned.TOTAL_ONLY
)


def verdict(reason: Reason) -> ReservationVerdict:
    short = Shortfall(
        key="gpus", requested=Fraction(1), used=Fraction(8), reserved=Fraction(0), hard=Fraction(8)
    )
    return ReservationVerdict(reason, (short,) if reason is Reason.EXCEEDED else ())


class Decided:
    """A quota that has decided."""

    def __init__(self, reason: Reason) -> None:
        self.outcome = ReservationOutcome(LEDGER, verdict=verdict(reason))

    def reserve(self, charge_request: ChargeRequest) -> ReservationOutcome:  # noqa: ARG002 - the signature of a quota
        return self.outcome

    def grant(self) -> QuotaGrant | None:
        return None


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.value.replace(" ", "-"))
def test_every_verdict_that_denies_says_why_and_what_to_do(reason: Reason) -> None:
    quota = Decided(reason)
    around = context(quota=quota, namespace="team")
    asked = charge_request_for_pod(uid("review"), Pod(), None, around)

    found = list(reserve(asked, GPUQuotaOptions(), around))

    assert bool(found) is not ReservationVerdict(reason).allowed
    for finding in found:
        assert "team/default" in finding.message
        assert finding.remedy
