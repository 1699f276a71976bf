"""Documents that the API server stores: as records, which of them are in force, and a source that follows them.

All documents are in force as they are stored, or, if anything is wrong with them, the last good ones: a new version takes over
as a whole or not at all. What was in force last is remembered in memory; a process that has only just started finds it in the
objects' status, where the controller wrote it, so all processes agree. A pause is taken from the newest documents in any case:
break glass must not depend on somebody else's document.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import monotonic, time
from typing import Any

import msgspec

from policies.quota.ledger.quota_ledger import Condition
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import CLUSTER, Informer, Resource, WatchTimings
from webhook.configuration.documents import (
    CLASS,
    GROUP,
    PAUSE,
    POLICY,
    RESOURCE_MAPPING,
    VERSION,
    Document,
    LocatedProblem,
    is_pause,
    with_pause,
)
from webhook.configuration.loader import (
    Configuration,
    ConfigurationError,
    load_directory,
    load_objects,
    problems_of,
)
from webhook.configuration.source import ConfigurationSource, Source, State
from webhook.serving.engine import Engine

PREFIX = f"/apis/{GROUP}/{VERSION}"
PLURALS = {POLICY: "gpupolicies", CLASS: "gpuclasses", RESOURCE_MAPPING: "gpuresourcemappings"}
RESOURCES = {kind: Resource(PREFIX, plural) for kind, plural in PLURALS.items()}


SETTLE_SECONDS = 0.3
"""Documents that are applied together arrive one after the other; half of them may be no configuration."""
SETTLE_LONGEST = 2.0
LOOK_SECONDS = 0.5
FIRST_LOOK_SECONDS = 0.05
START_SECONDS = 10.0
"""How long the first list is waited for before the built-in documents are better than no answer."""

log = logging.getLogger("gpu_admission.configuration")


class Status(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What we write back: how the document stands, and the spec of it that is in force."""

    observed_generation: int = 0
    accepted: dict[str, Any] | None = None
    conditions: tuple[Condition, ...] = ()


class Record(msgspec.Struct, frozen=True):
    """A document as the API server has it."""

    uid: str
    generation: int
    document: Document
    status: Status = Status()
    namespace: str = CLUSTER

    @property
    def accepted(self) -> Document | None:
        """The document with the spec that was in force last, None if none was."""
        spec = self.status.accepted
        return None if spec is None else msgspec.structs.replace(self.document, spec=spec)


class _Metadata(msgspec.Struct):
    name: str
    uid: str
    generation: int = 0


class _Object(msgspec.Struct):
    metadata: _Metadata
    spec: dict[str, Any]
    status: msgspec.Raw = msgspec.Raw(b"{}")


_OBJECT = msgspec.json.Decoder(_Object)
_STATUS = msgspec.json.Decoder(Status)


def reader(kind: str) -> Callable[[msgspec.Raw], Record]:
    """Return what makes a record of an object of that kind in JSON."""

    def read(raw: msgspec.Raw) -> Record:
        seen = _OBJECT.decode(raw)
        document = Document(kind, seen.metadata.name, seen.spec)
        return Record(seen.metadata.uid, seen.metadata.generation, document, _status(seen.status))

    return read


def _status(raw: msgspec.Raw) -> Status:
    try:
        return _STATUS.decode(raw)
    except msgspec.MsgspecError:  # somebody else wrote it; the next report replaces it
        return Status()


def path_of(document: Document) -> str:
    """Return where the API server has it."""
    return f"{RESOURCES[document.kind].path()}/{document.name}"


class Chosen(msgspec.Struct, frozen=True):
    """The documents in force and what they come to; `problems` are why the stored ones are not, if they are not."""

    documents: tuple[Document, ...]
    configuration: Configuration
    problems: tuple[LocatedProblem, ...] = ()


def choose(records: Sequence[Record], last_good: tuple[Document, ...] | None) -> Chosen:
    """Return what is in force now that `records` are stored; `last_good` is None in a process that has just started."""
    stored = tuple(record.document for record in records)
    try:
        return Chosen(stored, load_objects(stored))
    except ConfigurationError as error:
        problems = tuple(error.problems)
    if last_good is None:
        last_good = tuple(record.accepted for record in records if record.accepted is not None) or stored
    good = _usable(last_good)
    paused = tuple(_paused_as(document, stored) for document in good)
    try:
        return Chosen(paused, load_objects(paused), problems)
    except ConfigurationError:  # the pause is what is wrong
        return Chosen(good, load_objects(good), problems)


def _usable(documents: Iterable[Document]) -> tuple[Document, ...]:
    """Return the documents without those in which something is wrong, once others that are wrong are away."""
    left = tuple(documents)
    while bad := {problem.document for problem in problems_of(left)}:
        left = tuple(document for document in left if document.title not in bad)
    return left


def _paused_as(document: Document, stored: Iterable[Document]) -> Document:
    newest = next((each for each in stored if each.key == document.key), None)
    if document.kind != POLICY or newest is None or not is_pause(newest.spec.get(PAUSE)):
        return document
    return msgspec.structs.replace(document, spec=with_pause(document.spec, newest.spec.get(PAUSE)))


