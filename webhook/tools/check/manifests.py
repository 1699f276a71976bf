"""Manifests as `kubectl apply -f` reads them, and the pods in them.

The defaults of the API server that a verdict depends on are applied: nulls are dropped, and a Pod's limits become its requests
where it has none. Anything that cannot be read becomes a problem with file, line and path; the rest is read. A placeholder where
there must be a number is not a problem: the file is a template.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.finding import truncate
from policies.pods.field_paths import Parts, field_path, value_at
from policies.pods.names import is_resource_name
from policies.pods.pod import Pod, decode_pod
from webhook.configuration.decoding import REQUIRED, Problem, decode
from webhook.configuration.documents import (
    CLUSTER_QUOTA,
    GROUP,
    QUOTA,
    DocumentLocation,
    DocumentSet,
    LocatedProblem,
    read_document,
)
from webhook.configuration.loader import load_directory
from webhook.configuration.workload_kinds import WorkloadKinds
from webhook.configuration.yaml_documents import YamlDocument, load_documents
from webhook.evaluation.kinds import ADVISED_KINDS, CLAIM, PDB
from webhook.tools.check.placeholders import extended_amounts, has_parameters, is_placeholder, is_template
from webhook.tools.check.sources import ReadResult, Renderer, ToRender, read_stdin, texts_of
from webhook.workloads.autoscalers import AUTOSCALERS
from webhook.workloads.places import PodPlace, pod_places

_NULL_VALUES = dict.fromkeys(("limits", "requests", "overhead"), 0) | dict.fromkeys(
    ("annotations", "args", "command", "labels", "matchLabels", "nodeSelector", "values"), ""
)
"""What a null becomes, by the field that has it: 0 for a quantity, "" for a text, as the API server decodes it."""

_ALSO_CHECKED = {
    ("", "Pod"),
    *ADVISED_KINDS,
    CLAIM,
    PDB,
    *AUTOSCALERS,
    (GROUP, QUOTA),
    (GROUP, CLUSTER_QUOTA),
}
"""Kinds that are checked, besides workloads."""

_CRD = re.compile(r"^kind: *CustomResourceDefinition\b", re.MULTILINE)
_SPEC_BLOCK = re.compile(r"^spec:[^\n]*(?:\n(?:[ #-][^\n]*)?(?=\n|\Z))*", re.MULTILINE)
"""The top-level `spec:` with all lines below it."""

LocatedPod = tuple[PodPlace, Pod]
"""Where a pod is in the object, and the pod."""


class Placeholder(msgspec.Struct, frozen=True):
    """A value that a tool replaces before the API server sees the object, and its path."""

    path: str
    value: str

    def sentence(self) -> str:
        return f'{self.path} = "{truncate(self.value)}": a placeholder; render the file first'


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One object; `at` is its path inside a List. `placeholders` stand for amounts, or keep pods from being read.

    `text` is all of its file, or of stdin; `index` is the place of the document in it.
    """

    file: str
    is_stdin: bool
    text: str
    index: int
    document: YamlDocument
    namespace: str
    at: Parts = ()
    data: dict[str, Any] = {}
    api_version: str = ""
    kind: str = ""
    name: str = ""
    is_checked: bool = True
    """Whether anything in objects of this kind is checked."""
    pods: tuple[LocatedPod, ...] = ()
    """The pods that it is or makes."""
    placeholders: tuple[Placeholder, ...] = ()

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def title(self) -> str:
        """Return kind and name, e.g. `Pod default/train`; without the namespace for kinds that are, or may be, cluster-scoped."""
        namespace = (
            f"{self.namespace}/" if self.is_checked and self.group_kind != (GROUP, CLUSTER_QUOTA) else ""
        )
        return f"{self.kind} {namespace}{self.name or '(no name)'}"

    @property
    def group_kind(self) -> tuple[str, str]:
        return self.group, self.kind

    @property
    def is_pod(self) -> bool:
        return self.group_kind == ("", "Pod")

    def line_of(self, parts: Parts = ()) -> int:
        return self.position_of(parts)[0]

    def position_of(self, parts: Parts = ()) -> tuple[int, int]:
        """Return line and column of the value, both from 1."""
        return self.document.position_of((*self.at, *parts))


class Manifests(ReadResult):
    """The objects that were read, in the order of the sources."""

    manifests: list[Manifest] = msgspec.field(default_factory=list)


class _ObjectMeta(msgspec.Struct, frozen=True, rename="camel"):
    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    metadata: _ObjectMeta = _ObjectMeta()


