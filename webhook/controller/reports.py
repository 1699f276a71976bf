"""Reports (openreports.io) on pods that run and would be refused if they were created now: one for each namespace with any.

Their kind is `Report` of openreports.io/v1alpha1, as openreports/reports-api has it on GitHub (`report_types.go`). They
are for the tools that show such reports; nothing reads them to decide. What cannot be written is written the next time.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from policies.finding import Finding
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Resource
from webhook.cluster.objects import LABELS, decode_metadata
from webhook.configuration.loader import Configuration
from webhook.controller.cluster_facts import ClusterFacts
from webhook.controller.records import PODS
from webhook.serving.engine import Outcome
from webhook.serving.evaluation import Evaluation, Verdict, evaluate

GROUP, VERSION, KIND = "openreports.io", "v1alpha1", "Report"
REPORTS = Resource(f"/apis/{GROUP}/{VERSION}", "reports")
NAME = SOURCE = "gpu-admission"
"""The name of every report of ours, and what it says who made it."""
OURS = {"fieldSelector": f"metadata.name={NAME}"}
RUNNING = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}

MOST_RESULTS = 100
"""Of one report, some 50 KiB: an object of etcd has 1.5 MiB."""
MOST_IN_ALL = 20_000
"""Results of all reports, some 20 MiB while they are made. Pods beyond them are counted."""
MOST_SUBJECTS = 10
"""Pods that one result names."""
LOOK_SECONDS = 1.0

log = logging.getLogger("gpu_admission.controller")


class _Key(NamedTuple):
    policy: str
    rule: str
    owner: str
    message: str


class _Result(msgspec.Struct):
    sentence: str
    pods: int = 0
    subjects: list[dict[str, str]] = msgspec.field(default_factory=list)


class _Stored(msgspec.Struct, frozen=True):
    """A report as it is stored; of its content only a digest is kept."""

    namespace: str
    version: str
    content: str


class NamespaceReport:
    """The report of one namespace as it is made."""

    def __init__(self) -> None:
        self._passed = self._refused = self._unreadable = 0
        self._results: dict[_Key, _Result] = {}

    @property
    def is_empty(self) -> bool:
        return not (self._refused or self._unreadable)

    def add(self, evaluation: Evaluation, uid: str, *, most: int) -> int:
        """Count a pod; return how many results, of at most so many, its findings add."""
        if evaluation.verdict is Verdict.UNREADABLE:
            self._unreadable += 1
        elif evaluation.verdict is Verdict.REFUSED:
            self._refused += 1
        else:
            self._passed += 1
        before = len(self._results)
        for pod in evaluation.pods:
            for evaluated in pod.evaluated:
                room = min(before + most, MOST_RESULTS)
                if evaluated.outcome is Outcome.DENIED:
                    self._add(evaluation, pod.policy.name, evaluated.finding, uid, room)
        return len(self._results) - before

    def _add(self, evaluation: Evaluation, policy: str, finding: Finding, uid: str, room: int) -> None:
        owner = evaluation.owner or f"Pod/{evaluation.name}"
        key = _Key(policy, finding.rule, owner, f"{finding.path} {finding.value} {finding.message}")
        if key not in self._results and len(self._results) >= room:
            return
        result = self._results.setdefault(key, _Result(finding.sentence()))
        result.pods += 1
        if len(result.subjects) < MOST_SUBJECTS:
            subject = {"apiVersion": "v1", "kind": "Pod", "namespace": evaluation.namespace}
            result.subjects.append({**subject, "name": evaluation.name, "uid": uid})

    def content(self) -> dict[str, Any]:
        """Return all of the report but its metadata: the same for the same pods, in any order."""
        results = [
            {
                "source": SOURCE,
                "policy": key.policy,
                "rule": key.rule,
                "category": "GPU",
                "severity": "high",
                "result": "fail",
                "scored": True,
                "message": result.sentence,
                "properties": {"owner": key.owner, "pods": str(result.pods)},
                "resources": sorted(result.subjects, key=lambda each: each["name"]),
            }
            for key, result in sorted(self._results.items())
        ]
        counts = {
            "pass": self._passed,
            "fail": self._refused,
            "warn": 0,
            "error": self._unreadable,
            "skip": 0,
        }
        limits = {"maxResults": MOST_RESULTS, "statusFilter": ["fail"]}
        return {
            "source": SOURCE,
            "configuration": {"limits": limits},
            "summary": counts,
            "results": results,
        }


class ReportLoop:
    """Writes the reports every so many seconds, while this process leads."""

    def __init__(
        self,
        api: ApiClient,
        configuration: Callable[[], Configuration],
        is_leader: Callable[[], bool],
        seconds: float,
    ) -> None:
        self._api, self._configuration = api, configuration
        self._is_leader, self._seconds = is_leader, seconds
        self._is_served = True

    def run(self, stopping: threading.Event) -> None:
        """Write until `stopping`; the body of a thread."""
        while not stopping.wait(LOOK_SECONDS):
            if not self._is_leader():
                continue
            try:
                self.write()
            except errors.ApiError as error:
                log.warning("the reports cannot be written: %s", error)
            stopping.wait(self._seconds)

    def write(self) -> int:
        """Judge what runs, and write the reports that changed; return their number. Raises `errors.ApiError`."""
        try:
            stored = {
                each.namespace: each for each in self._api.list(REPORTS.path(), _stored, query=OURS).items
            }
        except errors.NotFound:
            if self._is_served:
                log.warning(
                    "the API server does not serve reports.%s/%s: no report is written", GROUP, VERSION
                )
            self._is_served = False
            return 0
        self._is_served = True
        written = 0
        for namespace, report in sorted(self._reports(stored).items()):
            try:
                written += self._write(namespace, report, stored.get(namespace))
            except (errors.NotFound, errors.AlreadyExists, errors.Conflict, errors.Forbidden) as error:
                # The namespace is about to be deleted, or somebody else wrote it.
                log.info("%s: the report was not written: %s", namespace, error)
        return written

    def _reports(self, stored: Iterable[str]) -> dict[str, NamespaceReport]:
        """Return the reports of the namespaces in which something would be refused, and of those that have one."""
        by = ClusterFacts(self._api).evaluator(self._configuration(), datetime.now(UTC))
        found: defaultdict[str, NamespaceReport] = defaultdict(NamespaceReport)
        room = MOST_IN_ALL

        def read(raw: msgspec.Raw) -> None:
            nonlocal room
            metadata = decode_metadata(raw)
            evaluation = evaluate("", "Pod", metadata.namespace, raw, by)
            room -= found[metadata.namespace].add(evaluation, metadata.uid, most=room)

        self._api.list(PODS.path(), read, query=RUNNING)
        kept = set(stored)
        refusing = {name for name, each in found.items() if not each.is_empty}
        return {name: found[name] for name in kept | refusing}

    def _write(self, namespace: str, report: NamespaceReport, stored: _Stored | None) -> bool:
        content = report.content()
        if stored is not None and stored.content == _digest(content):
            return False
        path = REPORTS.path(namespace)
        metadata: dict[str, Any] = {"name": NAME, "namespace": namespace, "labels": LABELS}
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, **content}
        if stored is None:
            self._api.post(path, msgspec.json.encode(body))
        else:
            metadata["resourceVersion"] = stored.version
            self._api.put(f"{path}/{NAME}", msgspec.json.encode(body))
        return True


def _stored(raw: msgspec.Raw) -> _Stored:
    metadata = decode_metadata(raw)
    return _Stored(metadata.namespace, metadata.resource_version, _digest(msgspec.json.decode(raw)))


def _digest(report: Mapping[str, Any]) -> str:
    content = {key: report.get(key) for key in ("summary", "results")}
    return sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
