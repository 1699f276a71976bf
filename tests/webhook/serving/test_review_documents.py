"""Review of our own documents where the configuration is a directory; the same with a cluster is in tests/cluster."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from policies.finding import Severity
from policies.quota.team_spec import TeamMatch, TeamNamespaces
from tests.cases import cases
from tests.webhook.serving import served
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_directory
from webhook.configuration.source import ConfigurationSource, ConfigurationState, DirectorySource
from webhook.serving import admission_review
from webhook.serving.admission_review import AdmissionRequest, AdmissionResponse
from webhook.serving.deadline import deadline_of
from webhook.serving.review_documents import DocumentReviews

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
FILE = """\
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec: {rules: {gpu-class: {default: card}}}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUClass
metadata: {name: card}
spec: {memoryGiB: 8, nodeLabels: [{key: accelerator, values: [card]}]}
"""
UNUSED = "is not in force: gpu-admission reads its configuration from a directory"
Spec = dict[str, Any]


def request(document: Document, before: Spec | None = None, **metadata: Any) -> AdmissionRequest:
    body = {**document.data, "metadata": {**document.data["metadata"], **metadata}}
    kind = {"group": "gpu-admission.dev", "version": "v1alpha1", "kind": document.kind}
    changed = {} if before is None else {"operation": "UPDATE", "oldObject": {**body, "spec": before}}
    return served.request(body, kind=kind, name=document.name, namespace=document.namespace, **changed)


@pytest.fixture
def source(tmp_path: Path) -> DirectorySource:
    (tmp_path / "all.yaml").write_text(FILE)
    return DirectorySource(tmp_path, lambda _state: None)


NOT_HELD = (
    "TotalOnly lets pods that pin no class exceed hard.classes: they count for a class only once they are bound; "
    "set MostExpensive, or Deny"
)


def reported(
    source: ConfigurationSource, document: Document, before: Spec | None = None, **metadata: Any
) -> list[str]:
    found = DocumentReviews(source, lambda: None).findings(request(document, before, **metadata), NOW)
    return [f"{each.severity.value} {each.path}: {each.message}" for each in found]


@cases(
    ("document", "want"),
    good=(Document("GPUClass", "other", {"memoryGiB": 8}), [f"warning : {UNUSED}"]),
    everything_wrong=(Document("GPUClass", "other", {"memoryGiB": 0, "resource": "gpu"}), [
            "denial spec.memoryGiB: must be at least 1, not 0",
            'denial spec.resource: must be an extended resource such as nvidia.com/gpu, not "gpu"',
        ]),
    a_rule_that_cannot_be_read=(
        Document("GPUPolicy", "other", {"priority": 1, "rules": {"gpu-class": {"default": "cadr", "mode": "warm"}}}),
        [
            'denial spec.rules.gpu-class.default: must be a class or a family, not "cadr": did you mean card?',
            'denial spec.rules.gpu-class.mode: Unsupported value: "warm": must be one of enforce, warn, audit, disabled; '
            "did you mean warn?"
        ]),
    references_are_reported_beside_what_cannot_be_read=(
        Document("GPUPolicy", "other", {"priority": True, "rules": {"gpu-class": {"default": "cadr"}}}),
        [
            "denial spec.priority: must be a whole number, not true or false",
            'denial spec.rules.gpu-class.default: must be a class or a family, not "cadr": did you mean card?',
        ]),
    quota_of_what_is_no_gpu=(
        Document("GPUQuota", "default", {"hard": {"gpus": "1", "resources": {"example.com/dongle": "1"}}}, "team"),
        [
            "denial spec.hard.resources[example.com/dongle]: "
            "must be a GPU resource: nothing else counts for a quota"
        ]),
    good_quota=(
        Document("GPUQuota", "default", {"hard": {"classes": {"card": "1"}, "resources": {"nvidia.com/gpu": "1"}}}, "team"),
        []),
    limits_by_class_that_are_not_held=(
        Document("GPUQuota", "default", {"hard": {"classes": {"card": "1"}}, "unclassifiedPods": "TotalOnly"}, "team"),
        [f"warning spec.unclassifiedPods: {NOT_HELD}"]),
    total_only_of_a_total=(
        Document("GPUQuota", "default", {"hard": {"gpus": "1"}, "unclassifiedPods": "TotalOnly"}, "team"),
        []),
)  # fmt: skip
def test_creation(source: DirectorySource, document: Document, want: list[str]) -> None:
    assert reported(source, document) == want


IN_FORCE = tuple(
    TeamMatch(name, TeamNamespaces(names=names))
    for name, names in {"other": ("vision-*", "ocr"), "team": ("speech",)}.items()
)


@cases(
    ("spec", "want"),
    good=({"namespaces": {"names": ["speech"]}, "hard": {"gpus": 8, "classes": {"card": 2}}}, []),
    everything_wrong=(
        {"namespaces": {}, "hard": {"gpus": "x", "classes": {"cadr": 1}}, "guaranteed": {"a": {"resources": {"r": 1}}}},
        [
            'denial spec.hard.gpus: must be an amount such as 16, "0.5" or "2/7", not "x"',
            "denial spec.guaranteed.a: must match an entry of namespaces.names",
            "denial spec.guaranteed.a.resources.r: must be limited by hard.resources[r], too",
            "denial spec.hard.classes.cadr: must be a GPU class or family; did you mean card?",
            "denial spec.namespaces: must have names, selector or both",
        ]),
    more_guaranteed_than_granted=(
        {"namespaces": {"names": ["a"]}, "hard": {"gpus": 1}, "guaranteed": {"a": {"gpus": 2}}},
        ["denial spec.guaranteed: must not exceed hard in sum: gpus is 2, and hard has 1"]),
    mistyped=(
        {"namespace": {"names": ["a"]}, "hard": {"gpus": 1}},
        [
            "denial spec.namespace: unknown field; did you mean namespaces?",
            "denial spec.namespaces: Required value",
        ]),
    what_may_not_be_meant=(
        {"namespaces": {"names": ["vision-prod"]}, "hard": {"classes": {"card": 2}}, "unclassifiedPods": "TotalOnly"},
        [
            "warning spec.hard: does not limit gpus: only its classes limit the team",
            f"warning spec.unclassifiedPods: {NOT_HELD}",
            "warning spec.namespaces.names[0]: overlaps vision-* of ClusterGPUQuota other: a namespace that both match "
            "belongs to team",
        ]),
)  # fmt: skip
def test_a_team(source: DirectorySource, spec: Spec, want: list[str]) -> None:
    """The one of its own name is what it replaces."""
    reviews = DocumentReviews(source, lambda: None, teams=lambda: IN_FORCE)
    found = reviews.findings(request(Document("ClusterGPUQuota", "team", spec)), NOW)

    assert sorted(f"{each.severity.value} {each.path}: {each.message}" for each in found) == sorted(want)


class Fixed(ConfigurationSource):
    """A source of what a test says; `later` is what a refresh brings."""

    origin = "cluster"

    def __init__(self, *documents: Document, later: tuple[Document, ...] = (), read: bool = True) -> None:
        super().__init__(None, lambda _state: None)
        self._documents, self._later = documents, later
        self.state = ConfigurationState("1", 0.0, read=read)
        self.configuration = load_directory(None)

    @property
    def documents(self) -> tuple[Document, ...]:
        return self._documents

    def refresh(self) -> None:
        self._documents += self._later


CARD = Document("GPUClass", "card", {"memoryGiB": 8, "family": "cards"})
BROKEN = Document(
    "GPUPolicy", "broken", {"match": {"namespaces": ["broken"]}, "rules": {"gpu-class": {"default": "none"}}}
)
USES = Document("GPUPolicy", "uses", {"rules": {"gpu-class": {"default": "cards"}}})
OTHER = Document("GPUPolicy", "other", {"match": {"namespaces": ["other"]}, "priority": 1})
UNTIL = "2026-11-21T12:30:00Z"


def test_a_change_that_would_break_others_is_refused() -> None:
    changed = Document("GPUClass", "card", {"memoryGiB": 8, "family": "boards"})

    assert reported(Fixed(CARD, USES), changed, CARD.spec) == [
        "denial : would make GPUPolicy/uses unusable: spec.rules.gpu-class.default: must be a class or a "
        'family, not "cards": did you mean card?'
    ]


def test_what_is_wrong_elsewhere_is_told_and_stops_nobody() -> None:
    assert reported(Fixed(BROKEN, CARD), OTHER) == [
        "warning : is not in force until these are corrected: GPUPolicy/broken"
    ]


def test_what_came_a_moment_ago_is_read_before_anything_is_refused() -> None:
    assert reported(Fixed(later=(CARD,)), USES) == []
    assert reported(Fixed(), USES) != []


def test_without_the_other_documents_only_the_document_itself_is_checked() -> None:
    bad = Document("GPUPolicy", "uses", {**USES.spec, "templates": "audit"})

    assert reported(Fixed(read=False), USES) == [
        "warning : was checked by itself alone: the other documents could not be read yet"
    ]
    assert (
        reported(Fixed(read=False), bad)[0]
        == 'denial spec.templates: Unsupported value: "audit": must be one of warn, enforce'
    )


@cases(
    ("spec", "want"),
    pause=({**BROKEN.spec, "pausedUntil": UNTIL}, "warning"),
    no_moment=({**BROKEN.spec, "pausedUntil": "soon"}, "denial"),
    more_than_a_pause=({**BROKEN.spec, "pausedUntil": UNTIL, "priority": 2}, "denial"),
)
def test_a_pause_is_never_refused(spec: Spec, want: str) -> None:
    found = reported(Fixed(BROKEN), Document("GPUPolicy", "broken", spec), BROKEN.spec)

    assert {each.partition(" ")[0] for each in found} == {want}


@cases(
    ("before", "metadata"),
    unchanged=(BROKEN.spec, {"labels": {"a": "b"}}),
    being_deleted=({}, {"deletionTimestamp": "2026-11-21T12:00:00Z"}),
)
def test_what_does_not_matter_is_let_in(before: Spec, metadata: Spec) -> None:
    assert reported(Fixed(), BROKEN, before, **metadata) == []


def answered(source: Fixed, requested: AdmissionRequest) -> AdmissionResponse:
    admission = served.admission(check_document=DocumentReviews(source, lambda: None).findings)
    return admission.validate(requested, deadline_of(None))


def test_a_refusal_is_what_the_api_server_says_of_an_invalid_object() -> None:
    response = answered(Fixed(), request(BROKEN))

    assert msgspec.json.decode(msgspec.json.encode(response.status)) == {
        "code": 422,
        "reason": "Invalid",
        "message": 'GPUPolicy broken: spec.rules.gpu-class.default: must be a class or a family, not "none"',
        "details": {
            "group": "gpu-admission.dev",
            "kind": "GPUPolicy",
            "name": "broken",
            "causes": [
                {
                    "field": "spec.rules.gpu-class.default",
                    "message": 'must be a class or a family, not "none"',
                    "reason": "FieldValueInvalid",
                }
            ],
        },
    }


def test_advice_is_a_warning() -> None:
    response = answered(Fixed(BROKEN), request(OTHER))

    assert response.allowed
    assert response.warnings == (
        "GPUPolicy other: is not in force until these are corrected: GPUPolicy/broken [configuration]",
    )


def test_what_is_no_document_is_unreadable() -> None:
    requested = request(OTHER)
    broken = msgspec.structs.replace(requested, object=msgspec.Raw(b'{"metadata": {}, "spec": []}'))

    assert answered(Fixed(), broken).status == admission_review.Status(
        400,
        "BadRequest",
        "gpu-admission cannot read the object: Expected `object`, got `array` - at `$.spec`",
    )


PART = {
    "fractionAnnotations": [
        {"key": "gpu-memory", "measure": "memoryMiB"},
        {"key": "example.com/part", "measure": "fraction"},
    ]
}


@cases(
    ("conditions", "want"),
    nobody_knows=((), []),
    every_pod_is_sent=(["has(object.spec)"], []),
    known=(["k == 'gpu-fraction' || k == 'example.com/part'"], []),
    another=(["k == 'gpu-fraction' || k == 'example.com/parts'"], ["spec.fractionAnnotations[1].key"]),
    known_at_creation_only=(
        ["k == 'gpu-fraction' || k == 'example.com/part'", "['gpu-fraction'].exists(k, true)"],
        ["spec.fractionAnnotations[1].key"],
    ),
)
def test_a_fraction_annotation_that_the_registration_lacks_is_a_warning(
    source: DirectorySource, conditions: Sequence[str], want: list[str]
) -> None:
    reviewed = DocumentReviews(source, lambda: None, lambda: conditions)
    found = reviewed.findings(request(Document("GPUResourceMapping", "ours", PART)), NOW)

    assert {each.severity for each in found} == {Severity.WARNING}
    assert [each.path for each in found if each.path] == want


def test_a_path_that_the_schema_of_its_kind_lacks_is_a_warning(source: DirectorySource) -> None:
    row = {"group": "example.com", "kind": "TrainingJob", "pods": [{"path": "spec.wokers"}]}
    document = Document("GPUResourceMapping", "ours", {"workloadKinds": [row]})
    schema = {"properties": {"spec": {"properties": {"workers": {"type": "array"}}}}}

    reviews = DocumentReviews(source, lambda: None, schemas=lambda kinds: {kinds[0].key: (schema,)})
    found = reviews.findings(request(document), NOW)

    assert [(each.severity, each.sentence()) for each in found if each.path] == [
        (
            Severity.WARNING,
            "spec.workloadKinds[0].pods[0].path: correct the path, or install a CustomResourceDefinition that has it; must be a "
            "path of the CustomResourceDefinition: spec has no field wokers; did you mean workers? [configuration]",
        )
    ]
