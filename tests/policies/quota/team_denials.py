"""A team of three namespaces, and what they use."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from policies.quota.catalogue import CatalogueVersion, catalogue_digest
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from tests.builders import context, quota_ledger

OWN, PROD, LAB = "vision-cv", "vision-prod", "vision-lab"

LEADS = "#vision-leads"

Amounts = Mapping[str, int]


def amounts(given: Amounts) -> dict[str, Fraction]:
    return {key: Fraction(amount) for key, amount in given.items()}


def team_ledger(
    used: Mapping[str, Amounts],
    guaranteed: Mapping[str, Amounts] | None = None,
    *,
    own: Amounts | None = None,
    hard: Amounts | None = None,
    contact: str = LEADS,
    waiting: int = 0,
    **fields: Any,
) -> QuotaLedger:
    """Return the ledger of vision-cv in a team of 64 GPUs.

    own: what its GPUQuota grants; without one, it has none. waiting: pods of vision-prod.
    """
    team = Team(
        name="team-vision",
        uid="t",
        generation=1,
        hard=amounts(hard or {"gpus": 64}),
        guaranteed={name: amounts(each) for name, each in (guaranteed or {}).items()},
        contact=contact,
    )
    version = str(CatalogueVersion(catalogue_digest(context()), UnclassifiedPods.TOTAL_ONLY))
    counted = quota_ledger(class_catalogue=version, revisions=Revisions(pods=1))
    ledgers = {name: replace(counted, used=amounts({"gpus": 0, **each})) for name, each in used.items()}
    ledgers[PROD] = replace(ledgers[PROD], waiting_for_team=waiting)
    spec = {"quota_uid": "" if own is None else "q", "hard": amounts(own or {})}
    ledgers[OWN] = replace(ledgers[OWN], **spec, **fields)
    found = TeamLedgers(team, ledgers).of(OWN)
    assert found is not None
    return found


USED = {OWN: {"gpus": 7}, PROD: {"gpus": 40}, LAB: {"gpus": 15}}
IDLE = {OWN: {"gpus": 7}, PROD: {"gpus": 40}, LAB: {}}
