"""Documents: reads plain data as policies, classes, resource mappings and quotas, and reports every problem."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from typing import Any, Self

import msgspec

from policies.gpus import classes
from policies.gpus.classes import GPUClass, GPUClassSpec
from policies.gpus.mapping_spec import ResourceMappingSpec
from policies.pods.field_paths import Parts, path_parts
from policies.pods.label_selector import LabelSelector
from policies.pods.names import is_dns_label, is_dns_subdomain
from policies.policy import LONGEST_HELP, Exemption, Match, Policy, PolicySpec
from policies.quota import spec as quota
from policies.quota.spec import QuotaSpec
from policies.quota.team_spec import TeamSpec
from policies.registry import RULES_BY_ID
from policies.rule import RuleOptions
from webhook.configuration.decoding import REQUIRED, Problem, decode, decode_valid, suggestion, unsupported
from webhook.configuration.schema_paths import Schemas, is_crd, schemas_of
from webhook.configuration.workload_kinds import WorkloadKind, WorkloadKindsSpec
from webhook.configuration.yaml_documents import YamlDocument, YamlError, load_documents

GROUP = "gpu-admission.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
POLICY, CLASS, RESOURCE_MAPPING, QUOTA = "GPUPolicy", "GPUClass", "GPUResourceMapping", "GPUQuota"
CLUSTER_QUOTA = "ClusterGPUQuota"

CONFIGURATION = "configuration"
"""Stands where a rule's id does."""
SELECTOR, PAUSE, WORKLOAD_KINDS = "namespaceSelector", "pausedUntil", "workloadKinds"
KINDS = (CLUSTER_QUOTA, CLASS, POLICY, QUOTA, RESOURCE_MAPPING)
QUOTA_SPECS: dict[str, type[QuotaSpec | TeamSpec]] = {QUOTA: QuotaSpec, CLUSTER_QUOTA: TeamSpec}
SPECS: dict[str, type[GPUClassSpec | ResourceMappingSpec | QuotaSpec | TeamSpec]] = {
    CLASS: GPUClassSpec,
    RESOURCE_MAPPING: ResourceMappingSpec,
    **QUOTA_SPECS,
}
SERVER_FIELDS = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "uid",
    }
)
"""Fields of `metadata` that no document says, and `kubectl get -o yaml` prints."""
FILE_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
"""The files of a directory that are read, as by kubectl."""


