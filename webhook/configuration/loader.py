"""Make one `Configuration` of documents, or say everything that is wrong with them.

The built-in GPUClass and GPUResourceMapping documents come first; a GPUClass of the same name replaces the built-in one, and a
GPUResourceMapping's patterns come before the built-in ones. GPUQuota documents say what namespaces may hold, where no API
server has them.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_mapping import ResourceMapping, ResourceMappingSpec
from policies.policy import PolicySet
from policies.quota.spec import QuotaSpec
from webhook.configuration.decoding import Problem
from webhook.configuration.documents import (
    POLICY,
    SELECTOR,
    Collected,
    Document,
    LocatedProblem,
    Place,
    check_references,
    digest,
    read_document,
)
from webhook.configuration.yaml_documents import YamlError, load_documents

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
FILE_LIMIT = 4 * 1024 * 1024


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """Policies, classes and resource mapping that belong together; `version` is a digest of the documents they came from.

    `quotas` are by namespace, and hold where no API server has them.
    """

    policies: PolicySet
    classes: ClassCatalogue
    resource_mapping: ResourceMapping
    version: str
    quotas: Mapping[str, QuotaSpec] = {}


class ConfigurationError(Exception):
    """The documents cannot be used; `problems` are all of them, in the order of files and lines."""

    def __init__(self, problems: Iterable[LocatedProblem]) -> None:
        self.problems = sorted(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Origins(msgspec.Struct, frozen=True, kw_only=True):
    """What documents of one's own added to the built-in ones: where each stands, and which classes they replace."""

    places: dict[tuple[str, str], str]
    """(kind, name; of a GPUQuota its namespace) → `file:line`, or of an object of the cluster `Kind/name`."""
    replaced_classes: frozenset[str]
    resource_mappings: dict[str, ResourceMappingSpec]
    documents: tuple[Document, ...]


def load_directory(directory: Path | None) -> Configuration:
    """Return the configuration in `directory` on top of the built-in documents; None is the built-in documents alone.

    Raises `ConfigurationError` with every problem of every file.
    """
    return load_with_origins(directory)[0]


def load_with_origins(directory: Path | None, *, labels_known: bool = True) -> tuple[Configuration, Origins]:
    """Return the same, and which document everything in it came from.

    Where labels of namespaces will not be known, what chooses by them is a problem, too.
    """
    own = Collected()
    texts = []
    for name, text in _files(directory, own) if directory else ():
        texts.append(text)
        _read(name, text, own)
    if not labels_known:
        own.problems.extend(_selector_problems(own))
    return _assembled(own, digest(*texts))


def load_objects(documents: Iterable[Document]) -> Configuration:
    """Return the configuration in documents that no file holds; the same documents have the same version in any order.

    Raises `ConfigurationError` with every problem of every document.
    """
    return load_objects_with_origins(documents)[0]


def problems_of(documents: Iterable[Document]) -> tuple[LocatedProblem, ...]:
    """Return everything that is wrong with the documents."""
    try:
        load_objects(documents)
    except ConfigurationError as error:
        return tuple(error.problems)
    return ()


def load_objects_with_origins(documents: Iterable[Document]) -> tuple[Configuration, Origins]:
    """Return the same, and which document everything in it came from."""
    ordered = sorted(documents, key=lambda document: document.key)
    own = Collected()
    for document in ordered:
        read_document(Place("", document.data), own)
    texts = (msgspec.json.encode(document.data, order="sorted").decode() for document in ordered)
    return _assembled(own, digest(*texts))


def _assembled(own: Collected, version: str) -> tuple[Configuration, Origins]:
    built_in = _built_in()
    classes = ClassCatalogue({**built_in.classes, **own.classes}.values())
    resource_mapping = ResourceMapping(
        [*own.resource_mappings.values(), *built_in.resource_mappings.values()]
    )
    check_references(own, classes, resource_mapping)
    if own.problems:
        raise ConfigurationError(own.problems)
    configuration = Configuration(
        policies=PolicySet(list(own.policies.values())),
        classes=classes,
        resource_mapping=resource_mapping,
        version=version,
        quotas=own.quotas,
    )
    origins = Origins(
        places={key: place.start for key, place in own.places.items()},
        replaced_classes=frozenset(own.classes.keys() & built_in.classes.keys()),
        resource_mappings=own.resource_mappings,
        documents=tuple(own.documents),
    )
    return configuration, origins


def _selector_problems(own: Collected) -> Iterator[LocatedProblem]:
    message = "needs a cluster to read the labels of namespaces from: --kubeconfig or --in-cluster"
    for name, policy in own.policies.items():
        place, spec = own.places[POLICY, name], policy.spec
        if spec.match.namespace_selector is not None:
            yield place.problem(Problem(("spec", "match", SELECTOR), message))
        for index, exemption in enumerate(spec.exemptions):
            if exemption.namespace_selector is not None:
                yield place.problem(Problem(("spec", "exemptions", index, SELECTOR), message))


@cache
def _built_in() -> Collected:
    """Return the documents that ship with the webhook; they cannot change while it runs."""
    collected = Collected()
    folder = resources.files("webhook.configuration") / "builtin"
    for name in ("gpuclasses.yaml", "resource-mapping.yaml"):
        _read(f"built-in {name}", (folder / name).read_text(encoding="utf-8"), collected)
    if collected.problems:
        raise ConfigurationError(collected.problems)
    return collected


def _files(directory: Path, collected: Collected) -> Iterator[tuple[str, str]]:
    # Hidden names are kubelet's: a mounted ConfigMap shows its files as links into `..data`.
    try:
        paths = sorted(p for p in directory.iterdir() if p.suffix in SUFFIXES and not p.name.startswith("."))
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise ConfigurationError([LocatedProblem(str(directory), 0, "", "", reason)]) from None
    if not paths:
        message = "has no .yaml, .yml or .json file; leave the option out to run with the built-in defaults"
        raise ConfigurationError([LocatedProblem(str(directory), 0, "", "", message)])
    for path in paths:
        try:
            if path.stat().st_size > FILE_LIMIT:
                collected.problems.append(LocatedProblem(path.name, 0, "", "", f"is over {FILE_LIMIT} bytes"))
                continue
            yield path.name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            collected.problems.append(LocatedProblem(path.name, 0, "", "", "is not UTF-8 text"))
        except OSError as error:
            collected.problems.append(
                LocatedProblem(path.name, 0, "", "", error.strerror or "cannot be read")
            )


def _read(file: str, text: str, collected: Collected) -> None:
    for document in load_documents(text):
        if isinstance(document, YamlError):
            collected.problems.append(LocatedProblem(file, document.line, "", "", str(document)))
        else:
            read_document(Place(file, document.data, document), collected)
