"""Proposals as YAML: the object corrected, so that it is admitted, and with what the webhook then adds.

A correction is the object with the first choices of its denials and warnings.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from difflib import unified_diff
from functools import partial
from itertools import chain, islice
from time import monotonic
from typing import Any

import jsonpatch
import msgspec

from policies.finding import Edits, Finding, as_plain_data
from policies.pods.field_paths import path_parts, with_edits
from policies.registry import QUOTA_RULE
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, without_deep_values
from webhook.cluster.objects import InstallationNames
from webhook.configuration.yaml_documents import dump_document
from webhook.evaluation.decision import Outcome, Violation
from webhook.evaluation.evaluator import Evaluator
from webhook.tools.corrections import correct, is_better
from webhook.tools.scan.scanning import ClusterFacts
from webhook.tools.status.freshness import figures_until
from webhook.tools.status.quotas import quota_from_status
from webhook.tools.status.summaries import DeniedOwner
from webhook.tools.status.teams import effective_ledger
from webhook.tools.status.tolerant_reader import TolerantReader
from webhook.tools.stored_objects import Evaluation, StoredObjectVerdict, evaluate
from webhook.tools.why.case import read_author
from webhook.tools.why.discovery import ServedKinds, UnknownKindError

MAX_CORRECTED = 32
"""Findings whose first choices are tried in a round; each try takes about a millisecond."""
MAX_PROPOSALS = 20
"""Each takes requests to the API server."""
MAX_AGE_SECONDS = 30.0
"""Older proposals are made again."""

_METADATA = ("name", "namespace", "labels", "annotations")
"""What authors write of metadata."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

DiffLine = tuple[str, str]
"""How a line of a difference looks (`plus`, `minus`, `place` or ""), and its text."""