class Document(msgspec.Struct, frozen=True):
    """One document as plain data. Only a GPUQuota has a `namespace`."""

    kind: str
    name: str
    spec: dict[str, Any]
    namespace: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Return the key of the document: (kind, name), for a GPUQuota (kind, namespace)."""
        return self.kind, self.namespace or self.name

    @property
    def title(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def data(self) -> dict[str, Any]:
        metadata = {"name": self.name, **({"namespace": self.namespace} if self.namespace else {})}
        return {"apiVersion": API_VERSION, "kind": self.kind, "metadata": metadata, "spec": self.spec}


class LocatedProblem(msgspec.Struct, frozen=True, order=True):
    """A problem and its location, as text `policy.yaml:12: GPUPolicy/default spec.rules.…: …`.

    An object of a cluster has no `file`, and line 0. `column` is for editors: 0 is the whole line.
    """

    file: str
    line: int
    document: str
    path: str
    message: str
    column: int = 0

    @classmethod
    def of_file(cls, file: str, message: str, line: int = 0, column: int = 0) -> Self:
        return cls(file, line, "", "", message, column)

    @classmethod
    def of_yaml(cls, file: str, error: YamlError) -> Self:
        return cls.of_file(file, str(error), error.line, error.column)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        subject = " ".join(part for part in (self.document, self.path) if part)
        return ": ".join(part for part in (place, subject, self.message) if part)


class DocumentLocation(msgspec.Struct, frozen=True):
    """A document and its location: in a file, at `at` of a List there, or, without `node`, in the cluster."""

    file: str
    data: Any
    node: YamlDocument | None = None
    at: Parts = ()

    @property
    def start(self) -> str:
        return f"{self.file}:{self.node.line_of(self.at)}" if self.node else _title(self.data)

    def problem(self, problem: Problem) -> LocatedProblem:
        line = self.node.line_of((*self.at, *problem.parts)) if self.node else 0
        return LocatedProblem(self.file, line, _title(self.data), problem.path, problem.message)


class DocumentSet(msgspec.Struct):
    """The documents read so far. Invalid documents are in `places`, `documents` and `references`, too."""

    places: dict[tuple[str, str], DocumentLocation] = {}
    documents: list[Document] = []
    problems: list[LocatedProblem] = []
    policies: dict[str, Policy] = {}
    classes: dict[str, GPUClass] = {}
    resource_mappings: dict[str, ResourceMappingSpec] = {}
    workload_kinds: dict[str, tuple[WorkloadKind, ...]] = {}
    """By the name of their GPUResourceMapping."""
    schemas: Schemas = {}
    """Of the CustomResourceDefinitions beside the documents."""
    quotas: dict[str, QuotaSpec] = {}
    teams: dict[str, TeamSpec] = {}
    references: list[tuple[DocumentLocation, Parts, RuleOptions]] = []
    """The options of rules, as far as they are valid, with their location: they may name classes."""
    unreadable: dict[str, list[Any]] = {}
    """The invalid documents by kind: what they define is not known."""


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


@contextmanager
def reading(file: str, problems: list[LocatedProblem]) -> Iterator[None]:
    """If the file cannot be read, append the reason to `problems`."""
    try:
        yield
    except UnicodeDecodeError:
        problems.append(LocatedProblem.of_file(file, "must be UTF-8 text"))
    except OSError as error:
        problems.append(LocatedProblem.of_file(file, error.strerror or str(error)))


def documents_in(file: str, text: str, problems: list[LocatedProblem]) -> Iterator[YamlDocument]:
    """Yield the valid documents of the text, and append the errors of others to `problems`. Duplicate keys are errors here."""
    for document in load_documents(text):
        errors = (document,) if isinstance(document, YamlError) else document.duplicates
        problems.extend(LocatedProblem.of_yaml(file, error) for error in errors)
        if isinstance(document, YamlDocument) and not errors:
            yield document


def places_in(file: str, document: YamlDocument) -> Iterator[DocumentLocation]:
    """Yield the document, or the items of a List, which is what kubectl prints."""
    data = document.data
    items = data.get("items") if isinstance(data, dict) and data.get("kind") == "List" else None
    if isinstance(items, list):
        yield from (
            DocumentLocation(file, item, document, ("items", index)) for index, item in enumerate(items)
        )
    else:
        yield DocumentLocation(file, data, document)


def read_document(place: DocumentLocation, collected: DocumentSet) -> None:
    if is_crd(place.data):  # what only the paths of workload kinds are compared with
        collected.schemas.update(schemas_of(place.data))
        return
    problems: list[Problem] = []
    envelope = _envelope(_without_server_fields(place.data), problems)
    if envelope is not None:
        name, namespace = envelope.metadata.name, envelope.metadata.namespace or ""
        document = Document(envelope.kind, name, envelope.spec, namespace)
        first = collected.places.setdefault(document.key, place)
        if first is not place:
            at, value = ("namespace", namespace) if namespace else ("name", name)
            message = f'Duplicate value: "{value}", also in {first.start}'
            problems.append(Problem(("metadata", at), message))
        collected.documents.append(document)
        read = _read_policy if document.kind == POLICY else _read_spec
        read(document, place, collected, problems)
    if problems and isinstance(place.data, dict):
        collected.unreadable.setdefault(str(place.data.get("kind")), []).append(place.data)
    collected.problems.extend(place.problem(problem) for problem in problems)


def _without_server_fields(data: Any) -> Any:
    """Return an object without what an API server adds to it."""
    if not isinstance(data, dict) or not isinstance(metadata := data.get("metadata"), dict):
        return data
    written = {key: value for key, value in metadata.items() if key not in SERVER_FIELDS}
    return {**{key: value for key, value in data.items() if key != "status"}, "metadata": written}


def _title(data: Any) -> str:
    if not isinstance(data, dict):
        return ""
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{data.get('kind', '?')}/{name or '?'}"


def _envelope(data: Any, problems: list[Problem]) -> _Document | None:
    for field, supported in (("apiVersion", [API_VERSION]), ("kind", list(KINDS))):
        if isinstance(data, dict) and data.get(field) not in supported:
            problems.append(Problem((field,), unsupported(str(data.get(field)), supported)))
            if data.get("kind") not in KINDS:
                return None
    envelope = decode_valid(_Document, data, (), problems)
    if envelope is not None:
        problems.extend(_metadata_problems(envelope.kind, envelope.metadata))
    return envelope


def _metadata_problems(kind: str, metadata: _Metadata) -> Iterator[Problem]:
    """Check name and namespace: only a GPUQuota has a namespace, and a namespace has one GPUQuota."""
    at_name, at_namespace = ("metadata", "name"), ("metadata", "namespace")
    if not is_dns_subdomain(metadata.name):
        yield Problem(at_name, "must consist of lower case letters, digits, - and .")
    elif kind != QUOTA:
        if metadata.namespace is not None:
            yield Problem(at_namespace, f"must be omitted: a {kind} is cluster-scoped")
    else:
        if metadata.namespace is None:
            yield Problem(at_namespace, REQUIRED)
        elif not is_dns_label(metadata.namespace):
            yield Problem(at_namespace, "must consist of at most 63 lower case letters, digits and -")
        if metadata.name != quota.NAME:
            yield Problem(at_name, f"must be {quota.NAME}: a namespace has at most one GPUQuota")


def _read_policy(
    document: Document, place: DocumentLocation, collected: DocumentSet, problems: list[Problem]
) -> None:
    rest = {field: value for field, value in document.spec.items() if field != "rules"}
    spec = decode(PolicySpec, rest, ("spec",), problems)
    rules = _read_rules(document.spec.get("rules", {}), problems)
    at_rules = ((place, ("spec", "rules", rule_id), options) for rule_id, options in rules.items())
    collected.references.extend(at_rules)
    problems.extend(_policy_problems(document.spec))
    if spec is not None and not problems:
        version = digest(msgspec.json.encode(document.spec, order="sorted").decode())
        spec = msgspec.structs.replace(spec, rules=rules)
        collected.policies[document.name] = Policy(name=document.name, version=version, spec=spec)


def _read_spec(
    document: Document, _place: DocumentLocation, collected: DocumentSet, problems: list[Problem]
) -> None:
    rest = document.spec
    if document.kind == RESOURCE_MAPPING:
        rest = {field: value for field, value in rest.items() if field != WORKLOAD_KINDS}
        _read_workload_kinds(document, collected, problems)
    spec = decode_valid(SPECS[document.kind], rest, ("spec",), problems)
    if isinstance(spec, GPUClassSpec):
        problems.extend(
            _not_reported_yet(problems_below((), classes.problems(document.name, spec)), problems)
        )
        if not problems:
            collected.classes[document.name] = GPUClass.of(document.name, spec)
    elif spec is not None:
        problems.extend(_not_reported_yet(problems_below(("spec",), spec.problems()), problems))
        if isinstance(spec, QuotaSpec):
            collected.quotas[document.key[1]] = spec
        elif isinstance(spec, TeamSpec):
            collected.teams[document.name] = spec
        elif not problems:
            collected.resource_mappings[document.name] = spec


def _read_workload_kinds(document: Document, collected: DocumentSet, problems: list[Problem]) -> None:
    section = {field: value for field, value in document.spec.items() if field == WORKLOAD_KINDS}
    spec = decode(WorkloadKindsSpec, section, ("spec",), problems)
    if spec is not None:
        problems.extend(problems_below(("spec",), spec.problems()))
        collected.workload_kinds[document.name] = spec.workload_kinds


def _not_reported_yet(problems: Iterable[Problem], known: Iterable[Problem]) -> list[Problem]:
    """Return the problems that are not at, above or below a value that is invalid already."""
    wrong = [problem.parts for problem in known]
    return [
        problem
        for problem in problems
        if not any(problem.parts[: len(parts)] == parts[: len(problem.parts)] for parts in wrong)
    ]


def problems_below(at: Parts, problems: Iterable[tuple[str, str]]) -> Iterator[Problem]:
    """Turn (path below `at`, message) into problems."""
    return (Problem((*at, *path_parts(path)), message) for path, message in problems)


def _read_rules(raw: Any, problems: list[Problem]) -> dict[str, RuleOptions]:
    rules: dict[str, RuleOptions] = {}
    decode(dict[str, Any], raw, ("spec", "rules"), problems)
    for rule_id, data in raw.items() if isinstance(raw, dict) else ():
        at: Parts = ("spec", "rules", str(rule_id))
        rule = RULES_BY_ID.get(str(rule_id))
        if rule is None:
            problems.append(Problem(at, unknown_rule(str(rule_id))))
            continue
        removed = rule.options.removed
        problems += (
            Problem((*at, name), removed[name]) for name in removed if isinstance(data, dict) and name in data
        )
        options = decode_valid(rule.options, _without_options(data, removed), at, problems)
        if options is not None:
            problems.extend(_not_reported_yet(problems_below(at, options.problems()), problems))
            rules[rule_id] = options
    return rules


def without_removed(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a stored document without the options that this version has removed, so that it stays in force."""
    rules = spec.get("rules")
    if not isinstance(rules, dict):
        return spec
    known = {rule_id: RULES_BY_ID[rule_id].options.removed for rule_id in rules if rule_id in RULES_BY_ID}
    return {
        **spec,
        "rules": {rule: _without_options(data, known.get(rule, {})) for rule, data in rules.items()},
    }


