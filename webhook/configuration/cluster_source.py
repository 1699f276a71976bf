"""Documents that the API server stores: as records, which of them are in force, and a source that follows them.

A new version of the documents takes over as a whole; if it has a problem, the last good version stays in force. A process
remembers the last good version in memory. A process that has just started reads it from the status of the objects, where the
controller wrote it, so all processes agree. A pause in the newest documents is always in force: break glass must not depend on
somebody else's document.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import Any

import msgspec

from policies.gpus.device_classes import NO_DEVICES, ClusterDevices
from policies.printable import printable_lines
from webhook.cluster import errors
from webhook.cluster.access import own_namespace
from webhook.cluster.api import ApiClient
from webhook.cluster.collection import CLUSTER
from webhook.cluster.informer import Informer, Resource
from webhook.cluster.objects import FALSE, TRUE, Condition, PartialObject, with_transition_time
from webhook.configuration.documents import (
    API_VERSION,
    CLASS,
    PAUSE,
    POLICY,
    RESOURCE_MAPPING,
    Document,
    LocatedProblem,
    is_valid_pause,
    with_pause,
    without_removed,
)
from webhook.configuration.dynamic_resources import read_cluster_devices
from webhook.configuration.loader import (
    Configuration,
    ConfigurationError,
    load_directory,
    load_objects,
    problems_of,
)
from webhook.configuration.schema_paths import Schemas, kind_problems, schemas_of
from webhook.configuration.source import ConfigurationSource, ConfigurationState, DirectorySource
from webhook.configuration.workload_kinds import WorkloadKind
from webhook.threads import thread

log = logging.getLogger("gpu_admission.configuration")

PLURALS = {POLICY: "gpupolicies", CLASS: "gpuclasses", RESOURCE_MAPPING: "gpuresourcemappings"}
RESOURCES = {kind: Resource(f"/apis/{API_VERSION}", plural) for kind, plural in PLURALS.items()}

CRD_COLLECTION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

QUIET_SECONDS = 0.3
"""Documents that are applied together arrive one after another, and a part of them may be invalid alone."""
LONGEST_WAIT_SECONDS = 2.0
POLL_SECONDS = 0.5
FIRST_POLL_SECONDS = 0.05
START_SECONDS = 10.0
"""After this time without a first list, the built-in documents are used: better than no answer."""

IN_FORCE, INVALID = "InForce", "Invalid"
LONGEST_MESSAGE = 8000
"""Characters of the message of a condition. Kubernetes allows 32768 in its own kinds."""


class DocumentStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Status that the controller writes: conditions, and the spec that is in force (`accepted`)."""

    observed_generation: int = 0
    accepted: dict[str, Any] | None = None
    conditions: tuple[Condition, ...] = ()


class Record(msgspec.Struct, frozen=True):
    uid: str
    generation: int
    document: Document
    status: DocumentStatus = DocumentStatus()
    namespace: str = CLUSTER

    @property
    def accepted(self) -> Document | None:
        """The document with the spec that was in force last; None if no spec ever was."""
        spec = self.status.accepted
        return None if spec is None else msgspec.structs.replace(self.document, spec=without_removed(spec))


class StoredDocument(PartialObject, frozen=True):
    spec: dict[str, Any]
    status: msgspec.Raw = msgspec.Raw(b"{}")


decode_stored = msgspec.json.Decoder(StoredDocument).decode
_STATUS = msgspec.json.Decoder(DocumentStatus)


def decode_record(kind: str, raw: msgspec.Raw) -> Record:
    stored = decode_stored(raw)
    try:
        status = _STATUS.decode(stored.status)
    except msgspec.MsgspecError:  # not written by us; the next report replaces it
        status = DocumentStatus()
    document = Document(kind, stored.metadata.name, without_removed(stored.spec))
    return Record(stored.metadata.uid, stored.metadata.generation, document, status)


def path_of(document: Document, *subresource: str) -> str:
    return RESOURCES[document.kind].path(CLUSTER, document.name, *subresource)


class EvaluatedDocuments(msgspec.Struct, frozen=True):
    """The stored documents (`records`), the documents in force, and the problems of the stored ones."""

    records: tuple[Record, ...]
    documents: tuple[Document, ...]
    configuration: Configuration
    problems: tuple[LocatedProblem, ...] = ()


