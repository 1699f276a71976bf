"""Kinds that create pods, and where their objects have pods and their number: section `workloadKinds` of a GPUResourceMapping.

The built-in rows are such a document, too (`builtin/workload-kinds.yaml`); a row of a document replaces the built-in row of its
kind. Kinds do not change the demand of pods, nor the digest of the mapping.

A path starts at the object. `*` is every key of a map, `[]` every item of a list, and a key with a dot or a slash is in brackets.
Where another path of the kind begins with the same steps as that of the pods, it means the same keys and items. With a point in
front, it starts beside the last step of the pods' path: `.replicas` beside `spec.tasks[].template` is `spec.tasks[].replicas`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Self

import msgspec

from policies.pods.names import is_dns_subdomain

EVERY_KEY, EVERY_ITEM = "*", "[]"
"""Steps that stand for every value of a map, and for every item of a list."""

BRANCHES = frozenset({EVERY_KEY, EVERY_ITEM})

MAX_WORKLOAD_KINDS = 500
MAX_PATHS = 32
"""Paths of one kind; the built-in kinds have at most 9."""

_KEY = r"(?:[^.\[\]\s]+|\[[^\[\]\s]+\])(?:\[[^\[\]\s]*\])*"
_PATH = re.compile(rf"\.?{_KEY}(?:\.{_KEY})*")
_STEP = re.compile(r"(\[\])|\[([^\]]+)\]|([^.\[\]]+)")
_FACTOR = re.compile(
    r"(?P<first>\S+(?: else \S+)*)(?: less (?P<less>\S+))?(?: at least (?P<low>\S+))?(?: at most (?P<high>\S+))?"
)
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_RESOURCE = re.compile(r"[a-z][a-z0-9-]{0,62}")
_OTHER_KIND = re.compile(r"(?:(?:[a-z0-9.-]+/)?v[a-z0-9]+/)?[A-Z][A-Za-z0-9]{0,62}")

Steps = tuple[str, ...]


@cache
def steps(path: str, beside: str = "") -> Steps:
    """Return the steps of a path: `spec.tasks[].template` → spec, tasks, [], template."""
    own = tuple(item or bracketed or plain for item, bracketed, plain in _STEP.findall(path))
    return (*steps(beside)[:-1], *own) if path.startswith(".") else own


class PodForm(Enum):
    """What a path leads to."""

    TEMPLATE = "template"
    """`metadata` and `spec` of a pod."""
    SPEC = "podSpec"
    """The spec of a pod itself."""
    RESOURCES = "resources"
    """The resources of the one container that matters; the rest of the pod comes from elsewhere."""
    AMOUNTS = "amounts"
    """A part of the object whose pods get the GPUs in `gpus`. Paths below it count if `gpus` finds no amounts."""
    PATCH = "patch"
    """A text, YAML or JSON, that is merged into the spec of a pod."""
    OBJECT = "object"
    """A whole object of another kind."""


class _Row(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """Base of all parts of the table."""


class Factor(msgspec.Struct, frozen=True):
    """A factor of a number of pods: the number at the first path that has one, else `default`; None is unknown.

    As text: `PATH else PATH else 0 less PATH at least PATH at most PATH`. Only the first part is required; its number may be
    `unknown`, and is 1 if omitted. `less`: subtract one if the object has a value at that path.
    """

    paths: tuple[str, ...]
    default: int | None = 1
    less: str = ""
    at_least: str = ""
    at_most: str = ""

    @classmethod
    def of(cls, text: str) -> Self | None:
        """Return the factor; None if the text is not one."""
        match = _FACTOR.fullmatch(text)
        if match is None:
            return None
        *paths, last = match["first"].split(" else ")
        default: int | None = 1
        if last == "unknown":
            default = None
        elif last.isdecimal():
            default = int(last)
        else:
            paths.append(last)
        factor = cls(tuple(paths), default, match["less"] or "", match["low"] or "", match["high"] or "")
        return factor if all(map(_PATH.fullmatch, factor.every_path())) else None

    def every_path(self) -> tuple[str, ...]:
        return (*self.paths, *filter(None, (self.less, self.at_least, self.at_most)))


@cache
def factors(texts: tuple[str, ...]) -> tuple[Factor, ...]:
    return tuple(filter(None, map(Factor.of, texts)))


class GPUAmount(_Row, frozen=True):
    """An amount of GPUs outside of a container's resources.

    quantity: path of the amount; if omitted, one for each name.
    name: path of the resource's name; without a name there, `resource`.
    """

    quantity: str = ""
    name: str = ""
    resource: str = ""


class PodPath(_Row, frozen=True):
    """A path to pods, and their number.

    containers: fields with containers, or lists of them, outside the list of containers (podSpec, amounts).
    bases: by a field in `containers`, the field with what those containers have where they state nothing else (podSpec).
    defaults: paths of specs that supply absent tolerations, nodeSelector, affinity and volumes, in this order.
    claims: path of a list of claims (DRA) that the pods refer to (resources).
    replicas: factors of the number of pods at one time; if empty, one pod.
    most: factors of the maximum of an autoscaler; if empty, nothing scales the pods.
    elastic: path of a boolean; unless it is true, `most` does not hold.
    gang: factors of the number of pods that must run together before any of them works; if empty, each works by itself.
    partial: the rest of the pods comes from elsewhere, so that missing fields are unknown.
    """

    path: str
    form: PodForm = PodForm.TEMPLATE
    containers: tuple[str, ...] = ()
    bases: dict[str, str] = {}
    defaults: tuple[str, ...] = ()
    gpus: tuple[GPUAmount, ...] = ()
    claims: str = ""
    replicas: tuple[str, ...] = ()
    most: tuple[str, ...] = ()
    elastic: str = ""
    gang: tuple[str, ...] = ()
    partial: bool = False

    @property
    def is_partial(self) -> bool:
        return self.partial or self.form in {PodForm.RESOURCES, PodForm.AMOUNTS, PodForm.PATCH}

    @property
    def other_paths(self) -> dict[str, str]:
        """Return, by field, the paths besides that of the pods and those in factors."""
        paths = {"claims": self.claims, "elastic": self.elastic}
        paths |= {f"defaults[{index}]": path for index, path in enumerate(self.defaults)}
        for index, gpu in enumerate(self.gpus):
            paths |= {f"gpus[{index}].quantity": gpu.quantity, f"gpus[{index}].name": gpu.name}
        return {field: path for field, path in paths.items() if path}

    @property
    def factor_texts(self) -> dict[str, str]:
        texts = {"replicas": self.replicas, "most": self.most, "gang": self.gang}
        return {f"{field}[{index}]": text for field in texts for index, text in enumerate(texts[field])}

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below it, sentence) for every invalid value."""
        if not _PATH.fullmatch(self.path) or self.path.startswith("."):
            yield "path", "must be a path such as spec.workers[].template, with * for every key"
        if self.form is PodForm.AMOUNTS and not self.gpus:
            yield "gpus", "must say where the amounts are"
        for index, gpu in enumerate(self.gpus):
            if not (gpu.name or all(gpu.resource.partition("/"))):
                yield f"gpus[{index}].resource", "must be a resource name such as example.com/gpu"
        for field, path in self.other_paths.items():
            if not _PATH.fullmatch(path):
                yield field, "must be a path such as .gpus or spec.gpus"
        for field, text in self.factor_texts.items():
            if Factor.of(text) is None:
                yield field, "must be a path such as .replicas, or .replicas else 0"


