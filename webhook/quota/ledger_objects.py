"""GPUQuotaLedger objects in the namespace of the installation, as JSON.

Each namespace has one of its name. The ledger of a namespace of a team stands in the object of the team instead, with those of
the other namespaces of the team; the own object then says where it is (`movedTo`).

The only field is the ledger as JSON text. So a write is cheap for the API server: it validates no schema and compares no managed
fields. An unreadable ledger raises `LedgerObjectError`, because it must not count as an empty one.

Informers have each object as a LedgerRecord.
"""

from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import asdict, replace

from policies.quota.amounts import amount_texts, parse_amount, parse_amounts
from policies.quota.budget import Budget, Spending
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.credits import Credits, Marks
from policies.quota.ledger.keeping_objects import Keeper
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger, Revisions
from policies.quota.ledger.reservations import Reservations
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.waiting import MAX_WAITING
from webhook.cluster.api import Identified, Identity, api_path
from webhook.cluster.informer import Resource
from webhook.cluster.objects import decode_metadata
from webhook.configuration.documents import API_VERSION
from webhook.quota.store import VersionedLedger

PLURAL = "gpuquotaledgers"
KIND = "GPUQuotaLedger"

TEAM_OBJECT = "clustergpuquota."
EPOCH_OBJECT = "epoch.gpuquotas"
"""The object whose version is the epoch: it has no ledger, and no namespace has a dot in its name."""

NO_LEDGER_OBJECT = ""
"""Version of a ledger that is not stored yet. Only controllers replace it, which creates the ledger object."""


def ledger_without_quota(unclassified_pods: UnclassifiedPods = UnclassifiedPods.TOTAL_ONLY) -> QuotaLedger:
    """Return a ledger that was never counted, for a namespace that has a team and no GPUQuota."""
    return QuotaLedger(quota_uid="", generation=0, hard={}, unclassified_pods=unclassified_pods)


class LedgerObjectError(ValueError):
    """The ledger object cannot be read. The message says where."""


class VersionedTeamLedgers(msgspec.Struct, frozen=True):
    """The ledgers of a team as they were read or written. Without a version their object is not stored yet."""

    team_ledgers: TeamLedgers
    version: str = NO_LEDGER_OBJECT

    def of(self, namespace: str) -> VersionedLedger | None:
        """Return the ledger of a namespace. None if this object does not decide about it."""
        ledger = self.team_ledgers.of(namespace)
        return VersionedLedger(ledger, self.version, self.team_ledgers) if ledger else None


