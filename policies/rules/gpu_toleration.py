"""Let GPU pods, and only GPU pods, onto tainted GPU nodes.

Reads: what asks for a GPU, existing tolerations, the class to which the pod is pinned.
Adds:  the policy's tolerations and those of the class, each unless one that is there covers it already.
"""

from collections.abc import Iterator

from policies.finding import Finding
from policies.gpus.classes import toleration_problems
from policies.placement.pinning import pinning
from policies.pods.patch import PodPatch
from policies.pods.pod import Toleration
from policies.rule import Context, Rule, RuleOptions

NVIDIA_GPU = Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule")
"""The taint that GPU node pools carry by convention (GKE sets it; NVIDIA's and most clouds' guides use it)."""


class Options(RuleOptions, frozen=True):
    tolerations: tuple[Toleration, ...] = (NVIDIA_GPU,)

    def problems(self) -> Iterator[tuple[str, str]]:
        for index, toleration in enumerate(self.tolerations):
            path = f"tolerations[{index}]"
            found = toleration_problems(path, toleration)
            if toleration.key:
                yield from found
            else:
                # The API server takes one with operator Exists; nobody should inject it.
                yield (
                    f"{path}.key",
                    "is missing: a toleration without a key would tolerate every taint there is",
                )
                yield from (problem for problem in found if problem[0] != f"{path}.key")


def mutate(patch: PodPatch, options: Options, context: Context) -> Iterator[Finding]:
    pod = patch.pod
    if not context.resource_mapping.pod_asks(pod):
        return
    wanted = list(options.tolerations)
    pinned = pinning(pod, context.classes)
    for name in pinned.classes if pinned else ():
        gpu_class = context.classes.get(name)
        wanted += gpu_class.tolerations if gpu_class else ()
    for toleration in wanted:
        if not any(covers(existing, toleration) for existing in patch.pod.body.tolerations or ()):
            patch.add_toleration(toleration)
    yield from ()


def covers(existing: Toleration, wanted: Toleration) -> bool:
    """Whether every taint that `wanted` tolerates is tolerated by `existing`, for as long."""
    if existing.effect and existing.effect != wanted.effect:
        return False
    if existing.toleration_seconds is not None and existing.toleration_seconds != wanted.toleration_seconds:
        return False
    if not existing.key:
        return existing.operator == "Exists"
    if existing.key != wanted.key:
        return False
    if existing.operator == "Exists":
        return True
    return wanted.operator != "Exists" and (existing.value or "") == (wanted.value or "")


RULE = Rule(
    id="gpu-toleration",
    summary="GPU pods tolerate the taints of GPU nodes",
    options=Options,
    mutate=mutate,
)