class Reference(_Row, frozen=True):
    """Another object, of the same namespace or of none, that has the pods of the object that names it, or their GPUs.

    fields: paths of its name.
    kinds: which it may be of; the first one that exists counts, unless the field `kind` beside the name says which. `Model`, or
      `apps/v1/Deployment` of another API version than the object.
    gives: by a path in the object, the paths in the other one, of which the first with a value precedes the object's own.
    names: what some of these values stand for.
    further: whether its pods are further ones, as those of a task; otherwise GPUs that the object requests are those of its pods.
    """

    fields: tuple[str, ...]
    kinds: tuple[str, ...]
    gives: dict[str, tuple[str, ...]] = {}
    names: dict[str, str] = {}
    further: bool = False

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the reference, sentence) for every invalid value."""
        for field in ("fields", "kinds"):
            if not getattr(self, field):
                yield field, "must not be empty"
        for index, kind in enumerate(self.kinds):
            if not _OTHER_KIND.fullmatch(kind):
                yield f"kinds[{index}]", "must be a kind such as Model, or apps/v1/Deployment"


class WorkloadKind(_Row, frozen=True):
    """A kind, in all its versions, and the paths of pods in its objects; without paths its objects have no pods.

    resource: the plural in the API's paths; if omitted, the plural of the kind in lower case.
    cluster_scoped: whether its objects have no namespace. Then only `check` reads them.
    templates_only: whether its objects make no pods until another object refers to them.
    stopped: path → value with which the object, or that part of it, has no pods: a suspended job. `*` is any value.
    starts_together: whether all its pods start together. Then they leave the line for quota together, as a gang does.
    runs_to_completion: whether its pods end by themselves, also where a container has a port.
    replaces_pods: whether its objects make a new pod for one that failed, and no new objects by a schedule or step by step.
    deadline: path of the seconds after which it ends its pods.
    deadline_waits: path → value with which the deadline is one of pods that are created once the others are ready.
    start_deadlines: paths of further seconds that pass while its pods wait, from the creation of the object.
    leaders_wait: path → value with which its pods without GPUs are created once the others are ready. With none of them they fail
      while the others wait; the first is the remedy.
    staged: path → value with which its pods start in stages. Then they leave the line for quota one by one. `*` is any value.
    together: path of the number of pods of the whole object that must run together before any of them works.
    quotas: paths of maps that become spec.hard of ResourceQuotas.
    repeats: paths of GPUs that its pods request elsewhere in the object, or that none of them gets.
    unread: paths that ask for GPUs without an amount, as the name of a machine does.
    refers: other objects that have its pods, or say how many GPUs these get.
    """

    group: str
    kind: str
    resource: str = ""
    cluster_scoped: bool = False
    templates_only: bool = False
    stopped: dict[str, str] = {}
    starts_together: bool = False
    runs_to_completion: bool = False
    replaces_pods: bool = True
    deadline: str = ""
    deadline_waits: dict[str, str] = {}
    start_deadlines: tuple[str, ...] = ()
    leaders_wait: dict[str, str] = {}
    staged: dict[str, str] = {}
    together: str = ""
    pods: tuple[PodPath, ...] = ()
    quotas: tuple[str, ...] = ()
    repeats: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    refers: tuple[Reference, ...] = ()

    @property
    def has_no_gpus(self) -> bool:
        """Whether its objects have neither pods nor quotas."""
        return not (self.pods or self.quotas or self.unread or self.refers)

    @property
    def key(self) -> tuple[str, str]:
        return self.group, self.kind

    @property
    def ends_pods(self) -> bool:
        """Whether its objects may end the pods that they make by a deadline of their own."""
        return self.runs_to_completion and bool(self.deadline) and not self.templates_only

    @property
    def plural(self) -> str:
        return self.resource or plural(self.kind)

    @property
    def crd_name(self) -> str:
        """Return the name that its CustomResourceDefinition has, if it has one."""
        return f"{self.plural}.{self.group}"

    @property
    def own_paths(self) -> dict[str, str]:
        """Return, by field, the paths that are not about some of the pods."""
        paths = {"together": self.together, "deadline": self.deadline}
        paths |= {f"stopped[{path}]": path for path in self.stopped}
        paths |= {f"staged[{path}]": path for path in self.staged}
        paths |= {f"deadlineWaits[{path}]": path for path in self.deadline_waits}
        paths |= {f"leadersWait[{path}]": path for path in self.leaders_wait}
        several = {"quotas": self.quotas, "repeats": self.repeats, "unread": self.unread}
        for field, listed in (several | {"startDeadlines": self.start_deadlines}).items():
            paths |= {f"{field}[{index}]": path for index, path in enumerate(listed)}
        for index, reference in enumerate(self.refers):
            paths |= {f"refers[{index}].fields[{at}]": path for at, path in enumerate(reference.fields)}
            paths |= {f"refers[{index}].gives[{path}]": path for path in reference.gives}
        return {field: path for field, path in paths.items() if path}

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below it, sentence) for every invalid value."""
        if self.group and not is_dns_subdomain(self.group):
            yield "group", "must be an API group such as example.com"
        if not _KIND.fullmatch(self.kind):
            yield "kind", "must be a kind such as TrainingJob"
        if self.resource and not _RESOURCE.fullmatch(self.resource):
            yield "resource", "must be the plural in the API's paths, such as trainingjobs"
        if len(self.pods) > MAX_PATHS:
            yield "pods", f"must have at most {MAX_PATHS} items"
        for index, pods in enumerate(self.pods):
            yield from ((f"pods[{index}].{field}", text) for field, text in pods.problems())
        for index, reference in enumerate(self.refers):
            yield from ((f"refers[{index}].{field}", text) for field, text in reference.problems())
        for field, path in self.own_paths.items():
            if not _PATH.fullmatch(path) or path.startswith("."):
                yield field, "must be a path such as spec.suspend"


