"""How every document stands, as its status: in force, refused with everything that is wrong, or held back by another one.

Written by the controller that leads, together with the spec that is in force (`choice` says what for). Nobody decides by a
condition; they are for people and `kubectl wait`.
"""

import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from policies.quota.ledger.quota_ledger import Condition
from webhook.cluster import errors
from webhook.cluster.api import JSON_PATCH, ApiClient
from webhook.configuration.cluster_source import (
    ClusterSource,
    DocumentStatus,
    EvaluatedDocuments,
    Record,
    path_of,
)
from webhook.configuration.documents import Document

LOOK_SECONDS = 0.5
FAILED_SECONDS = 10.0
IN_FORCE = "InForce"
LONGEST_MESSAGE = 8000
"""Characters of a condition's message; the API allows 32768 in its own."""

log = logging.getLogger("gpu_admission.configuration")


class Leads(Protocol):
    @property
    def leads(self) -> bool: ...


def start_reporting(api: ApiClient, source: ClusterSource, leader: Leads, stopping: threading.Event) -> None:
    """Report in a thread of its own until `stopping`."""
    reporter = Reporter(api, source, leader)
    threading.Thread(target=reporter.run, args=(stopping,), name="report configuration", daemon=True).start()


class Reporter:
    """Writes what has changed. A write that fails is tried again, and so is one that somebody overwrote."""

    def __init__(self, api: ApiClient, source: ClusterSource, leader: Leads) -> None:
        self._api = api
        self._source = source
        self._leader = leader

    def run(self, stopping: threading.Event) -> None:
        reported: EvaluatedDocuments | None = None
        while not stopping.wait(LOOK_SECONDS):
            judged = self._source.evaluated
            if judged is None or judged is reported or not self._leader.leads:
                continue
            try:
                self.report(judged)
                reported = judged
            except errors.ApiError as error:
                log.warning("the status of the configuration could not be written: %s", error)
                stopping.wait(FAILED_SECONDS)

    def report(self, judged: EvaluatedDocuments) -> None:
        """Write the status of every document of which it is not what it should be. Raises `errors.ApiError`."""
        for record, status in statuses(judged, datetime.now(UTC)):
            if status == record.status:
                continue
            body = msgspec.json.encode([{"op": "add", "path": "/status", "value": status}])
            try:
                self._api.patch(f"{path_of(record.document)}/status", body, content_type=JSON_PATCH)
            except errors.NotFound:
                log.info("%s is gone", record.document.title)


def statuses(judged: EvaluatedDocuments, now: datetime) -> Iterator[tuple[Record, DocumentStatus]]:
    """Yield every document with the status that it should have."""
    in_force = {document.key: document for document in judged.chosen.documents}
    for record in judged.records:
        held = in_force.get(record.document.key)
        condition = _condition(record, held, judged)
        before = next((each for each in record.status.conditions if each.type == IN_FORCE), None)
        kept = before is not None and before.status == condition.status
        at = before.last_transition_time if before and kept else now.strftime("%Y-%m-%dT%H:%M:%SZ")
        yield (
            record,
            DocumentStatus(
                observed_generation=record.generation,
                accepted=None if held is None else held.spec,
                conditions=(msgspec.structs.replace(condition, last_transition_time=at),),
            ),
        )


def _condition(record: Record, held: Document | None, judged: EvaluatedDocuments) -> Condition:
    generation, document = record.generation, record.document
    own = [problem for problem in judged.chosen.problems if problem.document == document.title]
    if own:
        stays = "the version before it stays in force" if held is not None else "it is not in force"
        lines = [f"{problem.path}: {problem.message}" for problem in own]
        message = "\n".join([f"{stays}; {len(own)} problems:" if len(own) > 1 else f"{stays}:", *lines])
        return Condition(IN_FORCE, "False", "Refused", message[:LONGEST_MESSAGE], "", generation)
    if held is not None and held.spec == document.spec:
        message = "every decision is made by it, where it applies"
        return Condition(IN_FORCE, "True", "Accepted", message, "", generation)
    others = ", ".join(dict.fromkeys(problem.document for problem in judged.chosen.problems))
    message = f"nothing is wrong with it, but a configuration takes over as a whole: mend {others}"
    return Condition(IN_FORCE, "False", "HeldBack", message[:LONGEST_MESSAGE], "", generation)
