"""Load a directory of documents into a `Configuration`, or say everything that is wrong with them.

The built-in GPUClass and GPUVocabulary documents come first; a GPUClass of the same name replaces the built-in one, and a
GPUVocabulary's patterns come before the built-in ones. GPUQuota documents say what namespaces may hold, where no API
server has them.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from policies import classes, quota
from policies.classes import ClassCatalogue, GPUClass, GPUClassSpec
from policies.policy import Exemption, Match, Policy, PolicySet, PolicySpec, TemplateMode
from policies.quota import QuotaSpec
from policies.registry import RULES_BY_ID
from policies.rule import RuleOptions
from policies.vocabulary import Vocabulary, VocabularySpec
from webhook.configuration.decoding import Problem, decode, nearest, parts_of
from webhook.configuration.snapshot import Configuration, digest
from webhook.yaml_documents import Parts, YamlDocument, YamlError, load_documents

API_VERSION = "gpu-admission.dev/v1alpha1"
SUFFIXES = frozenset({".yaml", ".yml", ".json"})
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
FILE_LIMIT = 4 * 1024 * 1024


class LocatedProblem(msgspec.Struct, frozen=True, order=True):
    """Something wrong with the configuration, and where: `policy.yaml:12 GPUPolicy/default spec.rules.…`."""

    file: str
    line: int
    document: str
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        subject = " ".join(part for part in (self.document, self.path) if part)
        return f"{place}: {subject}: {self.message}" if subject else f"{place}: {self.message}"


class ConfigurationError(Exception):
    """The documents cannot be used; `problems` are all of them, in the order of files and lines."""

    def __init__(self, problems: Iterable[LocatedProblem]) -> None:
        self.problems = sorted(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class _PolicyDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Spec of a GPUPolicy before its rules' options have found their types."""

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


class _Place(msgspec.Struct, frozen=True):
    """Where a document stands."""

    file: str
    document: YamlDocument

    @property
    def start(self) -> str:
        return f"{self.file}:{self.document.start_line}"

    def problem(self, problem: Problem) -> LocatedProblem:
        line, title = self.document.line_of(problem.parts), _title(self.document.data)
        return LocatedProblem(self.file, line, title, problem.path, problem.message)


class _Collected:
    """What has been read so far."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, str], _Place] = {}
        self.problems: list[LocatedProblem] = []
        self.policies: dict[str, Policy] = {}
        self.classes: dict[str, GPUClass] = {}
        self.vocabularies: dict[str, VocabularySpec] = {}
        self.quotas: dict[str, QuotaSpec] = {}
        self.texts: list[str] = []


class Origins(msgspec.Struct, frozen=True, kw_only=True):
    """What documents of one's own added to the built-in ones: where each stands, and which classes they replace."""

    places: dict[tuple[str, str], str]
    """(kind, name; of a GPUQuota its namespace) → `file:line`."""
    replaced_classes: frozenset[str]
    vocabularies: dict[str, VocabularySpec]


def load_directory(directory: Path | None) -> Configuration:
    """Return the configuration in `directory` on top of the built-in documents; None is the built-in documents alone.

    Raises `ConfigurationError` with every problem of every file.
    """
    return load_with_origins(directory)[0]


def load_with_origins(directory: Path | None) -> tuple[Configuration, Origins]:
    """Return the same, and which document everything in it came from."""
    built_in, own = _built_in(), _Collected()
    for name, text in _files(directory, own) if directory else ():
        own.texts.append(text)
        _read(name, text, own)
    if own.problems:
        raise ConfigurationError(own.problems)
    merged = ClassCatalogue({**built_in.classes, **own.classes}.values())
    _check_references(own, merged)
    if own.problems:
        raise ConfigurationError(own.problems)
    configuration = Configuration(
        policies=PolicySet(list(own.policies.values())),
        classes=merged,
        vocabulary=Vocabulary([*own.vocabularies.values(), *built_in.vocabularies.values()]),
        version=digest(*own.texts),
        quotas=own.quotas,
    )
    origins = Origins(
        places={key: place.start for key, place in own.places.items()},
        replaced_classes=frozenset(own.classes.keys() & built_in.classes.keys()),
        vocabularies=own.vocabularies,
    )
    return configuration, origins