WorkloadKinds = Mapping[tuple[str, str], WorkloadKind]
"""By (API group, kind)."""


class WorkloadKindsSpec(_Row, frozen=True):
    workload_kinds: tuple[WorkloadKind, ...] = ()

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the spec, sentence) for every invalid value."""
        if len(self.workload_kinds) > MAX_WORKLOAD_KINDS:
            yield "workloadKinds", f"must have at most {MAX_WORKLOAD_KINDS} items"
        known: set[tuple[str, str]] = set()
        for index, workload_kind in enumerate(self.workload_kinds):
            if workload_kind.key in known:
                yield (
                    f"workloadKinds[{index}].kind",
                    f"Duplicate value: {workload_kind.kind} of {workload_kind.group or 'core'}",
                )
            known.add(workload_kind.key)
            yield from ((f"workloadKinds[{index}].{field}", text) for field, text in workload_kind.problems())


def workload_kinds(workload_kinds: Iterable[WorkloadKind]) -> WorkloadKinds:
    """Return the workload_kinds by kind; the first workload_kind of a kind counts."""
    by_kind: dict[tuple[str, str], WorkloadKind] = {}
    for workload_kind in workload_kinds:
        by_kind.setdefault(workload_kind.key, workload_kind)
    return by_kind


def plural(kind: str) -> str:
    """Return the kind in lower case and the plural: deployments, networkpolicies, harnesses."""
    name = kind.lower()
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith(("s", "x", "ch", "sh")) else f"{name}s"
