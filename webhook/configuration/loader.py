"""Loads documents into one `Configuration`; an error lists every problem of every document.

A GPUClass replaces the built-in one of the same name. Patterns of GPUResourceMappings come first, then the DeviceClasses of the
cluster, then the built-in patterns. GPUQuota documents are for a webhook without an API server; otherwise that stores them.
References between documents are checked once all have been read: names of classes and resources, and paths into other kinds.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from itertools import chain
from pathlib import Path

import msgspec

from policies.gpus import vendors
from policies.gpus.classes import GPUClasses
from policies.gpus.device_classes import (
    NO_DEVICES,
    ClusterDevices,
    device_class_mapping,
    unmapped_device_classes,
)
from policies.gpus.mapping_spec import ResourceMappingSpec
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.hardware import HARDWARE_LABELS, LabelKeys, kept_label_keys
from policies.pods.field_paths import value_at
from policies.policy import PolicySet
from policies.quota.spec import LimitsSpec, QuotaSpec
from policies.quota.team_spec import TeamSpec
from policies.rules import gpu_class
from webhook.configuration.decoding import Problem
from webhook.configuration.documents import (
    CLASS,
    CLUSTER_QUOTA,
    FILE_SUFFIXES,
    POLICY,
    QUOTA,
    RESOURCE_MAPPING,
    SELECTOR,
    Document,
    DocumentLocation,
    DocumentSet,
    LocatedProblem,
    digest,
    documents_in,
    places_in,
    problems_below,
    read_document,
    reading,
)
from webhook.configuration.files import read_file
from webhook.configuration.schema_paths import kind_problems
from webhook.configuration.workload_kinds import WorkloadKind, WorkloadKinds, workload_kinds

FILE_LIMIT = 4 * 1024 * 1024

_TEXT = re.compile(r'"([^"]*)"')


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """One consistent version of policies, classes and resource mapping; `version` is a digest of their documents."""

    policies: PolicySet
    classes: GPUClasses
    resource_mapping: ResourceMapping
    version: str
    quotas: Mapping[str, QuotaSpec] = {}
    """By namespace, where no API server stores them."""
    teams: Mapping[str, TeamSpec] = {}
    """ClusterGPUQuotas among `documents`, by name."""
    documents: tuple[Document, ...] = ()
    """All documents but the built-in ones."""
    places: Mapping[tuple[str, str], str] = {}
    """By (kind, name) of a document: `file:line`, or `Kind/name` for an object of the cluster."""
    resource_mappings: Mapping[str, ResourceMappingSpec] = {}
    """The resource mappings of `documents`, by name."""
    workload_kinds: WorkloadKinds = {}
    """The kinds that create pods, including the built-in ones."""
    own_workload_kinds: Mapping[str, tuple[WorkloadKind, ...]] = {}
    """The workload kinds of `documents`, by the name of the document."""
    devices: ClusterDevices = NO_DEVICES
    """Those of the cluster."""
    unmapped_device_classes: tuple[str, ...] = ()
    """DeviceClasses whose devices no quota counts, though neither a document nor a built-in pattern says so."""


class ConfigurationError(Exception):
    """The documents are not valid; `problems` are in the order of files and lines."""

    def __init__(self, problems: Iterable[LocatedProblem]) -> None:
        self.problems = sorted(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def load_directory(
    directory: Path | None, *, standalone: bool = False, devices: ClusterDevices = NO_DEVICES
) -> Configuration:
    """Return the configuration of the built-in documents, and of those in `directory`, which may also be one file.

    `devices` are those of the cluster. With `standalone`, every field that needs a cluster is a problem. Raises
    `ConfigurationError` with every problem of every file.
    """
    own = DocumentSet()
    texts = []
    for name, text in _file_texts(directory, own.problems) if directory else ():
        texts.append(text)
        _read_documents(name, text, own)
    if standalone:
        own.problems.extend(_standalone_problems(own))
    return _assemble(own, digest(*texts), devices)


def load_objects(documents: Iterable[Document], devices: ClusterDevices = NO_DEVICES) -> Configuration:
    """Return the configuration of documents in any order. Raises `ConfigurationError` with every problem."""
    ordered = sorted(documents, key=lambda document: document.key)
    own = DocumentSet()
    for document in ordered:
        read_document(DocumentLocation("", document.data), own)
    texts = (msgspec.json.encode(document.data, order="sorted").decode() for document in ordered)
    return _assemble(own, digest(*texts), devices)


def problems_of(
    documents: Iterable[Document], devices: ClusterDevices = NO_DEVICES
) -> tuple[LocatedProblem, ...]:
    try:
        load_objects(documents, devices)
    except ConfigurationError as error:
        return tuple(error.problems)
    return ()


def _assemble(own: DocumentSet, version: str, devices: ClusterDevices) -> Configuration:
    built_in = _built_in()
    classes = GPUClasses({**built_in.classes, **own.classes}.values())
    # A document with workload kinds alone maps no resources: it must not change the digest of the mapping.
    stated, shipped = (
        tuple(spec for spec in document_set.resource_mappings.values() if spec != ResourceMappingSpec())
        for document_set in (own, built_in)
    )
    shipped = (vendors.RESOURCE_MAPPING, *shipped)
    known = resource_mapping = ResourceMapping((*stated, *shipped))
    if devices != NO_DEVICES:
        derived = device_class_mapping(
            devices.device_classes, ResourceMapping(stated), known, devices.device_types
        )
        resource_mapping = ResourceMapping((*stated, derived, *shipped))
        version = digest(version, msgspec.json.encode(derived).decode())
    check_references(own, classes, resource_mapping)
    if own.problems:
        raise ConfigurationError(own.problems)
    return Configuration(
        policies=PolicySet(list(own.policies.values())),
        classes=classes,
        resource_mapping=resource_mapping,
        version=version,
        quotas=own.quotas,
        teams=own.teams,
        documents=tuple(own.documents),
        places={key: place.start for key, place in own.places.items()},
        resource_mappings=own.resource_mappings,
        workload_kinds=workload_kinds(chain(*own.workload_kinds.values(), *built_in.workload_kinds.values())),
        own_workload_kinds=own.workload_kinds,
        devices=devices,
        unmapped_device_classes=unmapped_device_classes(devices.device_classes, known, resource_mapping),
    )


def _standalone_problems(own: DocumentSet) -> Iterator[LocatedProblem]:
    message = "must be omitted with --standalone: a cluster has the labels of namespaces"
    deny = "must be Deny with --standalone: gpu-admission controller starts the pods that wait in line"
    for name in own.teams:
        message_of_team = "must be omitted with --standalone: a cluster has the namespaces of a team"
        yield own.places[CLUSTER_QUOTA, name].problem(Problem(("kind",), message_of_team))
    for name, policy in own.policies.items():
        place, spec = own.places[POLICY, name], policy.spec
        if spec.match.namespace_selector is not None:
            yield place.problem(Problem(("spec", "match", SELECTOR), message))
        for index, exemption in enumerate(spec.exemptions):
            if exemption.namespace_selector is not None:
                yield place.problem(Problem(("spec", "exemptions", index, SELECTOR), message))
        for rule_id, options in spec.rules.items():
            if options.queues_pods:
                yield place.problem(Problem(("spec", "rules", rule_id, "onExceeded"), deny))


@cache
def _built_in() -> DocumentSet:
    """Return the documents that ship with the webhook; they cannot change while it runs."""
    collected = DocumentSet()
    folder = resources.files("webhook.configuration") / "builtin"
    for name in ("gpuclasses.yaml", "resource-mapping.yaml", "workload-kinds.yaml"):
        _read_documents(f"built-in {name}", (folder / name).read_text(encoding="utf-8"), collected)
    if collected.problems:
        raise ConfigurationError(collected.problems)
    return collected


def _file_texts(directory: Path, problems: list[LocatedProblem]) -> Iterator[tuple[str, str]]:
    paths = None
    with reading(str(directory), problems):
        # Hidden names are kubelet's: a mounted ConfigMap shows its files as links into `..data`.
        paths = (
            [directory]
            if directory.is_file()
            else sorted(
                p for p in directory.iterdir() if p.suffix in FILE_SUFFIXES and not p.name.startswith(".")
            )
        )
    if paths == []:
        message = (
            "must contain a .yaml, .yml or .json file; the built-in defaults hold where no directory is named"
        )
        problems.append(LocatedProblem.of_file(str(directory), message))
    for path in paths or ():
        with reading(path.name, problems):
            yield path.name, read_file(path, FILE_LIMIT, None if path == directory else directory)[0]


def _read_documents(file: str, text: str, collected: DocumentSet) -> None:
    for document in documents_in(file, text, collected.problems):
        for place in places_in(file, document):
            read_document(place, collected)


def keys_to_know(configuration: Configuration) -> LabelKeys:
    """Return the labels of nodes that the rules in force can ask about."""
    policies, chosen = configuration.policies, list[str]()
    for policy in policies.policies:
        options = policies.bound(gpu_class.RULE, policy).options
        if isinstance(options, gpu_class.GPUClassOptions):
            chosen += options.hardware_labels
    return kept_label_keys(configuration.classes.label_keys, (*chosen, *HARDWARE_LABELS))


def check_references(
    collected: DocumentSet, gpu_classes: GPUClasses, resource_mapping: ResourceMapping
) -> None:
    """Check the names of classes and resources, and paths into objects of other kinds, once all documents have been read."""
    known = {(problem.file, problem.line, problem.path) for problem in collected.problems}
    for place, at, options in collected.references:
        for problem in problems_below(at, options.class_problems(gpu_classes)):
            located = place.problem(problem)
            is_known = (located.file, located.line, located.path) in known
            if not is_known and not _may_be_defined(problem, place, CLASS, collected):
                collected.problems.append(located)
    for name, kinds in collected.workload_kinds.items():
        place = collected.places[RESOURCE_MAPPING, name]
        wrong = problems_below((), kind_problems(kinds, collected.schemas))
        collected.problems.extend(place.problem(problem) for problem in wrong)
    limits: Iterator[tuple[tuple[str, str], LimitsSpec]] = chain(
        (((QUOTA, namespace), spec) for namespace, spec in collected.quotas.items()),
        (((CLUSTER_QUOTA, name), spec) for name, spec in collected.teams.items()),
    )
    for key, spec in limits:
        place = collected.places[key]
        collected.problems.extend(
            place.problem(problem)
            for problem, kind in quota_problems(spec, gpu_classes, resource_mapping)
            if not _may_be_defined(problem, place, kind, collected)
        )


def _may_be_defined(problem: Problem, place: DocumentLocation, kind: str, collected: DocumentSet) -> bool:
    """Whether an invalid document of the kind may define the name or glob that the problem calls unknown."""
    unread = collected.unreadable.get(kind)
    if not unread or kind != CLASS:  # a pattern of a resource mapping may define any name
        return bool(unread)
    named = (str(problem.parts[-1]), str(value_at(place.data, problem.parts)))
    # A key of YAML may be null, or a date, which JSON does not have.
    texts = set(_TEXT.findall(json.dumps(unread, default=str, skipkeys=True)))
    return any(fnmatchcase(text, name) for text in texts for name in named)


def quota_problems(
    spec: LimitsSpec, gpu_classes: GPUClasses, resource_mapping: ResourceMapping
) -> Iterator[tuple[Problem, str]]:
    """Yield the limits that can never count anything, each with the kind of document that would define its name."""
    of_budget = spec.budget.by_class if isinstance(spec, QuotaSpec) and spec.budget else ()
    for at, names in ((("hard", "classes"), spec.hard.classes), (("budget", "byClass"), of_budget)):
        for name in names:
            if not gpu_classes.resolve(name):
                message = f"must be a GPU class or family{gpu_classes.suggestion(name, '; ')}"
                yield Problem(("spec", *at, name), message), CLASS
    for name in spec.hard.resources:
        if resource_mapping.resource(name) is None:
            message = "must be a GPU resource: nothing else counts for a quota"
            yield Problem(("spec", "hard", "resources", name), message), RESOURCE_MAPPING