@cache
def _built_in() -> _Collected:
    """Return the documents that ship with the webhook; they cannot change while it runs."""
    collected = _Collected()
    folder = resources.files("webhook.configuration.builtin")
    for name in ("gpuclasses.yaml", "vocabulary.yaml"):
        _read(f"built-in {name}", (folder / name).read_text(encoding="utf-8"), collected)
    if collected.problems:
        raise ConfigurationError(collected.problems)
    return collected


def _files(directory: Path, collected: _Collected) -> Iterator[tuple[str, str]]:
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


def _read(file: str, text: str, collected: _Collected) -> None:
    for document in load_documents(text):
        if isinstance(document, YamlError):
            collected.problems.append(LocatedProblem(file, document.line, "", "", str(document)))
        else:
            _read_document(file, document, collected)


def _read_document(file: str, document: YamlDocument, collected: _Collected) -> None:
    problems: list[Problem] = []
    place = _Place(file, document)
    envelope = _envelope(document.data, problems)
    if envelope is not None:
        _refuse_second(envelope, place, collected, problems)
        readers = {
            "GPUPolicy": _read_policy,
            "GPUClass": _read_class,
            "GPUVocabulary": _read_vocabulary,
            "GPUQuota": _read_quota,
        }
        readers[envelope.kind](envelope, collected, problems)
    collected.problems.extend(place.problem(problem) for problem in problems)


def _title(data: Any) -> str:
    if not isinstance(data, dict):
        return ""
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{data.get('kind', '?')}/{name or '?'}"


def _envelope(data: Any, problems: list[Problem]) -> _Document | None:
    kinds = ("GPUClass", "GPUPolicy", "GPUQuota", "GPUVocabulary")
    if isinstance(data, dict) and data.get("apiVersion") != API_VERSION:
        problems.append(Problem(("apiVersion",), f'must be {API_VERSION}, not "{data.get("apiVersion")}"'))
        return None
    if isinstance(data, dict) and data.get("kind") not in kinds:
        kind = str(data.get("kind"))
        problems.append(Problem(("kind",), f'"{kind}" is no kind of this API{nearest(kind, list(kinds))}'))
        return None
    envelope = decode(_Document, data, (), problems)
    if envelope is not None and not NAME.fullmatch(envelope.metadata.name):
        problems.append(Problem(("metadata", "name"), "must be lower case letters, digits, - and ."))
        return None
    if envelope is not None and not _is_well_placed(envelope, problems):
        return None
    return envelope


def _is_well_placed(envelope: _Document, problems: list[Problem]) -> bool:
    """Check namespace and name by kind: a namespace has one quota, and nothing else has a namespace."""
    kind, metadata, before = envelope.kind, envelope.metadata, len(problems)
    if kind != "GPUQuota":
        if metadata.namespace is not None:
            problems.append(Problem(("metadata", "namespace"), f"a {kind} has none; leave it out"))
    else:
        if metadata.namespace is None:
            problems.append(Problem(("metadata", "namespace"), "is required"))
        elif not NAMESPACE.fullmatch(metadata.namespace):
            problems.append(
                Problem(("metadata", "namespace"), "must be lower case letters, digits and -, at most 63")
            )
        if metadata.name != quota.NAME:
            problems.append(
                Problem(("metadata", "name"), f"must be {quota.NAME}: a namespace has one GPUQuota")
            )
    return len(problems) == before


def _refuse_second(
    envelope: _Document, place: _Place, collected: _Collected, problems: list[Problem]
) -> None:
    namespace, name = envelope.metadata.namespace, envelope.metadata.name
    first = collected.places.setdefault((envelope.kind, namespace or name), place)
    if first is not place:
        at, what = ("namespace", "for this namespace") if namespace else ("name", "of this name")
        problems.append(Problem(("metadata", at), f"there is another one {what} in {first.start}"))