class _LedgerText(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The text of a ledger. Revisions are text, as everywhere in Kubernetes."""

    quota_uid: str
    generation: int
    hard: dict[str, str]
    unclassified_pods: UnclassifiedPods
    max_waiting: int = MAX_WAITING
    waiting: int = 0
    waiting_for_team: int = 0
    unstored: tuple[int, int] = (0, 0)
    scarce: Mapping[str, bool] = {}
    marks: Marks = {}
    credits: Credits = ()
    keepers: tuple[Keeper, ...] = ()
    used: dict[str, str] | None = None
    stored_names: dict[str, dict[str, str]] = {}
    reservations: str = ""
    revisions: dict[str, str] = {}
    class_catalogue: str | None = None
    next_catalogue: str | None = None
    holders: Mapping[str, tuple[Holder, ...]] = {}
    budget: Budget | None = None
    spending: Spending | None = None
    moved_to: str = ""
    ledger_uid: str = ""
    """Of the own object, written in that of a team."""


class _TeamLedgersText(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text of the object of a team. Each part stays text, so that unchanged parts are neither read nor written again."""

    team: msgspec.Raw
    ledgers: dict[str, msgspec.Raw] = {}
    leaving: tuple[str, ...] = ()


class _Object(Identified, frozen=True):
    """`ledger` is empty in the answer to a write, which has only the metadata."""

    ledger: str = ""


_OBJECT = msgspec.json.Decoder(_Object)
_LEDGER_TEXT = msgspec.json.Decoder(_LedgerText, dec_hook=lambda _fraction, text: parse_amount(text))
_TEAM = msgspec.json.Decoder(Team, dec_hook=lambda _fraction, text: parse_amount(text))
_TEAM_LEDGERS_TEXT = msgspec.json.Decoder(_TeamLedgersText)
msgspec.convert({}, Revisions)  # msgspec crashes where threads use a type for the first time together
_ENCODER = msgspec.json.Encoder(enc_hook=str)

TEAMS_REMEMBERED = 1024
"""Teams of which `TeamObjects` has the last version. The caches of its callers have these ledgers, too."""

LONGEST_BODY = 1024 * 1024
"""Maximum of bytes of a body with holders. etcd takes requests of 1.5 MiB (`--max-request-bytes`), and a ledger that
cannot be written never frees quota."""


def team_object_name(team: str) -> str:
    """Return the name of the object with the ledgers of a team: no namespace has a dot in its name."""
    return f"{TEAM_OBJECT}{team}"


def team_name(name: str) -> str:
    """Return the name of the team whose ledgers are in the object of that name."""
    return name.removeprefix(TEAM_OBJECT)


def is_team_object(name: str) -> bool:
    return name.startswith(TEAM_OBJECT)


def ledger_objects_path(installation: str, *namespace: str) -> str:
    """Return the API path of the ledgers of an installation, or of the one of `namespace`."""
    return api_path(f"/apis/{API_VERSION}", "namespaces", installation, PLURAL, *namespace)


def decode_ledger_object(document: bytes | msgspec.Raw) -> VersionedLedger:
    """Return the ledger of an object in JSON. Raises LedgerObjectError."""
    try:
        read = _OBJECT.decode(document)
        metadata, written = read.metadata, _LEDGER_TEXT.decode(read.ledger)
        ledger = _parse_ledger(written, metadata.uid)
    except ValueError as error:  # of msgspec, amounts and numbers
        raise LedgerObjectError(f"the {KIND} cannot be read: {error}") from None
    return VersionedLedger(ledger, metadata.resource_version)


def _parse_ledger(written: _LedgerText, ledger_uid: str) -> QuotaLedger:
    parsed = {
        "ledger_uid": ledger_uid,
        "hard": parse_amounts(written.hard),
        "used": None if written.used is None else parse_amounts(written.used),
        "stored_names": {name: parse_amounts(stored) for name, stored in written.stored_names.items()},
        "reservations": Reservations.parse(written.reservations),
        "revisions": msgspec.convert(written.revisions, Revisions, strict=False),
    }
    return QuotaLedger(**{**asdict(written), **parsed})


def decode_identity(document: bytes | msgspec.Raw) -> Identity:
    """Return the identity of a ledger object. Raises LedgerObjectError."""
    try:
        return _OBJECT.decode(document).metadata
    except ValueError as error:
        raise LedgerObjectError(f"the {KIND} cannot be read: {error}") from None


def encode_ledger_object(namespace: str, version: str, ledger: QuotaLedger) -> bytes:
    """Return the body that replaces this version of the ledger, or creates the ledger if `version` is empty.

    If it would be longer than LONGEST_BODY, it omits the holders.
    """
    body = _body(namespace, version, _ledger_text(ledger))
    if len(body) > LONGEST_BODY and ledger.holders:
        return _body(namespace, version, _ledger_text(replace(ledger, holders={})))
    return body


def encode_epoch(version: str) -> bytes:
    """Return the body that replaces this version of the epoch. The text only has to differ from the previous one."""
    return _body(EPOCH_OBJECT, version, version)


def _ledger_text(ledger: QuotaLedger) -> _LedgerText:
    as_text = {
        "ledger_uid": "",
        "hard": amount_texts(ledger.hard),
        "used": None if ledger.used is None else amount_texts(ledger.used),
        "stored_names": {name: amount_texts(stored) for name, stored in ledger.stored_names.items()},
        "reservations": ledger.reservations.text,
        "revisions": {key: str(revision) for key, revision in msgspec.to_builtins(ledger.revisions).items()},
    }
    return _LedgerText(**{name: getattr(ledger, name) for name in _LedgerText.__struct_fields__} | as_text)


def _body(name: str, version: str, written: _LedgerText | _TeamLedgersText | str) -> bytes:
    # An empty entry removes the managed fields. If an object has none, the API server tracks none until it is applied
    # (`skipNonAppliedManager` in `k8s.io/apimachinery/pkg/util/managedfields/internal`): a write takes 1.7 ms, not 2.2.
    metadata = {"name": name, "managedFields": [{}]} | ({"resourceVersion": version} if version else {})
    text = _ENCODER.encode(written).decode()
    return _ENCODER.encode({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "ledger": text})


class _LastVersion(msgspec.Struct, frozen=True):
    """The last version of a team's object that was read or written, and the text of each of its parts."""

    team_ledgers: TeamLedgers
    team: bytes
    ledgers: Mapping[str, bytes]


class TeamObjects:
    """Reads and writes the objects of teams. Most versions change one ledger of hundreds.

    So it remembers the last version of each. A part with the same text is the same object in the next version, and is not written
    again. Thread-safe: what is remembered is replaced, never changed.
    """

    def __init__(self) -> None:
        self._last: dict[str, _LastVersion] = {}

    def decode(self, document: bytes | msgspec.Raw) -> VersionedTeamLedgers:
        """Return the ledgers in the object of a team. Raises LedgerObjectError."""
        try:
            read = _OBJECT.decode(document)
            metadata, written = read.metadata, _TEAM_LEDGERS_TEXT.decode(read.ledger)
            last = self._last.get(metadata.name)
            spec = bytes(written.team)
            by_namespace = {namespace: bytes(raw) for namespace, raw in written.ledgers.items()}
            ledgers = {
                namespace: last.team_ledgers.ledgers[namespace]
                if last is not None and last.ledgers.get(namespace) == text
                else _parse_in_team(text)
                for namespace, text in by_namespace.items()
            }
            leaving = frozenset(written.leaving)
            if last is not None and last.team == spec:
                team_ledgers = last.team_ledgers.later(ledgers, leaving)
            else:
                team_ledgers = TeamLedgers(_TEAM.decode(spec), ledgers, leaving)
        except ValueError as error:  # of msgspec, amounts and numbers
            raise LedgerObjectError(f"the {KIND} of a team cannot be read: {error}") from None
        self._remember(metadata.name, _LastVersion(team_ledgers, spec, by_namespace))
        return VersionedTeamLedgers(team_ledgers, metadata.resource_version)

    def encode(self, version: str, team_ledgers: TeamLedgers) -> bytes:
        """Return the body that replaces this version of a team's ledgers.

        If it would be longer than LONGEST_BODY, it omits the holders and the stored names.
        """
        name, team = team_object_name(team_ledgers.team.name), team_ledgers.team
        last = self._last.get(name)
        known = last.team_ledgers.ledgers if last else {}
        spec = last.team if last and last.team_ledgers.team is team else _ENCODER.encode(team)
        by_namespace = {
            namespace: last.ledgers[namespace]
            if last and known.get(namespace) is ledger
            else _text_in_team(ledger)
            for namespace, ledger in team_ledgers.ledgers.items()
        }
        self._remember(name, _LastVersion(team_ledgers, spec, by_namespace))
        body = _team_body(name, version, spec, by_namespace, team_ledgers.leaving)
        if len(body) <= LONGEST_BODY:
            return body
        shorter = {
            namespace: _text_in_team(replace(ledger, holders={}, stored_names={}))
            for namespace, ledger in team_ledgers.ledgers.items()
        }
        return _team_body(name, version, spec, shorter, team_ledgers.leaving)

    def _remember(self, name: str, last: _LastVersion) -> None:
        if name not in self._last and len(self._last) >= TEAMS_REMEMBERED:
            self._last.clear()
        self._last[name] = last


def _parse_in_team(text: bytes) -> QuotaLedger:
    written = _LEDGER_TEXT.decode(text)
    return _parse_ledger(written, written.ledger_uid)


def _text_in_team(ledger: QuotaLedger) -> bytes:
    return _ENCODER.encode(replace(_ledger_text(ledger), ledger_uid=ledger.ledger_uid))


def _team_body(
    name: str, version: str, team: bytes, ledgers: Mapping[str, bytes], leaving: frozenset[str]
) -> bytes:
    raw = {namespace: msgspec.Raw(text) for namespace, text in ledgers.items()}
    return _body(name, version, _TeamLedgersText(msgspec.Raw(team), raw, tuple(sorted(leaving))))


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


def ledger_record(teams: TeamObjects, raw: msgspec.Raw) -> LedgerRecord:
    metadata = decode_metadata(raw)
    uid, name = metadata.uid, metadata.name
    try:
        if not is_team_object(name):
            return LedgerRecord(uid, name, decode_ledger_object(raw))
        return LedgerRecord(uid, name, team=teams.decode(raw))
    except LedgerObjectError as error:
        return LedgerRecord(uid, name, problem=str(error))


def ledgers(installation: str) -> Resource:
    """Return the collection of the ledgers of an installation. They are all in its namespace, beside the epoch."""
    selector = f"metadata.name!={EPOCH_OBJECT}"
    return Resource(
        f"/apis/{API_VERSION}/namespaces/{installation}", PLURAL, field_selector=selector, in_full=True
    )