def _without_options(data: Any, removed: Mapping[str, str]) -> Any:
    if not isinstance(data, dict):
        return data
    return {name: value for name, value in data.items() if name not in removed}


def _policy_problems(spec: dict[str, Any]) -> Iterator[Problem]:
    """Check the parts of the spec that can be decoded; decoding the whole spec reports the other parts."""
    match = decode(Match, spec.get("match"), (), [])
    if match is not None:
        if not match.namespaces:
            message = 'must name at least one namespace; "*" matches all'
            yield Problem(("spec", "match", "namespaces"), message)
        yield from _selector_problems(match.namespace_selector, ("spec", "match"))
    until = decode(datetime, spec.get(PAUSE), (), [])
    if until is not None and until.tzinfo is None:
        yield Problem(("spec", PAUSE), "must have a time zone, such as 2027-01-31T18:00:00Z")
    text = spec.get("help")
    if isinstance(text, str) and not (text.isprintable() and len(text) <= LONGEST_HELP):
        yield Problem(("spec", "help"), f"must be one line of at most {LONGEST_HELP} characters")
    exemptions = spec.get("exemptions")
    for index, raw in enumerate(exemptions if isinstance(exemptions, list) else ()):
        exemption = decode(Exemption, raw, (), [])
        if exemption is not None:
            yield from _exemption_problems(exemption, ("spec", "exemptions", index))