def read_chosen(api: ApiClient, *, lacking: tuple[type[errors.ApiError], ...] = (errors.NotFound,)) -> Chosen:
    """Return what is in force in the cluster, as a process that starts now finds it.

    A kind whose list ends in an error of `lacking` has no documents: it is not installed. Raises any other `errors.ApiError`.
    """
    records: list[Record] = []
    for kind, resource in RESOURCES.items():
        with contextlib.suppress(*lacking):
            records += api.list(resource.path(), reader(kind)).items
    return choose(records, None)


def source_of(
    directory: Path | None, api: ApiClient | None, changed: Callable[[State], object] = lambda _state: None
) -> Source:
    """Return the source, not started. Raises `ConfigurationError` if a directory cannot be used."""
    if directory is None and api is not None:
        return ClusterSource(api, changed)
    return ConfigurationSource(directory, changed, labels_known=api is not None)


class EvaluatedDocuments(msgspec.Struct, frozen=True):
    """The documents as they are stored, and what of them is in force."""

    records: tuple[Record, ...]
    chosen: Chosen


class ClusterSource:
    """Watches the three kinds once started. `changed` is told every new state, in the thread that found it."""

    origin = "cluster"

    def __init__(
        self, api: ApiClient, changed: Callable[[State], object], *, pace: WatchTimings | None = None
    ) -> None:
        self._changed = changed
        self._mirrors = [
            Informer(api, resource, reader(kind), lambda _before, _after: self._wake.set(), pace=pace)
            for kind, resource in RESOURCES.items()
        ]
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._read = threading.Event()
        self._made = monotonic()
        built_in = load_directory(None)
        self.engine = Engine(built_in)
        self.state = State(built_in.version, time(), read=False)
        self.judged: EvaluatedDocuments | None = None
        """None until the documents were read for the first time."""

    def start(self) -> None:
        for mirror in self._mirrors:
            name = f"watch {mirror.resource.plural}"
            threading.Thread(target=mirror.run, args=(self._stopping,), name=name, daemon=True).start()
        threading.Thread(target=self._follow, name="configuration", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def wait(self) -> None:
        """Return once the documents were read, or it is no use to wait for them."""
        while self.waits:
            self._read.wait(FIRST_LOOK_SECONDS)

    @property
    def documents(self) -> tuple[Document, ...]:
        """Everything that is stored, in force or not, as the watch showed it last."""
        return tuple(record.document for record in self._records())

    def refresh(self) -> None:
        """Read everything now: what was applied a moment ago may not have come by the watch yet."""
        try:
            for mirror in self._mirrors:
                mirror.refresh()
        except (errors.ApiError, msgspec.MsgspecError) as error:
            log.warning("the documents could not be read again: %s", error)

    @property
    def unconfirmed_seconds(self) -> float:
        """Since the API server was last heard about every kind; up to a minute is normal."""
        return max(mirror.age for mirror in self._mirrors)

    @property
    def waits(self) -> bool:
        """Whether the documents may still be read any moment, so that the built-in ones should not answer yet."""
        is_early = monotonic() - self._made < START_SECONDS
        return not self._read.is_set() and is_early and not any(mirror.is_missing for mirror in self._mirrors)

    def _follow(self) -> None:
        waited = True
        while not self._stopping.is_set():
            if not all(mirror.synced for mirror in self._mirrors):
                if waited and not self.waits:
                    log.warning("no documents could be read yet: the built-in ones are in force")
                waited = self.waits
                self._stopping.wait(FIRST_LOOK_SECONDS)
                continue
            if self.judged is not None:
                if not self._wake.wait(LOOK_SECONDS):
                    continue
                self._settle()
            self._wake.clear()
            try:
                self._judge()
            except Exception:  # a defect met in one version must not end the following; the old version stays
                log.exception("the configuration could not be looked at")
                self._stopping.wait(LOOK_SECONDS)

    def _settle(self) -> None:
        """Wait until nothing more comes."""
        longest = monotonic() + SETTLE_LONGEST
        self._wake.clear()
        while self._wake.wait(SETTLE_SECONDS) and monotonic() < longest:
            self._wake.clear()

    def _records(self) -> tuple[Record, ...]:
        found = (record for mirror in self._mirrors for record in mirror.all())
        return tuple(sorted(found, key=lambda record: record.document.key))

    def _judge(self) -> None:
        records = self._records()
        chosen = choose(records, self.judged.chosen.documents if self.judged else None)
        before, version = self.state, chosen.configuration.version
        refused = tuple(str(problem) for problem in chosen.problems)
        if version != before.version:
            self.engine = Engine(chosen.configuration)
            log.info("configuration version %s is in force", version)
        if refused and refused != before.refused:
            for problem in refused:
                log.error("new configuration refused, version %s is in force: %s", version, problem)
        self.state = State(version, before.loaded_at if version == before.version else time(), refused)
        self.judged = EvaluatedDocuments(records, chosen)
        if not self._read.is_set() or self.state != before:
            self._read.set()
            self._changed(self.state)