def documents_in_force(
    records: Sequence[Record], last_good: tuple[Document, ...] | None, devices: ClusterDevices = NO_DEVICES
) -> EvaluatedDocuments:
    """Return the documents in force while `records` are stored; `last_good` is None in a process that has just started."""
    records = tuple(records)
    stored = tuple(record.document for record in records)
    try:
        return EvaluatedDocuments(records, stored, load_objects(stored, devices))
    except ConfigurationError as error:
        problems = tuple(error.problems)
    if last_good is None:
        last_good = tuple(record.accepted for record in records if record.accepted is not None) or stored
    good = _without_invalid(last_good)
    newest = {document.key: document.spec.get(PAUSE) for document in stored if document.kind == POLICY}
    paused = tuple(
        msgspec.structs.replace(document, spec=with_pause(document.spec, newest[document.key]))
        if document.key in newest and is_valid_pause(newest[document.key])
        else document
        for document in good
    )
    try:
        return EvaluatedDocuments(records, paused, load_objects(paused, devices), problems)
    except ConfigurationError:  # the pause is the problem
        return EvaluatedDocuments(records, good, load_objects(good, devices), problems)


def _without_invalid(documents: Iterable[Document]) -> tuple[Document, ...]:
    """Remove invalid documents until no problem is left."""
    left = tuple(documents)
    while bad := {problem.document for problem in problems_of(left)}:
        left = tuple(document for document in left if document.title not in bad)
    return left


def read_documents_in_force(api: ApiClient, namespace: str) -> EvaluatedDocuments:
    """List the documents once and return what is in force, for commands that do not watch; `namespace` is the installation's.

    Raises `errors.ApiError`.
    """
    records: list[Record] = []
    for kind, resource in RESOURCES.items():
        with contextlib.suppress(errors.NotFound):  # this kind is not installed
            records += api.list(resource.path(), partial(decode_record, kind)).items
    return documents_in_force(records, None, read_cluster_devices(api, namespace))


def read_path_problems(api: ApiClient, configuration: Configuration) -> Iterator[LocatedProblem]:
    """Yield the paths of workload kinds that the cluster's CustomResourceDefinitions do not have, if these may be read."""
    for name, kinds in configuration.own_workload_kinds.items():
        for path, message in kind_problems(kinds, read_schemas(api, kinds)):
            yield LocatedProblem("", 0, f"{RESOURCE_MAPPING}/{name}", path, message)


def read_schemas(api: ApiClient, kinds: Iterable[WorkloadKind], seconds: float | None = None) -> Schemas:
    """Return the schemas of the kinds whose CustomResourceDefinitions exist and may be read. Raises `errors.ApiError`.

    With `seconds` it raises nothing, and returns what it has read by then.
    """
    schemas: Schemas = {}
    began = monotonic()
    for workload_kind in kinds:
        timeout = None if seconds is None else max(began + seconds - monotonic(), 0.001)
        try:
            schemas |= schemas_of(
                msgspec.json.decode(api.get(f"{CRD_COLLECTION}/{workload_kind.crd_name}", timeout=timeout))
            )
        except (errors.NotFound, errors.Forbidden) as error:
            log.info("paths of %s are not checked: %s", workload_kind.kind, error)
        except (errors.ApiError, msgspec.MsgspecError) as error:
            if seconds is None:
                raise
            log.warning("failed to check all paths of workload kinds: %s", error)
            break
    return schemas


def source_of(
    directory: Path | None,
    api: ApiClient | None,
    changed: Callable[[ConfigurationState], object] = lambda _state: None,
    namespace: str | None = None,
) -> ConfigurationSource:
    """Return the source to start: a directory, else the cluster, else built-in. Raises `ConfigurationError`.

    namespace: that of the installation; by default, that of this pod.
    """
    namespace = namespace or own_namespace()
    if directory is None and api is not None:
        return ClusterSource(api, changed, namespace)
    return DirectorySource(directory, changed, api, namespace)