def _read_class(document: _Document, collected: _Collected, problems: list[Problem]) -> None:
    spec = decode(GPUClassSpec, document.spec, ("spec",), problems)
    if spec is None:
        return
    name = document.metadata.name
    problems.extend(Problem(parts_of(path), text) for path, text in classes.problems(name, spec))
    collected.classes[name] = GPUClass.of(name, spec)


def _read_vocabulary(document: _Document, collected: _Collected, problems: list[Problem]) -> None:
    spec = decode(VocabularySpec, document.spec, ("spec",), problems)
    if spec is None:
        return
    problems.extend(Problem(("spec", *parts_of(path)), text) for path, text in spec.problems())
    collected.vocabularies[document.metadata.name] = spec


def _read_quota(document: _Document, collected: _Collected, problems: list[Problem]) -> None:
    spec = decode(QuotaSpec, document.spec, ("spec",), problems)
    if spec is None:
        return
    problems.extend(Problem(("spec", *parts_of(path)), text) for path, text in spec.problems())
    collected.quotas[document.metadata.namespace or ""] = spec


def _read_policy(document: _Document, collected: _Collected, problems: list[Problem]) -> None:
    before = len(problems)
    spec = decode(_PolicyDocument, document.spec, ("spec",), problems)
    raw_rules = document.spec.get("rules")
    rules = _read_rules(raw_rules, problems) if isinstance(raw_rules, dict) else {}
    if spec is not None:
        _check_policy(spec, problems)
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
    rules: dict[str, RuleOptions] = {}
    for rule_id, data in raw.items():
        at: Parts = ("spec", "rules", str(rule_id))
        rule = RULES_BY_ID.get(str(rule_id))
        if rule is None:
            problems.append(Problem(at, f"is no rule{nearest(str(rule_id), list(RULES_BY_ID))}"))
            continue
        options = decode(rule.options, data, at, problems)
        if options is not None:
            problems.extend(Problem((*at, *parts_of(path)), text) for path, text in options.problems())
            rules[rule_id] = options
    return rules


def _check_policy(spec: _PolicyDocument, problems: list[Problem]) -> None:
    if not spec.match.namespaces:
        problems.append(
            Problem(("spec", "match", "namespaces"), 'must name at least one; "*" is all of them')
        )
    if spec.paused_until is not None and spec.paused_until.tzinfo is None:
        problems.append(Problem(("spec", "pausedUntil"), "needs a time zone, such as 2027-01-31T18:00:00Z"))
    for index, exemption in enumerate(spec.exemptions):
        at: Parts = ("spec", "exemptions", index)
        if not exemption.namespaces:
            problems.append(Problem((*at, "namespaces"), "must name at least one"))
        if not exemption.reason.strip():
            problems.append(
                Problem((*at, "reason"), "must say why, for whoever finds this exemption next year")
            )
        for position, rule_id in enumerate(exemption.rules or ()):
            if rule_id not in RULES_BY_ID:
                at_rule = (*at, "rules", position)
                problems.append(
                    Problem(at_rule, f'"{rule_id}" is no rule{nearest(rule_id, list(RULES_BY_ID))}')
                )


def _check_references(collected: _Collected, catalogue: ClassCatalogue) -> None:
    """Check what the options say about classes, now that all classes are known."""
    for policy in collected.policies.values():
        place = collected.places["GPUPolicy", policy.name]
        for rule_id, options in policy.spec.rules.items():
            collected.problems.extend(
                place.problem(Problem(("spec", "rules", rule_id, *parts_of(path)), message))
                for path, message in options.class_problems(catalogue)
            )
    for namespace, spec in collected.quotas.items():
        place = collected.places["GPUQuota", namespace]
        for name in spec.hard.classes:
            if not catalogue.resolve(name):
                near = catalogue.nearest(name)
                message = "is neither a class nor a family" + (f"; did you mean {near}?" if near else "")
                collected.problems.append(place.problem(Problem(("spec", "hard", "classes", name), message)))
