"""GPUQuotaLedger objects in the namespace of the installation: JSON and store.

Each namespace has one of its name. The ledger of a namespace of a team stands in the object of the team instead, with those of
the other namespaces of the team; the own object then says where it is (`movedTo`).

The only field is the ledger as JSON text. So a write is cheap for the API server: it validates no schema and compares no managed
fields. An unreadable ledger raises `LedgerObjectError`, because it must not count as an empty one.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import parse_vector, texts
from policies.quota.budget import Budget, Spending
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger, Revisions
from policies.quota.ledger.reservations import LIMIT, Reservations
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.quota_request import LedgerError
from policies.quota.team_spec import NamedTeam
from policies.quota.waiting import MAX_WAITING
from webhook.cluster import errors
from webhook.cluster.api import METADATA, ApiClient, Identified, Identity, api_path
from webhook.configuration.documents import API_VERSION, GROUP
from webhook.quota import documents, team_documents
from webhook.quota.store import LedgerConflict, VersionedLedger

PLURAL = "gpuquotaledgers"
KIND = "GPUQuotaLedger"

TEAM_OBJECT = "clustergpuquota."

PLACES_REMEMBERED = 4096
"""Namespaces of which a process remembers in which team's object their ledger is. It costs two reads to find that again."""

NO_LEDGER_OBJECT = ""
"""Version of a ledger that is not stored yet. Only controllers replace it, which creates the ledger object."""


def ungranted(unclassified_pods: UnclassifiedPods = UnclassifiedPods.TOTAL_ONLY) -> QuotaLedger:
    """Return the ledger, never counted, of a namespace that has a team and no GPUQuota."""
    return QuotaLedger(quota_uid="", generation=0, hard={}, unclassified_pods=unclassified_pods)


class LedgerObjectError(ValueError):
    """The ledger object cannot be read. The message says where."""


class VersionedTeam(msgspec.Struct, frozen=True):
    """The ledgers of a team as they were read, and the uid of the object. No version: it is not stored yet."""

    team_ledgers: TeamLedgers
    version: str = NO_LEDGER_OBJECT
    uid: str = ""