def read_manifests(
    sources: Sequence[str],
    *,
    recursive: bool = False,
    namespace: str | None = None,
    kinds: WorkloadKinds | None = None,
    ignore: Sequence[str] = (),
    with_crd_specs: bool = False,
    texts: Mapping[str, str] | None = None,
    stdin: Callable[[], bytes] = read_stdin,
) -> Manifests:
    """Return the objects in `sources` (files, directories, "-"), without those that `ignore` (globs) matches.

    The default namespace is `namespace`. `kinds` says where their pods are; the built-in table if it is None.
    No rule reads specs of CRDs: they are omitted unless `with_crd_specs`. `texts` replaces files of these names.
    """
    read = Manifests()
    kinds = load_directory(None).workload_kinds if kinds is None else kinds
    for file, content, is_stdin in texts_of(sources, recursive, ignore, read, stdin):
        text = (texts or {}).get(file, content)
        documents = load_documents(text, str if with_crd_specs else _without_crd_spec)
        for index, document in enumerate(documents):
            if isinstance(document, YamlDocument):
                if is_stdin or _is_manifest(document.data):
                    blank = Manifest(
                        file=file,
                        is_stdin=is_stdin,
                        text=text,
                        index=index,
                        document=document,
                        namespace=namespace or "default",
                    )
                    _Reader(blank, read, kinds).read()
                else:
                    read.other_documents += 1
            elif not is_template(content):
                read.problems.append(LocatedProblem.of_yaml(file, document))
            elif not any(template.file == file for template in read.to_render):
                # Once a file, at its first document that YAML cannot read.
                read.to_render.append(ToRender(Renderer.TEMPLATE, file, document.line))
    if not (read.manifests or read.problems or read.to_render or read.other_documents or read.ignored):
        read.problems.append(LocatedProblem.of_file(", ".join(sources), "must contain an object"))
    return read


def decode_own_object(manifest: Manifest) -> DocumentSet:
    """Return an object of our own kinds as the document that it is."""
    documents = DocumentSet()
    metadata = {"name": manifest.name}
    if manifest.kind == QUOTA:
        metadata["namespace"] = manifest.namespace
    document = {key: manifest.data.get(key) for key in ("apiVersion", "kind", "spec")}
    read_document(DocumentLocation(manifest.file, {**document, "metadata": metadata}), documents)
    return documents


def full_crd(manifest: Manifest) -> Any:
    """Return a CustomResourceDefinition with its spec, which `read_manifests` leaves out."""
    name = manifest.name
    documents = load_documents(manifest.text, lambda text: text if name in text else _without_crd_spec(text))
    document = next(islice(documents, manifest.index, None))
    return value_at(document.data, manifest.at) if isinstance(document, YamlDocument) else None


def _without_crd_spec(document: str) -> str:
    """Return a CustomResourceDefinition without its spec. CRDs are most of the YAML in many repositories; 1 MB takes 1 s."""
    if not _CRD.search(document):
        return document
    return _SPEC_BLOCK.sub(lambda spec: "spec:" + "\n" * spec[0].count("\n"), document)


