"""Teams, and ledgers of their namespaces."""

from collections.abc import Mapping

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation
from policies.quota.ledger.team import Team
from tests.builders import quota_ledger
from tests.policies.quota.ledger.creations import AmountsByName, amounts


def team(hard: AmountsByName, guaranteed: Mapping[str, AmountsByName] | None = None) -> Team:
    by_namespace = {namespace: amounts(**each) for namespace, each in (guaranteed or {}).items()}
    return Team(name="team-vision", uid="t", generation=1, hard=amounts(**hard), guaranteed=by_namespace)


def counted(
    used: AmountsByName, hard: AmountsByName | None = None, *reservations: Reservation
) -> QuotaLedger:
    return quota_ledger(
        *reservations, hard=amounts(**(hard or {})), used=amounts(**used), class_catalogue="c"
    )