class ClusterSource(ConfigurationSource):
    """Watches the three kinds. Until the first read the built-in documents are in force."""

    origin = "cluster"

    def __init__(
        self, api: ApiClient, changed: Callable[[ConfigurationState], object], namespace: str
    ) -> None:
        super().__init__(api, changed, namespace)
        self._informers = [
            Informer(api, resource, partial(decode_record, kind), lambda _before, _after: self._wake.set())
            for kind, resource in RESOURCES.items()
        ]
        self._made = monotonic()
        self.configuration = load_directory(None)
        self.state = ConfigurationState(self.configuration.version, time(), read=False)
        self.evaluated: EvaluatedDocuments | None = None
        """None until the first read of the documents."""

    def start(self) -> None:
        for informer in self._informers:
            informer.start(self._stopping)
        super().start()
        thread("configuration", self._follow, self._stopping).start()

    @property
    def documents(self) -> tuple[Document, ...]:
        """All stored documents, in force or not, as of the last watch event."""
        return tuple(record.document for record in self._records())

    def refresh(self) -> None:
        """List everything now: the watch may not have seen the latest change yet."""
        try:
            for informer in self._informers:
                informer.refresh()
        except (errors.ApiError, msgspec.MsgspecError) as error:
            log.warning("failed to list the documents again: %s", error)

    @property
    def unconfirmed_seconds(self) -> float:
        """Seconds since the API server last confirmed every kind, while the last good documents stay in force."""
        return max(informer.age for informer in self._informers)

    @property
    def must_wait(self) -> bool:
        """Whether serving must wait for the first read. After START_SECONDS, it begins with the built-in documents."""
        if self._read.is_set() or monotonic() - self._made >= START_SECONDS:
            return False
        return not any(informer.is_missing for informer in self._informers)

    @property
    def _must_wait_for_devices(self) -> bool:
        watch = self._devices
        return watch is not None and watch.awaits_first_list and not watch.is_read

    def _follow(self, stopping: threading.Event) -> None:
        waits = True
        while not stopping.is_set():
            if not all(informer.synced for informer in self._informers) or self._must_wait_for_devices:
                waited, waits = waits, self.must_wait
                if waited and not waits:
                    log.warning("documents could not be read yet: the built-in ones are in force")
                stopping.wait(FIRST_POLL_SECONDS)
                continue
            if self.evaluated is not None:
                if not self._wake.wait(POLL_SECONDS):
                    continue
                self._wait_for_quiet()
            self._wake.clear()
            self._evaluate()

    def _wait_for_quiet(self) -> None:
        longest = monotonic() + LONGEST_WAIT_SECONDS
        self._wake.clear()
        while self._wake.wait(QUIET_SECONDS) and monotonic() < longest:
            self._wake.clear()

    def _records(self) -> tuple[Record, ...]:
        records = (record for informer in self._informers for record in informer.all())
        return tuple(sorted(records, key=lambda record: record.document.key))

    def _evaluate(self) -> None:
        last_good = self.evaluated.documents if self.evaluated else None
        chosen = documents_in_force(self._records(), last_good, self.devices)
        before, version = self.state, chosen.configuration.version
        rejected = tuple(map(str, chosen.problems))
        if version != before.version or self.configuration.devices != chosen.configuration.devices:
            self.configuration = chosen.configuration  # taints of devices are of no version
        if version != before.version:
            log.info("configuration version %s is in force", version)
        loaded_at = before.loaded_at if version == before.version else time()
        self.state = ConfigurationState(version, loaded_at, rejected)
        if rejected != before.rejected:
            self.state.log_rejected()
        self.evaluated = chosen
        if not self._read.is_set() or self.state != before:
            self._read.set()
            self._changed(self.state)


def statuses(evaluated: EvaluatedDocuments, now: datetime) -> Iterator[tuple[Record, DocumentStatus]]:
    in_force = {document.key: document for document in evaluated.documents}
    for record in evaluated.records:
        in_force_now = in_force.get(record.document.key)
        status, reason, message = _verdict(record.document, in_force_now, evaluated)
        message = printable_lines(message[:LONGEST_MESSAGE])  # problems quote the document
        condition = Condition(IN_FORCE, status, reason, message, "", record.generation)
        before = next((present for present in record.status.conditions if present.type == IN_FORCE), None)
        conditions = (with_transition_time(condition, before, now),)
        accepted = None if in_force_now is None else in_force_now.spec
        yield (
            record,
            DocumentStatus(observed_generation=record.generation, accepted=accepted, conditions=conditions),
        )


def _verdict(
    document: Document, in_force_now: Document | None, evaluated: EvaluatedDocuments
) -> tuple[str, str, str]:
    """Return status, reason and message of the condition. `held` is the version in force."""
    own_problems = [problem for problem in evaluated.problems if problem.document == document.title]
    if own_problems:
        consequence = (
            "the previous version stays in force" if in_force_now is not None else "it is not in force"
        )
        lines = [f"{problem.path}: {problem.message}" for problem in own_problems]
        heading = (
            f"{consequence}; {len(own_problems)} problems:" if len(own_problems) > 1 else f"{consequence}:"
        )
        return FALSE, INVALID, "\n".join([heading, *lines])
    if in_force_now is not None and in_force_now.spec == document.spec:
        return TRUE, "Accepted", "admission decides by it"
    blocking = ", ".join(dict.fromkeys(problem.document for problem in evaluated.problems))
    return FALSE, "HeldBack", f"valid, but the documents take effect together: correct {blocking}"
