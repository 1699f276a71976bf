"""The status of a document: in force, invalid with every problem, or held back by another document."""

from collections.abc import Iterator
from datetime import datetime

from policies.printable import printable_lines
from webhook.cluster.objects import FALSE, TRUE, Condition, with_transition_time
from webhook.configuration.cluster_source import DocumentStatus, EvaluatedDocuments, Record
from webhook.configuration.documents import Document

IN_FORCE, INVALID = "InForce", "Invalid"
LONGEST_MESSAGE = 8000
"""Characters of the message of a condition. Kubernetes allows 32768 in its own kinds."""


def statuses(evaluated: EvaluatedDocuments, now: datetime) -> Iterator[tuple[Record, DocumentStatus]]:
    in_force = {document.key: document for document in evaluated.documents}
    for record in evaluated.records:
        held = in_force.get(record.document.key)
        status, reason, message = _verdict(record.document, held, evaluated)
        message = printable_lines(message[:LONGEST_MESSAGE])  # problems quote the document
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
    """Return status, reason and message of the condition. `held` is the version in force."""
    own = [problem for problem in evaluated.problems if problem.document == document.title]
    if own:
        stays = "the previous version stays in force" if held is not None else "it is not in force"
        lines = [f"{problem.path}: {problem.message}" for problem in own]
        heading = f"{stays}; {len(own)} problems:" if len(own) > 1 else f"{stays}:"
        return FALSE, INVALID, "\n".join([heading, *lines])
    if held is not None and held.spec == document.spec:
        return TRUE, "Accepted", "admission decides by it"
    blocking = ", ".join(dict.fromkeys(problem.document for problem in evaluated.problems))
    return FALSE, "HeldBack", f"valid, but the documents take effect together: correct {blocking}"