class ObjectProposal(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on an object, `Kind/name`, and as a diff what to write instead: `correction`, empty where none was found.

    `is_accepted`: with the correction nothing would be denied, if the quota were unused. `no_room`: what the quota, as it is
    used now, says of it then. `injected`: what the webhook adds then.
    """

    title: str
    verdict: StoredObjectVerdict
    is_accepted: bool
    no_room: str = ""
    correction: tuple[DiffLine, ...] = ()
    injected: tuple[DiffLine, ...] = ()


class ProposalReader:
    """Makes proposals from one reading of configuration and kinds. Raises `errors.ApiError`, UnknownKindError."""

    def __init__(self, api: ApiClient, now: datetime) -> None:
        self._reader, self._now = TolerantReader(api), now
        self._kinds, self._configuration = ServedKinds(api), self._reader.configuration(None)

    def propose(self, kind: str, name: str, namespace: str) -> ObjectProposal | None:
        """Return the proposal for the object, or for what made it; None where it is gone or the policy is not readable."""
        served = self._kinds.find(kind)
        try:
            document = without_deep_values(self._reader.api.get(served.resource.path(namespace, name)))
        except errors.NotFound:
            return None
        reader, configuration = self._reader, self._configuration
        served, document = read_author(reader, self._kinds, namespace, served, document)
        data = msgspec.json.decode(document, type=dict[str, Any])
        if reader.policy_of(configuration, namespace) is None:
            return None
        evaluator = ClusterFacts(reader, namespace).evaluator(configuration, self._now)

        def evaluated(evaluator: Evaluator, document: Any) -> Evaluation:
            return evaluate(served.group, served.kind, namespace, msgspec.json.encode(document), evaluator)

        corrected, evaluation = correct_object(data, partial(evaluated, evaluator))
        is_accepted = evaluation.verdict in {StoredObjectVerdict.CHANGED, StoredObjectVerdict.ACCEPTED}
        no_room = ""
        if is_accepted:
            ledger = effective_ledger(reader, namespace, reader.quota(namespace), self._now)
            has_controller = figures_until(reader, InstallationNames(), self._now) is None
            quota = quota_from_status(ledger, configuration, has_controller=has_controller)
            by_quota = evaluated(
                msgspec.structs.replace(evaluator, quota_of=lambda _namespace: quota), corrected
            )
            no_room = next(
                (finding.finding.message for finding in by_quota.findings() if _is_quota_finding(finding)), ""
            )
        return ObjectProposal(
            title=f"{served.kind}/{data['metadata']['name']}",
            verdict=evaluated(evaluator, data).verdict,
            is_accepted=is_accepted,
            no_room=no_room,
            correction=tuple(diff_lines(data, corrected)),
            injected=tuple(diff_lines(*_before_and_after(corrected, evaluation))) if is_accepted else (),
        )


def correct_object(data: Any, evaluate: Callable[[Any], Evaluation]) -> tuple[Any, Evaluation]:
    """Return the object, as plain data, with the first choices of its denials and warnings, and its evaluation."""
    current, evaluation = data, evaluate(data)
    rejected: set[Finding] = set()

    def wanted() -> list[Violation]:
        visible = (finding for finding in evaluation.findings() if finding.outcome is not Outcome.AUDITED)
        left = (each for each in visible if _first_choice(each.finding) and each.finding not in rejected)
        return list(islice(left, MAX_CORRECTED))

    def attempt(violations: Sequence[Violation]) -> bool:
        nonlocal current, evaluation
        edits = dict.fromkeys(chain.from_iterable(_first_choice(each.finding) for each in violations))
        trial = with_edits(current, [(path_parts(edit.path), as_plain_data(edit.value)) for edit in edits])
        tried = evaluate(trial)
        if tried.unreadable or not is_better(evaluation.findings(), tried.findings(), violations):
            rejected.update(violation.finding for violation in violations if len(violations) == 1)
            return False
        current, evaluation = trial, tried
        return True

    correct(wanted, attempt)
    return current, evaluation


def _first_choice(finding: Finding) -> Edits:
    """Return the first choice, unless only the author knows the value."""
    return () if finding.is_example else next(iter(finding.choices), ())


def _is_quota_finding(violation: Violation) -> bool:
    """Whether the quota denies a pod, or warns of the pods of a workload."""
    return violation.finding.rule == QUOTA_RULE.id and violation.outcome is not Outcome.AUDITED


class DenialProposals:
    """Proposals for the owners that were denied last; made when somebody looks, and again when they are old."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._made_at = 0.0
        self._made: dict[DeniedOwner, ObjectProposal | None] = {}

    def of(
        self, denials: Sequence[DeniedOwner], now: datetime
    ) -> Mapping[DeniedOwner, ObjectProposal | None]:
        """Return the proposals that could be made. Raises `errors.ApiError`."""
        shown = denials[:MAX_PROPOSALS]
        with self._lock:
            if monotonic() - self._made_at > MAX_AGE_SECONDS:
                self._made, self._made_at = {}, monotonic()
            made = self._made
            if missing := [owner for owner in shown if owner not in made]:
                reader = ProposalReader(self._api, now)
                made = made | {
                    owner: _proposal_for(reader, owner) for owner in missing
                }  # the old one is another request's
            self._made = {owner: made[owner] for owner in shown}
            return self._made


def _proposal_for(reader: ProposalReader, denial: DeniedOwner) -> ObjectProposal | None:
    kind, _, name = denial.owner.partition("/")
    try:
        return reader.propose(kind, name, denial.namespace)
    except (errors.Forbidden, UnknownKindError, RecursionError):  # the last one: YAML that is nested deeply
        return None


def _before_and_after(data: dict[str, Any], evaluation: Evaluation) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a workload with its templates as the webhook gets their pods, and as it admits them.

    A stored pod has all changes already.
    """
    admitted = data
    for pod in evaluation.pods:
        operations = [operation for change in pod.changes for operation in change.operations]
        if operations and pod.place.data:
            patch = msgspec.json.decode(msgspec.json.encode(operations))
            data = pod.place.replaced(data, pod.place.data)
            admitted = pod.place.replaced(admitted, jsonpatch.apply_patch(pod.place.data, patch))
    return data, admitted


def diff_lines(before: dict[str, Any], after: dict[str, Any]) -> Iterator[DiffLine]:
    """Yield the lines of the YAML that differ, with two around them, without fields that only the cluster writes."""
    if before == after:
        return
    lines = [dump_document(_as_authored(proposed)).splitlines() for proposed in (before, after)]
    for number, line in enumerate(unified_diff(lines[0], lines[1], lineterm="", n=2)):
        if number > 1:  # after the names of the two files
            look = {"+": "plus", "-": "minus", "@": "place"}.get(line[:1], "")
            yield look, "⋯" if look == "place" else line


def _as_authored(data: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in data["metadata"].items() if key in _METADATA}
    annotations = {key: text for key, text in metadata.pop("annotations", {}).items() if key != _LAST_APPLIED}
    if annotations:
        metadata["annotations"] = annotations
    return {**{key: value for key, value in data.items() if key != "status"}, "metadata": metadata}