class _Reader(msgspec.Struct, frozen=True):
    """Reads one document, which may be a List. `blank` is a manifest without what is read here."""

    blank: Manifest
    collected: Manifests
    kinds: WorkloadKinds

    def read(self) -> None:
        document, problems = self.blank.document, self.collected.problems
        for error in document.duplicates:
            message = f"{error}; the last one counts"
            located = LocatedProblem.of_file(self.blank.file, message, error.line, error.column)
            self.collected.warnings.append(located)
        for parts, amount in extended_amounts(document.data):
            if amount is None and is_resource_name(str(parts[-1])):
                line, column = document.position_of(parts)
                path, message = field_path(parts), "is empty, which the API server reads as 0"
                self.collected.warnings.append(
                    LocatedProblem(self.blank.file, line, "", path, message, column)
                )
        before = len(problems)
        self._read(without_nulls(document.data), (), {})
        problems[before:] = sorted(problems[before:], key=lambda problem: problem.line)

    def _read(self, data: Any, at: Parts, inherited: dict[str, str]) -> None:
        if not isinstance(data, dict):
            self._problem(at, (), "must be an object: a map with apiVersion and kind")
            return
        data = {**inherited, **data}
        problems: list[Problem] = []
        envelope = decode(_Object, data, (), problems, strict=False)
        for problem in problems:
            self._problem(at, problem.parts, problem.message)
        if envelope is None:
            return
        if not (envelope.api_version and envelope.kind):
            self._problem(at, ("kind" if envelope.api_version else "apiVersion",), REQUIRED)
            return
        if envelope.kind.endswith("List") and ("items" in data or envelope.kind == "List"):
            self._read_items(data.get("items", []), envelope, at)
            return
        metadata, group = envelope.metadata, envelope.api_version.rpartition("/")[0]
        workload_kind = self.kinds.get((group, envelope.kind))
        manifest = replace(
            self.blank,
            at=at,
            data=data,
            api_version=envelope.api_version,
            kind=envelope.kind,
            namespace=metadata.namespace or self.blank.namespace,
            name=metadata.name or metadata.generate_name or "",
            is_checked=(workload_kind is not None and not workload_kind.has_no_gpus)
            or (group, envelope.kind) in _ALSO_CHECKED,
        )
        if (complete := self._with_pods(manifest)) is not None:
            self.collected.manifests.append(complete)

    def _read_items(self, items: Any, envelope: _Object, at: Parts) -> None:
        if not isinstance(items, list):
            self._problem(at, ("items",), "must be a list")
            return
        # The items of a PodList, as the API server sends it, omit apiVersion and kind.
        item_kind = envelope.kind.removesuffix("List")
        inherited = {"apiVersion": envelope.api_version, "kind": item_kind} if item_kind else {}
        for index, item in enumerate(items):
            self._read(item, (*at, "items", index), inherited)

    def _with_pods(self, manifest: Manifest) -> Manifest | None:
        """Return the object with its pods, or None if one cannot be read."""
        places: list[PodPlace | Problem] = [PodPlace.of_pod(manifest.data)]
        if not manifest.is_pod:
            places = pod_places(self.kinds, manifest.group, manifest.kind, manifest.data)
        pods: list[LocatedPod] = []
        problems: list[Problem] = []
        for place in places:
            if isinstance(place, Problem):
                problems.append(place)
            else:
                pods += self._pods_at(manifest, place, problems)
        values = {problem.parts: value_at(manifest.data, problem.parts) for problem in problems}
        wrong = [problem for problem in problems if not is_placeholder(values[problem.parts], problem.path)]
        for problem in wrong:
            self._problem(manifest.at, problem.parts, problem.message)
        if wrong:
            return None
        if has_parameters(manifest.group, manifest.kind):
            return replace(manifest, pods=tuple(pods))
        values |= {parts: each for parts, each in extended_amounts(manifest.data) if is_placeholder(each)}
        ordered = sorted(values, key=manifest.position_of)
        placeholders = tuple(Placeholder(field_path(parts), values[parts]) for parts in ordered)
        return replace(manifest, pods=tuple(pods), placeholders=placeholders)

    def _pods_at(self, manifest: Manifest, place: PodPlace, problems: list[Problem]) -> Iterator[LocatedPod]:
        try:
            pod = decode_pod(msgspec.json.encode(place.data))
        except msgspec.ValidationError as error:
            in_pod: list[Problem] = []
            decode(Pod, place.data, (), in_pod, strict=False)
            in_pod = in_pod or [Problem((), str(error))]
            problems.extend(
                Problem(place.parts_in_object(problem.parts), problem.message) for problem in in_pod
            )
            return
        if manifest.is_pod:
            place = replace(place, data=with_requests(place.data))
            pod = decode_pod(msgspec.json.encode(place.data))
        yield place, pod

    def _problem(self, at: Parts, parts: Parts, message: str) -> None:
        full_path = (*at, *parts)
        line, column = self.blank.document.position_of(full_path)
        located = LocatedProblem(self.blank.file, line, "", field_path(full_path), message, column)
        self.collected.problems.append(located)


def _is_manifest(data: Any) -> bool:
    """Whether it is meant to be an object of the API, even if it lacks apiVersion or kind."""
    keys, type_meta = data.keys() if isinstance(data, dict) else set(), {"apiVersion", "kind"}
    return type_meta <= keys or bool(type_meta & keys and {"metadata", "spec"} & keys)


def without_nulls(value: Any, field: str = "") -> Any:
    """Return plain data with text for keys and without nulls, as the API server decodes it."""
    if isinstance(value, dict):
        stored: dict[str, Any] = {}
        for key, member in value.items():
            name = str(key).lower() if isinstance(key, bool) else str(key)
            if member is not None:
                stored[name] = without_nulls(member, name)
            elif field in _NULL_VALUES:
                stored[name] = _NULL_VALUES[field]
        return stored
    if isinstance(value, list):
        empty: Any = "" if _NULL_VALUES.get(field) == "" else {}
        return [empty if item is None else without_nulls(item) for item in value]
    return value


def with_requests(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the Pod with each limit as the request where there is none (SetDefaults_Pod; templates do not get this)."""
    pod = deepcopy(pod)
    for field in ("containers", "initContainers"):
        for container in pod.get("spec", {}).get(field, ()):
            resources = container.get("resources", {})
            missing = resources.get("limits", {}).keys() - resources.get("requests", {}).keys()
            if missing:
                limits = {name: value for name, value in resources["limits"].items() if name in missing}
                resources["requests"] = {**resources.get("requests", {}), **limits}
    return pod
