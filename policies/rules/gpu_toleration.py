"""Let GPU pods, and only GPU pods, onto tainted GPU nodes.

Reads: what asks for a GPU, existing tolerations, the class to which the pod is pinned.
Adds:  the policy's tolerations and those of the class, each unless one that is there covers it already.
"""

from collections.abc import Iterator

from policies.finding import Finding
from policies.placement.pinning import pinning
from policies.pods.patch import PodPatch
from policies.pods.pod import Toleration
from policies.pods.tolerations import covers, toleration_problems
from policies.rule import Context, Rule, RuleOptions

NVIDIA_GPU = Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule")
"""The taint that GPU node pools carry by convention (GKE sets it; NVIDIA's and most clouds' guides use it)."""


class GPUTolerationOptions(RuleOptions, frozen=True):
    tolerations: tuple[Toleration, ...] = (NVIDIA_GPU,)

    def problems(self) -> Iterator[tuple[str, str]]:
        for index, toleration in enumerate(self.tolerations):
            yield from toleration_problems(toleration, f"tolerations[{index}]", key_is_required=True)


def mutate(patch: PodPatch, options: GPUTolerationOptions, context: Context) -> Iterator[Finding]:
    pod = patch.pod
    if not context.resource_mapping.pod_asks(pod):
        return
    wanted = list(options.tolerations)
    pinned = pinning(pod, context.classes)
    for gpu_class in context.classes.named(pinned.classes) if pinned else ():
        wanted += gpu_class.tolerations
    for toleration in wanted:
        if not any(covers(existing, toleration) for existing in patch.pod.body.tolerations or ()):
            patch.add_toleration(toleration)
    yield from ()


RULE = Rule(
    id="gpu-toleration",
    summary="GPU pods tolerate the taints of GPU nodes",
    options=GPUTolerationOptions,
    mutate=mutate,
)
