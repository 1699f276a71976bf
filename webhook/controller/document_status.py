"""The status of every GPUPolicy, GPUClass and GPUResourceMapping: in force, invalid with every problem, or held back by another.

The leader writes it, together with the spec that is in force. No decision depends on a condition; they are for people and
`kubectl wait`.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

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
from webhook.controller.conditions import FALSE, TRUE, with_transition_time

LOOK_SECONDS = 0.5
FAILED_SECONDS = 10.0
IN_FORCE = "InForce"
LONGEST_MESSAGE = 8000
"""Characters of a condition's message; the API allows 32768 in its own."""

log = logging.getLogger("gpu_admission.configuration")


def write_statuses(
    api: ApiClient, source: ClusterSource, is_leader: Callable[[], bool], stopping: threading.Event
) -> None:
    """Write each status that is not up to date until `stopping`; failed and overwritten writes are repeated."""
    written: EvaluatedDocuments | None = None
    while not stopping.wait(LOOK_SECONDS):
        evaluated = source.evaluated
        if evaluated is None or evaluated is written or not is_leader():
            continue
        try:
            _write(api, evaluated)
            written = evaluated
        except errors.ApiError as error:
            log.warning("the status of the configuration cannot be written: %s", error)
            stopping.wait(FAILED_SECONDS)


def _write(api: ApiClient, evaluated: EvaluatedDocuments) -> None:
    for record, status in statuses(evaluated, datetime.now(UTC)):
        if status == record.status:
            continue
        body = msgspec.json.encode([{"op": "add", "path": "/status", "value": status}])
        try:
            api.patch(path_of(record.document, "status"), body, content_type=JSON_PATCH)
        except errors.NotFound:
            log.info("%s was deleted", record.document.title)


def statuses(evaluated: EvaluatedDocuments, now: datetime) -> Iterator[tuple[Record, DocumentStatus]]:
    """Yield every document with its up-to-date status."""
    in_force = {document.key: document for document in evaluated.documents}
    for record in evaluated.records:
        held = in_force.get(record.document.key)
        status, reason, message = _verdict(record.document, held, evaluated)
        message = message[:LONGEST_MESSAGE]
        condition = Condition(IN_FORCE, status, reason, message, "", record.generation)
        before = next((each for each in record.status.conditions if each.type == IN_FORCE), None)
        conditions = (with_transition_time(condition, before, now),)
        accepted = None if held is None else held.spec
        yield (
            record,
            DocumentStatus(observed_generation=record.generation, accepted=accepted, conditions=conditions),
        )


def _verdict(
    document: Document, held: Document | None, evaluated: EvaluatedDocuments
) -> tuple[str, str, str]:
    """Return status, reason and message of the condition; `held` is the version in force."""
    own = [problem for problem in evaluated.problems if problem.document == document.title]
    if own:
        stays = "the previous version stays in force" if held is not None else "it is not in force"
        lines = [f"{problem.path}: {problem.message}" for problem in own]
        heading = f"{stays}; {len(own)} problems:" if len(own) > 1 else f"{stays}:"
        return FALSE, "Invalid", "\n".join([heading, *lines])
    if held is not None and held.spec == document.spec:
        return TRUE, "Accepted", "admission decides by it"
    others = ", ".join(dict.fromkeys(problem.document for problem in evaluated.problems))
    return FALSE, "HeldBack", f"valid, but the documents take effect together: correct {others}"
