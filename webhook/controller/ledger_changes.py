"""What follows from a change of a ledger object: it is observed, and its ledgers that changed are counted and shown."""

from collections.abc import Callable

from policies.quota.ledger.quota_ledger import COUNTED_SECONDS, QuotaLedger
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.status_writer import EVERY_SECONDS
from webhook.controller.work_queue import WorkQueue
from webhook.quota.ledger_objects import is_team_object, team_name
from webhook.quota.ledger_records import LedgerRecord

SHARE_SECONDS = 15.0
"""Within this time the status of a quota shows what other namespaces of its team use. 500 of them make 33 writes a second."""


class LedgerChanges:
    """Called by the informer of the ledger objects.

    `show` is called with a namespace whose status may differ and the seconds within which to write it, `show_team` with such a
    team, and `forget` with a namespace without a ledger object.
    """

    def __init__(
        self,
        observed: ObservedLedgers,
        queue: WorkQueue,
        *,
        show: Callable[[str, float], object],
        show_team: Callable[[str], object],
        forget: Callable[[str], object],
    ) -> None:
        self._observed, self._queue = observed, queue
        self._show, self._show_team, self._forget = show, show_team, forget

    def changed(self, before: LedgerRecord | None, after: LedgerRecord | None) -> None:
        """Note a change that the informer shows."""
        changed = after or before
        if changed is not None and is_team_object(changed.namespace):
            self._team_object_changed(before, after, changed.namespace)
            return
        if after is None and before is not None:
            # Also in a former leader: its old metrics would say that no controller counts the namespace any more.
            self._forget(before.namespace)
        if after is None or after.versioned is None:
            if changed is not None:  # deleted, or unreadable
                self._observed.forget(changed.namespace, changed.uid)
                self._queue.add(changed.namespace)
                self._show(changed.namespace, EVERY_SECONDS)
            return
        self._show(after.namespace, EVERY_SECONDS)
        self._observed.observe(after.namespace, after.versioned)
        if after.moved_to:
            self._queue.add(after.namespace)
        else:
            self._ledger_changed(after.namespace, before.ledger if before else None, after.versioned.ledger)

    def _team_object_changed(
        self, before: LedgerRecord | None, after: LedgerRecord | None, place: str
    ) -> None:
        self._show_team(team_name(place))
        former = before.team.team_ledgers if before and before.team else None
        if after is None or after.team is None:
            self._observed.forget_team(place)
            self._queue.add(place)
            for namespace in former.ledgers if former else ():
                self._queue.add(namespace)
                self._show(namespace, EVERY_SECONDS)
            return
        self._observed.observe_team(after.team)
        ledgers = after.team.team_ledgers
        if ledgers.leaving or former is None or former.ledgers.keys() != ledgers.ledgers.keys():
            self._queue.add(place)
        # Under another spec of the team, all ledgers are new.
        former_ledgers = former.ledgers if former and former.team == ledgers.team else {}
        for namespace, ledger in ledgers.ledgers.items():
            former_ledger = former_ledgers.get(namespace)
            # What others use changes what is free of the team here.
            self._show(namespace, SHARE_SECONDS if former_ledger is ledger else EVERY_SECONDS)
            if former_ledger is not ledger:
                self._ledger_changed(namespace, former_ledger, ledger)

    def _ledger_changed(self, namespace: str, former: QuotaLedger | None, ledger: QuotaLedger) -> None:
        if former is None or former.spec != ledger.spec:
            self._queue.add(namespace)
        elif frozenset(ledger.reservations.ids).difference(former.reservations.ids):
            # Count soon: a new reservation may have the name of a stored object, which counts only once, or be unreadable.
            self._queue.add(namespace, COUNTED_SECONDS)
        elif (expiry := self._observed.next_expiry(namespace)) is not None:
            self._queue.add(namespace, expiry)