def _exemption_problems(exemption: Exemption, at: Parts) -> Iterator[Problem]:
    if not exemption.namespaces:
        yield Problem((*at, "namespaces"), "must name at least one namespace")
    if not exemption.reason.strip():
        yield Problem((*at, "reason"), "must say why the exemption exists")
    yield from _selector_problems(exemption.namespace_selector, at)
    for position, rule_id in enumerate(exemption.rules or ()):
        if rule_id not in RULES_BY_ID:
            yield Problem((*at, "rules", position), unknown_rule(rule_id))


def _selector_problems(selector: LabelSelector | None, at: Parts) -> Iterator[Problem]:
    return problems_below((*at, SELECTOR), selector.problems() if selector is not None else ())


def unknown_rule(rule_id: str) -> str:
    return f'unknown rule "{rule_id}"{suggestion(rule_id, list(RULES_BY_ID))}'


def is_valid_pause(value: Any) -> bool:
    """Whether `value` is valid for `pausedUntil`. None is valid."""
    moment = decode(datetime, value, (), [])
    return value is None or (moment is not None and moment.tzinfo is not None)


def with_pause(spec: dict[str, Any], until: str | None) -> dict[str, Any]:
    """Return the spec, paused until that time, or not paused if it is None."""
    rest = {key: value for key, value in spec.items() if key != PAUSE}
    return rest if until is None else {**rest, PAUSE: until}


def digest(*texts: str) -> str:
    """Return the first 12 hex digits of the SHA-256 of the texts: enough to distinguish versions in a log."""
    return sha256("\x00".join(texts).encode()).hexdigest()[:12]
