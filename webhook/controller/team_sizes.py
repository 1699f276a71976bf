"""Whether the ledgers of a team fit one object, and what is not in force because they would not.

The specs of ClusterGPUQuotas are bounded so that 500 namespaces fit (`policies.quota.team_spec`). The limits of their GPUQuotas
come on top. An object that cannot be written never frees quota. So what would make it too large is left out, and condition
TooLarge names it.
"""

import logging
import threading

from msgspec.structs import replace

from policies.quota.amounts import NOTHING
from policies.quota.budget import Spending
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team_ledgers import TeamLedgers
from webhook.quota.ledger_objects import LONGEST_BODY, NO_LEDGER_OBJECT, TeamObjects

log = logging.getLogger("gpu_admission.controller")

THE_SPEC = ""
"""The key of the spec of the ClusterGPUQuota, beside the names of namespaces."""

SPEC_PARTS = 16
"""A 16th of the object is reserved for changes of that spec: 64 KiB, or four more classes for each of 500 namespaces. GPUQuotas
cannot use it. Otherwise their authors could keep a new limit of `hard` out of force."""


class TeamSizes:
    """Remembers for each team what is left out of its object. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left_out: dict[str, dict[str, str]] = {}
        """By team and namespace: what is not in force."""

    def fits(self, before: TeamLedgers, after: TeamLedgers, namespace: str, what: str) -> bool:
        """Whether the object has room for a change, or becomes smaller by it. If not, note that `what` is left out."""
        size, ledger = _size(after), after.ledgers.get(namespace)
        has_quota = ledger is not None and bool(ledger.quota_uid)
        if size <= LONGEST_BODY - has_quota * (LONGEST_BODY // SPEC_PARTS) or size <= _size(before):
            self.forget(after.team.name, namespace)
            return True
        with self._lock:
            left_out = self._left_out.setdefault(after.team.name, {})
            is_known, left_out[namespace] = namespace in left_out, what
        if not is_known:
            log.warning("ClusterGPUQuota %s: its ledgers have no room for %s", after.team.name, what)
        return False

    def forget(self, team: str, namespace: str) -> None:
        """Note that nothing is left out of this namespace."""
        with self._lock:
            self._left_out.get(team, {}).pop(namespace, None)

    def left_out(self, team: str, members: list[str]) -> list[str]:
        """Return what is not in force, of the spec and of these namespaces. Others are forgotten."""
        with self._lock:
            wanted = {THE_SPEC, *members}
            left_out = {name: what for name, what in self._left_out.pop(team, {}).items() if name in wanted}
            if left_out:
                self._left_out[team] = left_out
            return [left_out[name] for name in sorted(left_out)]


def _size(ledgers: TeamLedgers) -> int:
    """Return the bytes of the object once every ledger is counted in full, without reservations.

    Holders and stored names take no room from others: one that is too large is written without them.
    """
    full = {name: _counted_in_full(each, ledgers) for name, each in ledgers.ledgers.items()}
    reserved = sum(each.reservations.size for each in full.values())
    return len(TeamObjects().encode(NO_LEDGER_OBJECT, replace(ledgers, ledgers=full))) - reserved


def _counted_in_full(ledger: QuotaLedger, ledgers: TeamLedgers) -> QuotaLedger:
    granted = ledger.budget.granted if ledger.budget else {}
    used = {**dict.fromkeys((*ledger.hard, *ledgers.team.hard, *granted), NOTHING), **(ledger.used or {})}
    counted = replace(ledger, used=used, holders={}, stored_names={})
    if not granted:
        return counted
    return replace(counted, spending=Spending(start=0, end=0, until=0, spent=granted, unknown=granted))
