"""Review of our own documents at `kubectl apply`: the set that would be in force is checked as a whole, with the candidate.

A problem of the candidate, or of another document because of it, rejects the candidate. A problem that another document already
has is a warning: otherwise two bad documents could never be corrected one by one. A pause is always accepted.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial

import msgspec

from policies.finding import INVALID_DOCUMENT, Finding, Severity
from policies.pods.annotations import INEFFECTIVE_ANNOTATION
from policies.policy import Labels
from policies.quota.team_spec import TeamMatch, limits_warnings
from policies.rule import Mode
from webhook.configuration import documents
from webhook.configuration.advice import REMEDY, UNREVIEWED_KIND, policy_warnings, unregistered_annotations
from webhook.configuration.cluster_source import decode_stored
from webhook.configuration.documents import CONFIGURATION, Document, LocatedProblem
from webhook.configuration.loader import load_objects, problems_of
from webhook.configuration.schema_paths import Schemas, kind_problems
from webhook.configuration.source import ConfigurationSource
from webhook.configuration.workload_kinds import WorkloadKind
from webhook.evaluation.decision import Decision, Outcome
from webhook.serving import admission_review as responses
from webhook.serving.admission_review import AdmissionRequest, Cause, subject_of
from webhook.serving.handler import Review, ReviewResult, advisory_result, allow

_problem = partial(Finding, rule=CONFIGURATION, reason=INVALID_DOCUMENT)
_warning = partial(_problem, severity=Severity.WARNING)
_CORRECT = "correct the path, or install a CustomResourceDefinition that has it"
_UNREAD = _warning(message="was checked by itself alone: the other documents could not be read yet")


class DocumentReviews(msgspec.Struct, frozen=True):
    """Reviews against the documents of `source`."""

    source: ConfigurationSource
    namespaces: Callable[[], Mapping[str, Labels] | None]
    """Returns the labels of all namespaces, None if they are not known."""
    registered: Callable[[], Collection[str]] = tuple
    """Returns the match conditions of the registered webhooks, none if they are not known."""
    teams: Callable[[], Iterable[TeamMatch]] = tuple
    """Returns the ClusterGPUQuotas of the cluster, none if they are not known."""
    schemas: Callable[[Sequence[WorkloadKind]], Schemas] = lambda _kinds: {}
    """Returns the schemas of kinds, as far as they are known."""

    def findings(self, request: AdmissionRequest, now: datetime) -> list[Finding]:
        """Return what there is to say about creating or changing the document. Raises msgspec.ValidationError."""
        if request.operation not in {"CREATE", "UPDATE"}:
            return []
        seen = decode_stored(request.object)
        before = decode_stored(request.old_object).spec if request.operation == "UPDATE" else None
        metadata = seen.metadata
        if before == seen.spec or metadata.deletion_timestamp is not None:
            return []
        name = request.name or metadata.name or metadata.generate_name.rstrip("-")
        document = Document(request.kind.kind, name, dict(seen.spec), metadata.namespace)
        if not self.source.state.read:
            alone = documents.DocumentSet()
            documents.read_document(documents.DocumentLocation("", document.data), alone)
            return [*_findings_on(alone.problems, document), _UNREAD]
        findings = self._problems(document)
        if findings:
            # What it names may have been applied a moment ago; only what is stored now is a reason to deny.
            self.source.refresh()
            findings = self._problems(document)
        if findings and before is not None and _is_only_a_pause(document, before):
            return [msgspec.structs.replace(finding, severity=Severity.WARNING) for finding in findings]
        return findings or list(self._advice(document, now))

    def _configuration_documents(self) -> list[Document]:
        """Return the documents that have to go together. No document names a quota."""
        return [document for document in self.source.documents if document.kind not in documents.QUOTA_SPECS]

    def _problems(self, document: Document) -> list[Finding]:
        known, devices = self._configuration_documents(), self.source.devices
        stored = [other for other in known if other.key != document.key]
        problems = problems_of([*stored, document], devices)
        already = frozenset(problems_of(known, devices))
        findings = list(_findings_on(problems, document))
        for problem in problems:
            if problem.document != document.title and problem not in already:
                message = f"would make {problem.document} unusable: {problem.path}: {problem.message}"
                findings.append(_problem(message=message))
        return findings

    def _advice(self, document: Document, now: datetime) -> Iterator[Finding]:
        if document.kind in documents.QUOTA_SPECS:
            spec = msgspec.convert(document.spec, documents.QUOTA_SPECS[document.kind])
            for path, message in limits_warnings(document.name, spec, self.teams()):
                yield _warning(message=message, path=f"spec.{path}")
            return
        stored = [each for each in self._configuration_documents() if each.key != document.key]
        broken = problems_of(stored)
        if self.source.origin != "cluster":
            yield _warning(message="is not in force: gpu-admission reads its configuration from a directory")
        if broken:
            titles = ", ".join(dict.fromkeys(problem.document for problem in broken))
            yield _warning(message=f"is not in force until these are corrected: {titles}")
        if document.kind == documents.RESOURCE_MAPPING:
            yield from self._mapping_advice(document)
        if document.kind == documents.POLICY:
            bad = {problem.document for problem in broken}
            configuration = load_objects([*(each for each in stored if each.title not in bad), document])
            advice = policy_warnings(configuration, document.name, now, self.namespaces())
            yield from (_warning(message=message, path=path) for path, message in advice)

    def _mapping_advice(self, document: Document) -> Iterator[Finding]:
        read = load_objects([document])
        spec, kinds = read.resource_mappings[document.name], read.own_workload_kinds[document.name]
        for path, key in (
            unregistered_annotations(spec, self.registered()) if spec.fraction_annotations else ()
        ):
            reason = INEFFECTIVE_ANNOTATION
            yield _warning(reason=reason, path=path, value=key, message=UNREVIEWED_KIND, remedy=REMEDY)
        # No denial: the CustomResourceDefinition may come later, or another version of it.
        for path, message in kind_problems(kinds, self.schemas(kinds)):
            yield _warning(path=path, message=message, remedy=_CORRECT)


def _findings_on(problems: Iterable[LocatedProblem], document: Document) -> Iterator[Finding]:
    for problem in problems:
        if problem.document == document.title:
            yield _problem(path=problem.path, message=problem.message)


def _is_only_a_pause(document: Document, before: Mapping[str, object]) -> bool:
    return (
        document.kind == documents.POLICY
        and documents.is_valid_pause(document.spec.get(documents.PAUSE))
        and documents.with_pause(document.spec, None) == documents.with_pause(dict(before), None)
    )


def review_document(review: Review) -> ReviewResult:
    request, check, evaluator = review.request, review.cluster.check_document, review.evaluator
    if check is None:
        return allow(review)
    findings = review.decode(lambda _raw: check(request, evaluator.now), request.object)
    policy = evaluator.configuration.policies.for_namespace(request.namespace)
    decision = Decision.of_findings(policy, findings, Mode.ENFORCE)
    if decision.allowed:
        return advisory_result(request, [decision])
    causes = tuple(Cause(finding.path, finding.message) for finding in decision.findings(Outcome.DENIED))
    warnings = responses.warning_texts(decision.findings(Outcome.WARNED), subject=subject_of(request))
    name = responses.object_name(request)
    response = responses.invalid_document(request.uid, request.kind, name, causes, warnings)
    return ReviewResult(response, [decision], name)
