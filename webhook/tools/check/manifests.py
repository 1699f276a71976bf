"""Manifests from files, directories and stdin, read as by `kubectl apply -f`, and the pods in them.

The defaults of the API server that a verdict depends on are applied: nulls are dropped, and a Pod's limits become its requests
where it has none. Anything that cannot be read becomes a problem with file, line and path; the rest is read.
"""

import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec

from policies.pods.field_paths import Parts, field_path
from policies.pods.pod import Pod, decode_pod
from webhook.configuration.decoding import REQUIRED, Problem, decode
from webhook.configuration.documents import SUFFIXES, LocatedProblem, documents_in, reading
from webhook.configuration.loader import load_directory
from webhook.configuration.workload_kinds import WorkloadKinds
from webhook.configuration.yaml_documents import YamlDocument
from webhook.serving.engine import ADVISED
from webhook.workloads.autoscalers import AUTOSCALERS
from webhook.workloads.places import PodPlace, pod_places

STDIN = "-"

_NULLS = {
    **dict.fromkeys(("limits", "requests", "overhead"), 0),
    **dict.fromkeys(
        ("annotations", "args", "command", "labels", "matchLabels", "nodeSelector", "values"), ""
    ),
}
"""What the API server reads a null as: the quantity 0; in maps and lists of plain text the empty text, as Go does."""


class ManifestPod(msgspec.Struct, frozen=True):
    """A pod, or a future pod of a workload: decoded, and its place in the object."""

    pod: Pod
    place: PodPlace


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One object, its location (`at` is the path inside a List), and the pods in it."""

    file: str
    document: YamlDocument
    at: Parts
    data: dict[str, Any]
    api_version: str
    kind: str
    namespace: str
    name: str
    is_known: bool = True
    """Whether objects of this kind are checked: they have pods, or something else that is."""
    pods: tuple[ManifestPod, ...] = ()

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def is_pod(self) -> bool:
        return (self.group, self.kind) == ("", "Pod")

    def line_of(self, parts: Parts = ()) -> int:
        return self.document.line_of((*self.at, *parts))


class Manifests(msgspec.Struct):
    """The objects that were read, in the order of the sources, and the problems."""

    manifests: list[Manifest] = []
    problems: list[LocatedProblem] = []


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
) -> Manifests:
    """Return the objects in `sources` (files, directories, "-"); the default namespace is `namespace`.

    `kinds` says where their pods are; the built-in table if it is None.
    """
    found = Manifests()
    kinds = load_directory(None).workload_kinds if kinds is None else kinds
    for source in sources:
        for file, text in _texts(source, recursive, found.problems):
            for document in documents_in(file, text, found.problems):
                _Reader(file, document, namespace or "default", found, kinds).read()
    if not found.manifests and not found.problems:
        found.problems.append(LocatedProblem.of_file(", ".join(sources), "must contain an object"))
    return found


def _texts(source: str, recursive: bool, problems: list[LocatedProblem]) -> Iterator[tuple[str, str]]:
    if source.startswith(("http://", "https://")):
        message = "URLs are not supported: curl -sSL URL | gpu-admission check -f -"
        problems.append(LocatedProblem.of_file(source, message))
        return
    for file in _files(source, recursive, problems):
        with reading(file, problems):
            content = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
            yield "stdin" if file == STDIN else file, content.decode("utf-8-sig")


def _files(source: str, recursive: bool, problems: list[LocatedProblem]) -> list[str]:
    path = Path(source)
    if source == STDIN or not path.is_dir():
        return [source]
    files = []
    with reading(source, problems):
        entries = path.rglob("*") if recursive else path.iterdir()
        files = sorted(str(entry) for entry in entries if entry.suffix in SUFFIXES and not entry.is_dir())
        if not files:
            hint = "" if recursive else " (-R reads the directories below, too)"
            message = f"must contain a .yaml, .yml or .json file{hint}"
            problems.append(LocatedProblem.of_file(source, message))
    return files


class _Reader:
    """Reads one document, which may be a List."""

    def __init__(
        self, file: str, document: YamlDocument, namespace: str, found: Manifests, kinds: WorkloadKinds
    ) -> None:
        self._file = file
        self._document = document
        self._namespace = namespace
        self._found = found
        self._kinds = kinds

    def read(self) -> None:
        problems = self._found.problems
        before = len(problems)
        self._read(as_stored(self._document.data), (), {})
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
        metadata = envelope.metadata
        manifest = Manifest(
            file=self._file,
            document=self._document,
            at=at,
            data=data,
            api_version=envelope.api_version,
            kind=envelope.kind,
            namespace=metadata.namespace or self._namespace,
            name=metadata.name or metadata.generate_name or "",
        )
        pods = self._pods(manifest)
        if pods is not None:
            kind = (manifest.group, manifest.kind)
            has_pods = kind in self._kinds and bool(self._kinds[kind].pods)
            is_known = manifest.is_pod or has_pods or kind in ADVISED or kind in AUTOSCALERS
            self._found.manifests.append(msgspec.structs.replace(manifest, pods=pods, is_known=is_known))

    def _read_items(self, items: Any, envelope: _Object, at: Parts) -> None:
        if not isinstance(items, list):
            self._problem(at, ("items",), "must be a list")
            return
        # The items of a PodList, as the API server sends it, omit apiVersion and kind.
        item_kind = envelope.kind.removesuffix("List")
        inherited = {"apiVersion": envelope.api_version, "kind": item_kind} if item_kind else {}
        for index, item in enumerate(items):
            self._read(item, (*at, "items", index), inherited)

    def _pods(self, manifest: Manifest) -> tuple[ManifestPod, ...] | None:
        """Return the pods in the object, or None if one cannot be read."""
        places: list[PodPlace | Problem] = [PodPlace((), manifest.data, {(): ()})]
        if not manifest.is_pod:
            places = pod_places(self._kinds, manifest.group, manifest.kind, manifest.data)
        pods = []
        before = len(self._found.problems)
        for place in places:
            if isinstance(place, Problem):
                self._problem(manifest.at, place.parts, place.message)
            else:
                pods.append(self._pod(manifest, place))
        return tuple(filter(None, pods)) if len(self._found.problems) == before else None

    def _pod(self, manifest: Manifest, place: PodPlace) -> ManifestPod | None:
        try:
            pod = decode_pod(msgspec.json.encode(place.data))
        except msgspec.ValidationError as error:
            problems: list[Problem] = []
            decode(Pod, place.data, (), problems, strict=False)
            for problem in problems or [Problem((), str(error))]:
                self._problem(manifest.at, place.parts(problem.parts), problem.message)
            return None
        if manifest.is_pod:
            place = msgspec.structs.replace(place, data=with_requests(place.data))
            pod = decode_pod(msgspec.json.encode(place.data))
        return ManifestPod(pod, place)

    def _problem(self, at: Parts, parts: Parts, message: str) -> None:
        whole = (*at, *parts)
        line = self._document.line_of(whole)
        self._found.problems.append(LocatedProblem(self._file, line, "", field_path(whole), message))


def as_stored(value: Any, field: str = "") -> Any:
    """Return plain data as the API server decodes it: text for keys, and no nulls."""
    if isinstance(value, dict):
        stored: dict[str, Any] = {}
        for key, member in value.items():
            name = str(key).lower() if isinstance(key, bool) else str(key)
            if member is not None:
                stored[name] = as_stored(member, name)
            elif field in _NULLS:
                stored[name] = _NULLS[field]
        return stored
    if isinstance(value, list):
        empty: Any = "" if _NULLS.get(field) == "" else {}
        return [empty if item is None else as_stored(item) for item in value]
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
