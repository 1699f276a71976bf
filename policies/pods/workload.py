"""A workload for rules: the object, and the pods that it creates, with their counts; and the object as the owner of a pod."""

from collections.abc import Callable
from functools import cached_property
from math import gcd
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.finding import Edit
from policies.pods.field_paths import value_at
from policies.pods.pod import Metadata, Pod


class Owner(msgspec.Struct, frozen=True):
    """The object that creates a pod. All fields are empty for a pod without owner, or an unknown owner.

    kind: "" also if the kind is not proven, because anyone can write an owner reference.
    completes: whether pods of its kind run to completion (`runsToCompletion` of `workloadKinds`).
    deadline: the seconds after which the object ends its pods; None if it has none.
    deadline_path: the path of the deadline in the object.
    name: kind and name of a controller that was looked up, such as Job/train; "" for a template.
    deadline_is_known: False if it may have a deadline that was not read.
    problem: why the deadline could not be read, "" if it was read or not needed.
    model_pods: the number of pods over which the object spreads one model, with this pod; None if the object does not say.
    model_pods_are_all: whether no other pods of the object can share the model.
    """

    kind: str = ""
    completes: bool = False
    deadline: int | None = None
    deadline_path: str = ""
    name: str = ""
    deadline_is_known: bool = True
    problem: str = ""
    model_pods: int | None = 1
    model_pods_are_all: bool = False


NO_OWNER = Owner()


class PodNumber(msgspec.Struct, frozen=True):
    """The field that states a number of pods: its path in the object, pods for each unit, and the least that has an effect.

    `sets_gang`: it states how many of them run together, too.
    """

    path: str
    each: int = 1
    least: int = 1
    sets_gang: bool = False


class PodCount(msgspec.Struct, frozen=True):
    """The number of pods of one template, according to the object."""

    running: int | None = 1
    """Pods at one time, as written. 0 for a suspended workload or a mere template, None if the object does not say."""
    maximum: int | None = None
    """Number of pods to which the workload may scale. None if it does not scale, or has no limit."""
    gang: int | None = None
    """Pods of this template that must run together. None if each works by itself."""
    number: PodNumber | None = None
    """The field by which there can be fewer. None without one, or if an autoscaler may write it."""
    resumed: "PodCount | None" = None
    """Of a suspended workload, the number once it is resumed."""

    def largest_valid(self, value: int) -> int:
        """Return the largest value of `number`, up to this one, that has an effect and makes whole gangs; 0 without one."""
        number, gang = self.number, self.gang or 1
        if number is None:
            return 0
        value -= 0 if number.sets_gang else value % (gang // gcd(gang, number.each))
        return value if value >= number.least else 0


class WorkloadPods(msgspec.Struct, frozen=True):
    """The pods of one template: its path in the object, the pod as written, and the number.

    `admitted` is the pod after the enforced rules. `denied`: the enforced rules deny it. `owner`: the object
    that has the template, with what its pods depend on. `located` translates the path of a field to edit in the pod to
    one in the object, "" where the object has no such field.
    """

    path: str
    pod: Pod
    count: PodCount
    admitted: Pod
    denied: bool = False
    owner: Owner = NO_OWNER
    located: Callable[[str], str] = str


class Workload(msgspec.Struct, frozen=True, dict=True):
    """An object that may create pods. `data` is its plain JSON. `pods` omits pods that are too long to be read."""

    group: str
    kind: str
    namespace: str
    data: Any
    pods: tuple[WorkloadPods, ...] = ()
    """Empty for a kind that is not known to create pods."""
    target: "Workload | None" = None
    """The target of an autoscaler, with its maximum of replicas. None if it is not known."""
    is_one_gang: bool = False
    """Whether the quota lets all its pods start at once, or none."""
    serve_config: Any = None
    """What `serveConfigV2` of a RayService says, as plain data; None if it cannot be read, and for other kinds."""
    deadline: str = ""
    """Its deadline that passes first while its pods wait, such as `spec.activeDeadlineSeconds: 60`; "" without one."""
    stage_field: str = ""
    """The field by which its pods start in stages, which wait in line one after the other; "" if they do not."""
    completed_by: str = ""
    """What states some of its numbers, such as `ClusterTrainingRuntime torch`; "" if it states them itself."""
    leader_edit: Edit | None = None
    """What lets its pods without GPUs wait for the others. None if they do, or do not fail without them."""

    @property
    def starts_whole(self) -> bool:
        """Whether the quota lets its pods start only together. Of several gangs, one may start before another."""
        gangs = [pod.count for pod in self.pods if pod.count.gang]
        return self.is_one_gang or (
            bool(gangs) and all((gang.running or 0) <= (gang.gang or 0) for gang in gangs)
        )

    @cached_property
    def metadata(self) -> Metadata:
        """The metadata; empty if a field has the wrong type, which no API server stores."""
        try:
            return msgspec.convert(value_at(self.data, ("metadata",)) or {}, Metadata)
        except msgspec.ValidationError:
            return Metadata()

    @property
    def resumed(self) -> "Workload":
        """The workload with the pods that it has when it is not suspended."""
        pods = (replace(pod, count=pod.count.resumed or pod.count) for pod in self.pods)
        return replace(self, pods=tuple(pods))

    def label(self, key: str) -> str:
        return (self.metadata.labels or {}).get(key) or ""

    @property
    def name(self) -> str:
        return self.metadata.name or self.metadata.generate_name or ""
