"""Loads documents into one `Configuration`; an error lists every problem of every document.

A GPUClass replaces the built-in one of the same name. Patterns of GPUResourceMappings come first, then the DeviceClasses of the
cluster, then the built-in patterns. GPUQuota documents are for a webhook without an API server; otherwise that stores them.
"""

from collections.abc import Iterable, Iterator, Mapping
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
from policies.placement.hardware import HARDWARE, LabelKeys, known_keys
from policies.policy import PolicySet
from policies.quota.spec import QuotaSpec
from policies.quota.team_spec import TeamSpec
from policies.rules import gpu_class
from webhook.configuration.decoding import Problem
from webhook.configuration.documents import (
    POLICY,
    SELECTOR,
    SUFFIXES,
    TEAM,
    Document,
    DocumentLocation,
    DocumentSet,
    LocatedProblem,
    digest,
    documents_in,
    places_in,
    read_document,
    reading,
)
from webhook.configuration.files import read_file
from webhook.configuration.references import check_references
from webhook.configuration.workload_kinds import WorkloadKind, WorkloadKinds, workload_kinds

FILE_LIMIT = 4 * 1024 * 1024


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
    for name, text in _files(directory, own.problems) if directory else ():
        texts.append(text)
        _read(name, text, own)
    if standalone:
        own.problems.extend(_standalone_problems(own))
    return _assembled(own, digest(*texts), devices)


def load_objects(documents: Iterable[Document], devices: ClusterDevices = NO_DEVICES) -> Configuration:
    """Return the configuration of documents in any order. Raises `ConfigurationError` with every problem."""
    ordered = sorted(documents, key=lambda document: document.key)
    own = DocumentSet()
    for document in ordered:
        read_document(DocumentLocation("", document.data), own)
    texts = (msgspec.json.encode(document.data, order="sorted").decode() for document in ordered)
    return _assembled(own, digest(*texts), devices)


def problems_of(
    documents: Iterable[Document], devices: ClusterDevices = NO_DEVICES
) -> tuple[LocatedProblem, ...]:
    try:
        load_objects(documents, devices)
    except ConfigurationError as error:
        return tuple(error.problems)
    return ()


def _assembled(own: DocumentSet, version: str, devices: ClusterDevices) -> Configuration:
    built_in = _built_in()
    classes = GPUClasses({**built_in.classes, **own.classes}.values())
    # A document with workload kinds alone maps no resources: it must not change the digest of the mapping.
    stated, shipped = (
        tuple(spec for spec in each.resource_mappings.values() if spec != ResourceMappingSpec())
        for each in (own, built_in)
    )
    shipped = (vendors.RESOURCE_MAPPING, *shipped)
    known = resource_mapping = ResourceMapping((*stated, *shipped))
    if devices != NO_DEVICES:
        derived = device_class_mapping(devices.classes, ResourceMapping(stated), known, devices.kinds)
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
        unmapped_device_classes=unmapped_device_classes(devices.classes, known, resource_mapping),
    )


def _standalone_problems(own: DocumentSet) -> Iterator[LocatedProblem]:
    message = "must be omitted with --standalone: a cluster has the labels of namespaces"
    deny = "must be Deny with --standalone: gpu-admission controller starts the pods that wait in line"
    for name in own.teams:
        message_of_team = "must be omitted with --standalone: a cluster has the namespaces of a team"
        yield own.places[TEAM, name].problem(Problem(("kind",), message_of_team))
    for name, policy in own.policies.items():
        place, spec = own.places[POLICY, name], policy.spec
        if spec.match.namespace_selector is not None:
            yield place.problem(Problem(("spec", "match", SELECTOR), message))
        for index, exemption in enumerate(spec.exemptions):
            if exemption.namespace_selector is not None:
                yield place.problem(Problem(("spec", "exemptions", index, SELECTOR), message))
        for rule_id, options in spec.rules.items():
            if options.queues:
                yield place.problem(Problem(("spec", "rules", rule_id, "onExceeded"), deny))


@cache
def _built_in() -> DocumentSet:
    """Return the documents that ship with the webhook; they cannot change while it runs."""
    collected = DocumentSet()
    folder = resources.files("webhook.configuration") / "builtin"
    for name in ("gpuclasses.yaml", "resource-mapping.yaml", "workload-kinds.yaml"):
        _read(f"built-in {name}", (folder / name).read_text(encoding="utf-8"), collected)
    if collected.problems:
        raise ConfigurationError(collected.problems)
    return collected


def _files(directory: Path, problems: list[LocatedProblem]) -> Iterator[tuple[str, str]]:
    paths = None
    with reading(str(directory), problems):
        # Hidden names are kubelet's: a mounted ConfigMap shows its files as links into `..data`.
        paths = (
            [directory]
            if directory.is_file()
            else sorted(p for p in directory.iterdir() if p.suffix in SUFFIXES and not p.name.startswith("."))
        )
    if paths == []:
        message = (
            "must contain a .yaml, .yml or .json file; the built-in defaults hold where no directory is named"
        )
        problems.append(LocatedProblem.of_file(str(directory), message))
    for path in paths or ():
        with reading(path.name, problems):
            yield path.name, read_file(path, FILE_LIMIT, None if path == directory else directory)[0]


def _read(file: str, text: str, collected: DocumentSet) -> None:
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
    return known_keys(configuration.classes.label_keys, (*chosen, *HARDWARE))
