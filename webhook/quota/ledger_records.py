"""Records of ledger objects in informers, and the ledger of a namespace among them."""

from collections.abc import Callable, Mapping

import msgspec

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import Team
from webhook.cluster.informer import Resource
from webhook.cluster.objects import decode_metadata
from webhook.configuration.documents import API_VERSION
from webhook.quota.ledger_objects import (
    EPOCH_OBJECT,
    LedgerObjectError,
    TeamObjects,
    VersionedTeamLedgers,
    decode_ledger_object,
    is_team_object,
)
from webhook.quota.ledger_objects import PLURAL as LEDGERS
from webhook.quota.store import VersionedLedger


class LedgerRecord(msgspec.Struct, frozen=True):
    """A ledger object in its informer, by its name: with the ledger of that namespace, or those of a team.

    If it cannot be read, `problem` says why.
    """

    uid: str
    namespace: str
    versioned: VersionedLedger | None = None
    problem: str = ""
    team: VersionedTeamLedgers | None = None

    @property
    def ledger(self) -> QuotaLedger | None:
        return None if self.versioned is None else self.versioned.ledger

    @property
    def moved_to(self) -> str:
        """The name of the team's object to which the ledger moved, "" if it did not."""
        return self.versioned.ledger.moved_to if self.versioned else ""

    def of(self, namespace: str) -> "LedgerRecord":
        """Return the record of a namespace in that of its team; one with a problem if it is not there."""
        if versioned := self.team.of(namespace) if self.team else None:
            return LedgerRecord(versioned.ledger.ledger_uid, namespace, versioned)
        problem = self.problem or f"the ledger is moving into or out of {self.namespace}"
        return LedgerRecord(self.uid, namespace, problem=problem)


def ledgers_before(before: LedgerRecord | None, team: Team) -> Mapping[str, QuotaLedger]:
    """Return the ledgers in the object of a team before a change. None under another spec of the team: then all are new."""
    former = before.team.team_ledgers if before and before.team else None
    return former.ledgers if former and former.team == team else {}


def ledger_of(namespace: str, find: Callable[[str], LedgerRecord | None]) -> LedgerRecord | None:
    """Return the record with the ledger of a namespace, from its own object or that of its team. None without one.

    `find` returns the record of the object of that name.
    """
    own = find(namespace)
    if own is None or not own.moved_to:
        return own
    team = find(own.moved_to)
    return (team or LedgerRecord(own.uid, own.moved_to)).of(namespace)


class LedgerReader:
    def __init__(self, teams: TeamObjects | None = None) -> None:
        self._teams = teams or TeamObjects()

    def read(self, raw: msgspec.Raw) -> LedgerRecord:
        metadata = decode_metadata(raw)
        uid, name = metadata.uid, metadata.name
        try:
            if not is_team_object(name):
                return LedgerRecord(uid, name, decode_ledger_object(raw))
            return LedgerRecord(uid, name, team=self._teams.decode(raw))
        except LedgerObjectError as error:
            return LedgerRecord(uid, name, problem=str(error))


def ledgers(installation: str) -> Resource:
    """Return the collection of the ledgers of an installation. They are all in its namespace, beside the epoch."""
    selector = f"metadata.name!={EPOCH_OBJECT}"
    return Resource(
        f"/apis/{API_VERSION}/namespaces/{installation}", LEDGERS, field_selector=selector, in_full=True
    )
