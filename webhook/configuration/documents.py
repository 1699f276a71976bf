"""Documents: plain data to policy, class, resource mapping or quota, and every problem of one.

`read_document` fills a `DocumentSet`; `check_references` checks what documents say about one another, once all have been read.
"""

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from policies.gpus import classes
from policies.gpus.classes import ClassCatalogue, GPUClass, GPUClassSpec
from policies.gpus.resource_mapping import ResourceMapping, ResourceMappingSpec
from policies.pods.field_paths import Parts, path_parts
from policies.pods.label_selector import LabelSelector
from policies.pods.names import is_dns_label, is_dns_subdomain
from policies.policy import Exemption, Match, Policy, PolicySpec, TemplateMode
from policies.quota import spec as quota
from policies.quota.spec import QuotaSpec
from policies.registry import RULES_BY_ID
from policies.rule import RuleOptions
from webhook.configuration.decoding import REQUIRED, Problem, decode, suggestion, unsupported
from webhook.configuration.yaml_documents import YamlDocument

GROUP = "gpu-admission.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
POLICY, CLASS, RESOURCE_MAPPING, QUOTA = "GPUPolicy", "GPUClass", "GPUResourceMapping", "GPUQuota"
SELECTOR, PAUSE = "namespaceSelector", "pausedUntil"
KINDS = (CLASS, POLICY, QUOTA, RESOURCE_MAPPING)
T = TypeVar("T")


class Document(msgspec.Struct, frozen=True):
    """One document as plain data. Only a GPUQuota has a `namespace`."""

    kind: str
    name: str
    spec: dict[str, Any]
    namespace: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Return what identifies it: (kind, name), for a GPUQuota (kind, namespace)."""
        return self.kind, self.namespace or self.name

    @property
    def title(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def data(self) -> dict[str, Any]:
        metadata = {"name": self.name, **({"namespace": self.namespace} if self.namespace else {})}
        return {"apiVersion": API_VERSION, "kind": self.kind, "metadata": metadata, "spec": self.spec}


class LocatedProblem(msgspec.Struct, frozen=True, order=True):
    """A problem of the configuration and its location: `policy.yaml:12: GPUPolicy/default spec.rules.…: …`.

    `file` is empty and `line` 0 for objects of a cluster.
    """

    file: str
    line: int
    document: str
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        subject = " ".join(part for part in (self.document, self.path) if part)
        return ": ".join(part for part in (place, subject, self.message) if part)


class DocumentLocation(msgspec.Struct, frozen=True):
    """A document and its location: in a file, or (without `node`) in the cluster."""

    file: str
    data: Any
    node: YamlDocument | None = None

    @property
    def start(self) -> str:
        return f"{self.file}:{self.node.start_line}" if self.node else _title(self.data)

    def problem(self, problem: Problem) -> LocatedProblem:
        line = self.node.line_of(problem.parts) if self.node else 0
        return LocatedProblem(self.file, line, _title(self.data), problem.path, problem.message)


class ClassReference(msgspec.Struct, frozen=True):
    """Options of a rule, which may name classes, and their location."""

    place: DocumentLocation
    at: Parts
    options: RuleOptions


class DocumentSet:
    """Everything read so far. `references` include those of documents that have problems."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, str], DocumentLocation] = {}
        self.documents: list[Document] = []
        self.problems: list[LocatedProblem] = []
        self.policies: dict[str, Policy] = {}
        self.classes: dict[str, GPUClass] = {}
        self.resource_mappings: dict[str, ResourceMappingSpec] = {}
        self.quotas: dict[str, QuotaSpec] = {}
        self.references: list[ClassReference] = []
        self.unreadable: set[str] = set()
        """Kinds of which a document is not valid: references to them cannot be checked."""