class _Ledger(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The text of a ledger. Revisions are text, as everywhere in Kubernetes."""

    quota_uid: str
    generation: int
    hard: dict[str, str]
    unclassified_pods: UnclassifiedPods
    max_waiting: int = MAX_WAITING
    waiting: int = 0
    waiting_for_team: int = 0
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


class _TeamSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    name: str
    uid: str
    generation: int
    hard: dict[str, str]
    guaranteed: dict[str, dict[str, str]] = {}
    unclassified_pods: UnclassifiedPods
    contact: str = ""


class _TeamLedgers(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The text of the object of a team."""

    team: _TeamSpec
    ledgers: dict[str, _Ledger] = {}
    leaving: tuple[str, ...] = ()


class _ReadTeamLedgers(msgspec.Struct, frozen=True):
    """The same, with each ledger as its text."""

    team: _TeamSpec
    ledgers: dict[str, msgspec.Raw] = {}
    leaving: tuple[str, ...] = ()


class _Object(Identified, frozen=True):
    """`ledger` is empty in the answer to a write, which has only the metadata."""

    ledger: str = ""


_OBJECT = msgspec.json.Decoder(_Object)
_LEDGER = msgspec.json.Decoder(_Ledger)
_TEAM_LEDGERS = msgspec.json.Decoder(_ReadTeamLedgers)
msgspec.convert({}, Revisions)  # msgspec crashes where threads use a type for the first time together
_ENCODER = msgspec.json.Encoder()

LONGEST_BODY = 1024 * 1024
"""Bytes of a body with holders at most. etcd takes requests of 1.5 MiB (`--max-request-bytes`), and a ledger that
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
    """Return where the API server has the ledgers of an installation, or the one of `namespace`."""
    return api_path(f"/apis/{API_VERSION}", "namespaces", installation, PLURAL, *namespace)


def decode_ledger_object(document: bytes | msgspec.Raw) -> VersionedLedger:
    """Return the ledger of an object in JSON. Raises LedgerObjectError."""
    try:
        read = _OBJECT.decode(document)
        metadata, written = read.metadata, _LEDGER.decode(read.ledger)
        ledger = _read(written, metadata.uid)
    except ValueError as error:  # of msgspec, amounts and numbers
        raise LedgerObjectError(f"the {KIND} cannot be read: {error}") from None
    return VersionedLedger(ledger, metadata.resource_version)


def _read(written: _Ledger, ledger_uid: str) -> QuotaLedger:
    return QuotaLedger(
        ledger_uid=ledger_uid,
        quota_uid=written.quota_uid,
        generation=written.generation,
        hard=parse_vector(written.hard),
        unclassified_pods=written.unclassified_pods,
        max_waiting=written.max_waiting,
        waiting=written.waiting,
        waiting_for_team=written.waiting_for_team,
        used=None if written.used is None else parse_vector(written.used),
        stored_names={name: parse_vector(stored) for name, stored in written.stored_names.items()},
        reservations=Reservations.parse(written.reservations),
        revisions=msgspec.convert(written.revisions, Revisions, strict=False),
        class_catalogue=written.class_catalogue,
        next_catalogue=written.next_catalogue,
        holders=written.holders,
        budget=written.budget,
        spending=written.spending,
        moved_to=written.moved_to,
    )


KnownLedgers = dict[str, tuple[bytes, QuotaLedger]]
"""Ledgers of a team by namespace, and their text in the team's object."""


def decode_team_object(document: bytes | msgspec.Raw, known: KnownLedgers | None = None) -> VersionedTeam:
    """Return the ledgers in the object of a team. Raises LedgerObjectError.

    Most versions change one ledger. So those of `known` that have the same text are returned as they are; then it has the others.
    """
    found: KnownLedgers = {}
    try:
        read = _OBJECT.decode(document)
        metadata, written = read.metadata, _TEAM_LEDGERS.decode(read.ledger)
        spec = written.team
        team = Team(
            name=spec.name,
            uid=spec.uid,
            generation=spec.generation,
            hard=parse_vector(spec.hard),
            guaranteed={namespace: parse_vector(each) for namespace, each in spec.guaranteed.items()},
            unclassified_pods=spec.unclassified_pods,
            contact=spec.contact,
        )
        for namespace, raw in written.ledgers.items():
            text = bytes(raw)
            same = known.get(namespace) if known else None
            if same is None or same[0] != text:
                each = _LEDGER.decode(text)
                same = text, _read(each, each.ledger_uid)
            found[namespace] = same
    except ValueError as error:  # of msgspec, amounts and numbers
        raise LedgerObjectError(f"the {KIND} of a team cannot be read: {error}") from None
    if known is not None:  # several threads may read versions of one object
        known.clear()
        known.update(found)
    ledgers = {namespace: ledger for namespace, (_, ledger) in found.items()}
    team_ledgers = TeamLedgers(team, ledgers, frozenset(written.leaving))
    return VersionedTeam(team_ledgers, metadata.resource_version, metadata.uid)


def decode_identity(document: bytes | msgspec.Raw) -> Identity:
    """Return the identity of a ledger object. Raises LedgerObjectError."""
    try:
        return _OBJECT.decode(document).metadata
    except ValueError as error:
        raise LedgerObjectError(f"the {KIND} cannot be read: {error}") from None


def encode_ledger_object(namespace: str, version: str, ledger: QuotaLedger) -> bytes:
    """Return the body that replaces this version of the ledger; one without a version creates it.

    Beyond LONGEST_BODY it goes without holders.
    """
    body = _body(namespace, version, _written(ledger))
    if len(body) > LONGEST_BODY and ledger.holders:
        return _body(namespace, version, _written(replace(ledger, holders={})))
    return body


def encode_team_object(version: str, team_ledgers: TeamLedgers) -> bytes:
    """Return the body that replaces this version of a team's ledgers; beyond LONGEST_BODY without holders and stored names."""
    team = team_ledgers.team
    spec = _TeamSpec(
        name=team.name,
        uid=team.uid,
        generation=team.generation,
        hard=texts(team.hard),
        guaranteed={namespace: texts(each) for namespace, each in team.guaranteed.items()},
        unclassified_pods=team.unclassified_pods,
        contact=team.contact,
    )
    ledgers = {
        namespace: replace(_written(each), ledger_uid=each.ledger_uid)
        for namespace, each in team_ledgers.ledgers.items()
    }
    written = _TeamLedgers(team=spec, ledgers=ledgers, leaving=tuple(sorted(team_ledgers.leaving)))
    body = _body(team_object_name(team.name), version, written)
    if len(body) > LONGEST_BODY:
        shorter = {name: replace(each, holders={}, stored_names={}) for name, each in ledgers.items()}
        return _body(team_object_name(team.name), version, replace(written, ledgers=shorter))
    return body


def _written(ledger: QuotaLedger) -> _Ledger:
    return _Ledger(
        quota_uid=ledger.quota_uid,
        generation=ledger.generation,
        hard=texts(ledger.hard),
        unclassified_pods=ledger.unclassified_pods,
        max_waiting=ledger.max_waiting,
        waiting=ledger.waiting,
        waiting_for_team=ledger.waiting_for_team,
        used=None if ledger.used is None else texts(ledger.used),
        stored_names={name: texts(stored) for name, stored in ledger.stored_names.items()},
        reservations=ledger.reservations.text,
        revisions={key: str(each) for key, each in msgspec.to_builtins(ledger.revisions).items()},
        class_catalogue=ledger.class_catalogue,
        next_catalogue=ledger.next_catalogue,
        holders=ledger.holders,
        budget=ledger.budget,
        spending=ledger.spending,
        moved_to=ledger.moved_to,
    )


def _body(name: str, version: str, written: _Ledger | _TeamLedgers) -> bytes:
    # An empty entry removes the managed fields. If an object has none, the API server tracks none until it is applied
    # (`skipNonAppliedManager` in `k8s.io/apimachinery/pkg/util/managedfields/internal`): a write takes 1.7 ms, not 2.2.
    metadata = {"name": name, "managedFields": [{}]} | ({"resourceVersion": version} if version else {})
    text = _ENCODER.encode(written).decode()
    return _ENCODER.encode({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "ledger": text})


class ClusterStore:
    """The ledgers in the namespace `installation`, swapped by resourceVersion: of several writers the first succeeds.

    Without ledger and GPUQuota, a namespace has no quota. A GPUQuota without a ledger was never counted, and denies.
    """

    reservations_limit = LIMIT

    def __init__(
        self,
        api: ApiClient,
        installation: str,
        team_of: Callable[[str, float], NamedTeam | None] = lambda _namespace, _seconds: None,
    ) -> None:
        """`team_of` returns the team of a namespace that has no ledger, read within so many seconds (`TeamLookup.of`)."""
        self._api, self._installation, self._team_of = api, installation, team_of
        self._places: dict[str, str] = {}

    def place(self, namespace: str) -> str:
        return self._places.get(namespace, namespace)

    def read(self, namespace: str, seconds: float) -> VersionedLedger | None:
        """Read from etcd: no cache serves a GET without a resourceVersion.

        The GPUQuota is read after the ledger, and then the team of the namespace, by a list of up to LISTED_SECONDS ago. Without
        any of them, the namespace had no quota then. Raises a transient LedgerError while the ledger moves to another object.
        """
        if (place := self._places.get(namespace)) is not None and (
            there := self._in_team(namespace, place, seconds)
        ):
            return there
        own = self.read_own(namespace, seconds)
        if own is not None and own.ledger.moved_to:
            if (there := self._in_team(namespace, own.ledger.moved_to, seconds)) is None:
                raise LedgerError(
                    f"the ledger of {namespace} is moving into or out of a team", transient=True
                )
            if len(self._places) >= PLACES_REMEMBERED:
                self._places.clear()
            self._places[namespace] = own.ledger.moved_to
            return there
        self._places.pop(namespace, None)
        if own is not None:
            return own
        granted = self.granted(namespace, seconds)
        if granted is None and self._team_of(namespace, seconds) is not None:
            granted = ungranted()
        return None if granted is None else VersionedLedger(granted, NO_LEDGER_OBJECT)

    def read_own(self, namespace: str, seconds: float) -> VersionedLedger | None:
        """Read the object of the namespace. None without one. Raises LedgerError."""
        with _as_ledger_errors("read"):
            found = self._get(self._path(namespace), PLURAL, seconds)
            return None if found is None else decode_ledger_object(found)

    def read_team(self, name: str, seconds: float) -> VersionedTeam | None:
        """Read the object of the team of that name. None without one. Raises LedgerError."""
        with _as_ledger_errors("read"):
            found = self._get(self._path(team_object_name(name)), PLURAL, seconds)
            return None if found is None else decode_team_object(found)

    def _in_team(self, namespace: str, place: str, seconds: float) -> VersionedLedger | None:
        team = self.read_team(team_name(place), seconds)
        ledger = team.team_ledgers.of(namespace) if team else None
        return VersionedLedger(ledger, team.version, team.team_ledgers) if team and ledger else None

    def granted(self, namespace: str, seconds: float) -> QuotaLedger | None:
        """Return the ledger that the GPUQuota grants, never counted. None without a GPUQuota."""
        with _as_ledger_errors("read"):
            found = self._get(documents.quota_path(namespace), documents.PLURAL, seconds)
            quota = None if found is None else documents.decode_quota(found)
        if quota is not None and quota.granted is None:
            raise LedgerError(quota.problem, transient=False)
        return quota.granted if quota else None

    def has_team(self, namespace: str, seconds: float) -> bool:
        """Whether the namespace belongs to a team, read now. Raises LedgerError."""
        return self._team_of(namespace, seconds) is not None

    def granted_team(self, name: str, seconds: float) -> Team | None:
        """Return what the ClusterGPUQuota grants. None without one, also while the API server does not serve the kind."""
        path = team_documents.team_path(name)
        with _as_ledger_errors("read"), contextlib.suppress(errors.NotFound):
            record = team_documents.decode_team(self._api.get(path, timeout=seconds))
            if record.granted is None:
                raise LedgerError(record.problem, transient=False)
            return record.granted
        return None

    def compare_and_swap(
        self, namespace: str, before: VersionedLedger, ledger: QuotaLedger, seconds: float
    ) -> VersionedLedger:
        if before.team_ledgers is not None:
            after = before.replaced(namespace, ledger).team_ledgers or before.team_ledgers
            written_team = self.swap_team(before.version, after, seconds)
            return VersionedLedger(after.of(namespace) or ledger, written_team.version, after)
        body = encode_ledger_object(namespace, before.version, ledger)
        identity = self._swap(namespace, before.version, body, seconds)
        return VersionedLedger(replace(ledger, ledger_uid=identity.uid), identity.resource_version)

    def swap_team(self, version: str, team_ledgers: TeamLedgers, seconds: float) -> VersionedTeam:
        """Replace this version of a team's object, or create it. Raises as `compare_and_swap` does."""
        name, body = team_object_name(team_ledgers.team.name), encode_team_object(version, team_ledgers)
        identity = self._swap(name, version, body, seconds)
        return VersionedTeam(team_ledgers, identity.resource_version, identity.uid)

    def _swap(self, name: str, version: str, body: bytes, seconds: float) -> Identity:
        with _as_ledger_errors("written"):
            if version == NO_LEDGER_OBJECT:
                written = self._api.post(ledger_objects_path(self._installation), body, timeout=seconds)
            else:
                written = self._api.put(self._path(name), body, timeout=seconds, accept=METADATA)
            return decode_identity(written)

    def delete(self, namespace: str, version: str, seconds: float) -> None:
        """Delete the ledger. The GPUQuota must have been looked for after it was read. Raises as `compare_and_swap` does."""
        with _as_ledger_errors("deleted"):
            self._api.delete(self._path(namespace), version=version, timeout=seconds)

    def discard(self, namespace: str, seconds: float) -> bool:
        """Delete an unreadable ledger without GPUQuota and team; return whether it was deleted. Raises as `delete` does."""
        with _as_ledger_errors("read"):
            found = self._get(self._path(namespace), PLURAL, seconds)
            quota = found and self._get(documents.quota_path(namespace), documents.PLURAL, seconds)
            if found is None or quota is not None or self.has_team(namespace, seconds):
                return False
            version = decode_identity(found).resource_version
        self.delete(namespace, version, seconds)
        return True

    def _path(self, namespace: str) -> str:
        return ledger_objects_path(self._installation, namespace)

    def _get(self, path: str, plural: str, seconds: float) -> bytes | None:
        try:
            return self._api.get(path, timeout=seconds)
        except errors.NotFound as error:
            # That a kind is not there must not mean "no quota". Of one object the API server begins otherwise to say so.
            kind = f"{plural}.{GROUP}"
            if f'{kind} "' in str(error):
                return None
            problem = f"the API server does not know the kind {kind}: {error}"
            raise LedgerError(problem, transient=True) from None


@contextlib.contextmanager
def _as_ledger_errors(done: str) -> Iterator[None]:
    try:
        yield
    except (errors.Conflict, errors.AlreadyExists, errors.NotFound) as error:
        raise LedgerConflict(str(error)) from None
    except (LedgerObjectError, msgspec.MsgspecError) as error:
        raise LedgerError(str(error), transient=False) from None
    except errors.ApiError as error:
        transient = isinstance(error, errors.Unreachable | errors.Unavailable)
        problem = f"the ledger of the quota could not be {done}: {error}"
        raise LedgerError(problem, transient=transient) from None