class _PolicyDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Spec of a GPUPolicy with the options of its rules as plain data."""

    priority: int = 0
    match: Match = Match()
    paused_until: datetime | None = None
    exemptions: tuple[Exemption, ...] = ()
    templates: TemplateMode = TemplateMode.WARN
    rules: dict[str, Any] = {}


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    metadata: _Metadata
    spec: dict[str, Any]


def read_document(place: DocumentLocation, collected: DocumentSet) -> None:
    """Read the document at `place` into `collected`."""
    problems: list[Problem] = []
    envelope = _envelope(place.data, problems)
    if envelope is not None:
        _check_duplicate(envelope, place, collected, problems)
        metadata = envelope.metadata
        collected.documents.append(
            Document(envelope.kind, metadata.name, envelope.spec, metadata.namespace or "")
        )
        readers = {
            POLICY: _read_policy,
            CLASS: _read_class,
            RESOURCE_MAPPING: _read_resource_mapping,
            QUOTA: _read_quota,
        }
        readers[envelope.kind](envelope, place, collected, problems)
    if problems and isinstance(place.data, dict):
        collected.unreadable.add(str(place.data.get("kind")))
    collected.problems.extend(place.problem(problem) for problem in problems)


def _title(data: Any) -> str:
    if not isinstance(data, dict):
        return ""
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{data.get('kind', '?')}/{name or '?'}"


def _envelope(data: Any, problems: list[Problem]) -> _Document | None:
    if isinstance(data, dict) and data.get("apiVersion") != API_VERSION:
        problems.append(Problem(("apiVersion",), unsupported(str(data.get("apiVersion")), [API_VERSION])))
        return None
    if isinstance(data, dict) and data.get("kind") not in KINDS:
        kind = str(data.get("kind"))
        problems.append(Problem(("kind",), unsupported(kind, list(KINDS))))
        return None
    envelope = decode(_Document, data, (), problems)
    if envelope is not None and not is_dns_subdomain(envelope.metadata.name):
        problems.append(Problem(("metadata", "name"), "must consist of lower case letters, digits, - and ."))
        return None
    if envelope is not None and not _is_well_placed(envelope, problems):
        return None
    return envelope


def _is_well_placed(envelope: _Document, problems: list[Problem]) -> bool:
    """Check namespace and name by kind: a namespace has one quota, and nothing else has a namespace."""
    kind, metadata, before = envelope.kind, envelope.metadata, len(problems)
    if kind != QUOTA:
        if metadata.namespace is not None:
            problems.append(
                Problem(("metadata", "namespace"), f"must be omitted: a {kind} is cluster-scoped")
            )
    else:
        if metadata.namespace is None:
            problems.append(Problem(("metadata", "namespace"), REQUIRED))
        elif not is_dns_label(metadata.namespace):
            problems.append(
                Problem(
                    ("metadata", "namespace"), "must consist of at most 63 lower case letters, digits and -"
                )
            )
        if metadata.name != quota.NAME:
            problems.append(
                Problem(("metadata", "name"), f"must be {quota.NAME}: a namespace has at most one GPUQuota")
            )
    return len(problems) == before


def _check_duplicate(
    envelope: _Document, place: DocumentLocation, collected: DocumentSet, problems: list[Problem]
) -> None:
    namespace, name = envelope.metadata.namespace, envelope.metadata.name
    first = collected.places.setdefault((envelope.kind, namespace or name), place)
    if first is not place:
        at = "namespace" if namespace else "name"
        problems.append(
            Problem(("metadata", at), f'Duplicate value: "{namespace or name}", also in {first.start}')
        )


def _read_class(
    document: _Document, _place: DocumentLocation, collected: DocumentSet, problems: list[Problem]
) -> None:
    spec = decode(GPUClassSpec, document.spec, ("spec",), problems)
    if spec is None:
        return
    name = document.metadata.name
    problems.extend(Problem(path_parts(path), text) for path, text in classes.problems(name, spec))
    collected.classes[name] = GPUClass.of(name, spec)


def _read_resource_mapping(
    document: _Document, _place: DocumentLocation, collected: DocumentSet, problems: list[Problem]
) -> None:
    spec = decode(ResourceMappingSpec, document.spec, ("spec",), problems)
    if spec is None:
        return
    problems.extend(Problem(("spec", *path_parts(path)), text) for path, text in spec.problems())
    collected.resource_mappings[document.metadata.name] = spec


def _read_quota(
    document: _Document, _place: DocumentLocation, collected: DocumentSet, problems: list[Problem]
) -> None:
    spec = decode(QuotaSpec, document.spec, ("spec",), problems)
    if spec is None:
        return
    problems.extend(Problem(("spec", *path_parts(path)), text) for path, text in spec.problems())
    collected.quotas[document.metadata.namespace or ""] = spec


def _read_policy(
    document: _Document, place: DocumentLocation, collected: DocumentSet, problems: list[Problem]
) -> None:
    before = len(problems)
    spec = decode(_PolicyDocument, document.spec, ("spec",), problems)
    raw_rules = document.spec.get("rules")
    rules = _read_rules(raw_rules, problems) if isinstance(raw_rules, dict) else {}
    collected.references.extend(
        ClassReference(place, ("spec", "rules", rule_id), options) for rule_id, options in rules.items()
    )
    _check_policy(document.spec, problems)
    if spec is None or len(problems) > before:
        return
    name = document.metadata.name
    collected.policies[name] = Policy(
        name=name,
        version=digest(msgspec.json.encode(document.spec, order="sorted").decode()),
        spec=PolicySpec(
            priority=spec.priority,
            match=spec.match,
            paused_until=spec.paused_until,
            exemptions=spec.exemptions,
            templates=spec.templates,
            rules=rules,
        ),
    )


def _read_rules(raw: dict[str, Any], problems: list[Problem]) -> dict[str, RuleOptions]:
    """Return the options of the rules that are valid."""
    rules: dict[str, RuleOptions] = {}
    for rule_id, data in raw.items():
        at: Parts = ("spec", "rules", str(rule_id))
        rule = RULES_BY_ID.get(str(rule_id))
        if rule is None:
            problems.append(Problem(at, unknown_rule(str(rule_id))))
            continue
        options = decode(rule.options, data, at, problems)
        if options is not None:
            found = [Problem((*at, *path_parts(path)), text) for path, text in options.problems()]
            problems.extend(found)
            if not found:
                rules[rule_id] = options
    return rules


def _check_policy(spec: dict[str, Any], problems: list[Problem]) -> None:
    """Check each part of the spec that can be decoded."""
    match = _part(Match, spec.get("match"), ("spec", "match"))
    if match is not None:
        if not match.namespaces:
            at: Parts = ("spec", "match", "namespaces")
            problems.append(Problem(at, 'must name at least one namespace; "*" matches all'))
        _check_selector(match.namespace_selector, ("spec", "match"), problems)
    until = _part(datetime, spec.get(PAUSE), ("spec", PAUSE))
    if until is not None and until.tzinfo is None:
        problems.append(Problem(("spec", PAUSE), "must have a time zone, such as 2027-01-31T18:00:00Z"))
    exemptions = spec.get("exemptions")
    for index, raw in enumerate(exemptions if isinstance(exemptions, list) else ()):
        exemption = _part(Exemption, raw, ("spec", "exemptions", index))
        if exemption is not None:
            _check_exemption(exemption, ("spec", "exemptions", index), problems)


def _part(kind: type[T], data: Any, at: Parts) -> T | None:
    """Return a part of a document; None if it is absent or not valid, which is a problem of the whole."""
    return None if data is None else decode(kind, data, at, [])


def _check_exemption(exemption: Exemption, at: Parts, problems: list[Problem]) -> None:
    if not exemption.namespaces:
        problems.append(Problem((*at, "namespaces"), "must name at least one namespace"))
    if not exemption.reason.strip():
        problems.append(Problem((*at, "reason"), "must say why the exemption exists"))
    _check_selector(exemption.namespace_selector, at, problems)
    for position, rule_id in enumerate(exemption.rules or ()):
        if rule_id not in RULES_BY_ID:
            problems.append(Problem((*at, "rules", position), unknown_rule(rule_id)))


def unknown_rule(rule_id: str) -> str:
    return f'unknown rule "{rule_id}"{suggestion(rule_id, list(RULES_BY_ID))}'


def _check_selector(selector: LabelSelector | None, at: Parts, problems: list[Problem]) -> None:
    if selector is not None:
        where = (*at, SELECTOR)
        problems.extend(Problem((*where, *path_parts(path)), text) for path, text in selector.problems())


def check_references(
    collected: DocumentSet, catalogue: ClassCatalogue, resource_mapping: ResourceMapping
) -> None:
    """Check the classes and resources that documents refer to."""
    if CLASS not in collected.unreadable:
        for place, at, options in map(msgspec.structs.astuple, collected.references):
            collected.problems.extend(
                place.problem(Problem((*at, *path_parts(path)), message))
                for path, message in options.class_problems(catalogue)
            )
    for namespace, spec in collected.quotas.items():
        place = collected.places[QUOTA, namespace]
        collected.problems.extend(
            place.problem(problem)
            for problem, kind in quota_problems(spec, catalogue, resource_mapping)
            if kind not in collected.unreadable
        )


def quota_problems(
    spec: QuotaSpec, catalogue: ClassCatalogue, resource_mapping: ResourceMapping
) -> Iterator[tuple[Problem, str]]:
    """Yield the limits to which nothing would ever be charged, and the kind of document that would define them."""
    for name in spec.hard.classes:
        if not catalogue.resolve(name):
            near = catalogue.nearest(name)
            message = "must be a GPU class or family" + (f"; did you mean {near}?" if near else "")
            yield Problem(("spec", "hard", "classes", name), message), CLASS
    for name in spec.hard.resources:
        if resource_mapping.resource(name) is None:
            message = "must be a GPU resource: nothing else is charged to a quota"
            yield Problem(("spec", "hard", "resources", name), message), RESOURCE_MAPPING


def is_pause(value: Any) -> bool:
    """Whether `value` is valid for `pausedUntil`; None is."""
    moment = decode(datetime, value, (), []) if isinstance(value, str) else None
    return value is None or (moment is not None and moment.tzinfo is not None)


def with_pause(spec: dict[str, Any], until: str | None) -> dict[str, Any]:
    """Return the spec paused until then, or not paused."""
    rest = {key: value for key, value in spec.items() if key != PAUSE}
    return rest if until is None else {**rest, PAUSE: until}


def digest(*texts: str) -> str:
    """Return the first 12 hex digits of the SHA-256 of the texts: enough to distinguish versions in a log."""
    return sha256("\x00".join(texts).encode()).hexdigest()[:12]
