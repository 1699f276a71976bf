"""Pods of rule host-resources, on classes whose GPUs have CPU and memory that belong to them."""

from typing import Any

import msgspec
from msgspec.structs import replace

from policies.gpus.classes import GPUClasses, HostShare
from policies.pods.limit_ranges import NamespaceLimits, decode_limit_range, namespace_limits
from policies.pods.patch import PodPatch
from policies.rule import Phase
from policies.rules.host_resources import HostResourcesOptions, mutate
from tests.builders import CLASSES, JSON, apply, container, context, view

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
LISTED = "kubernetes.io/limit-ranger"
A100, T4 = ({"accelerator": name} for name in ("nvidia-a100-80gb", "nvidia-t4"))
SHARES = GPUClasses(
    [
        *CLASSES,
        replace(CLASSES.named(("nvidia-a100-80gb",))[0], gpus_per_node=8),  # 12 CPUs and 120Gi for each GPU
        replace(CLASSES.named(("nvidia-a100-40gb",))[0], per_gpu=HostShare(cpu="8", memory="60Gi")),
        replace(CLASSES.named(("nvidia-t4",))[0], per_gpu=HostShare(cpu="6"), equivalents={GPU: "1/4"}),
        replace(CLASSES.named(("amd-mi300x",))[0], per_gpu=None),
    ]
)
NO_LIMITS = namespace_limits(())


def limits(*items: JSON) -> NamespaceLimits:
    document = {"spec": {"limits": [{"type": "Container", **each} for each in items]}}
    return namespace_limits([decode_limit_range(msgspec.json.encode(document))])


def trainer(gpus: str = "1", resource: str = GPU, name: str = "main", **requests: str) -> JSON:
    """Return a container with GPUs; `requests` of CPU and memory, and with a prefix `limit_` limits."""
    limited = {key.removeprefix("limit_"): of for key, of in requests.items() if key.startswith("limit_")}
    wanted = {key: of for key, of in requests.items() if key not in {f"limit_{each}" for each in limited}}
    amounts = {"limits": {resource: gpus, **limited}, **({"requests": wanted} if wanted else {})}
    return container(name, resources=amounts)


def run(
    document: JSON,
    options: HostResourcesOptions = HostResourcesOptions(),  # noqa: B008 - frozen
    known: NamespaceLimits | None = NO_LIMITS,
    **more: Any,
) -> tuple[list[str], list[str], JSON]:
    """Return the changes in words, the findings and the changed pod, which a second run leaves alone."""
    patch = PodPatch(view(document))
    fields = {"classes": SHARES, "limit_ranges": known, **more}
    found = list(mutate(patch, options, context(Phase.MUTATE, **fields)))
    changed = apply(document, patch)
    again = PodPatch(view(changed))
    assert list(mutate(again, options, context(Phase.VALIDATE, **fields))) == found
    assert again.changes == []
    return [each.what for each in patch.changes], [each.sentence() for each in found], changed


def sidecar(**amounts: JSON) -> JSON:
    return container("proxy", resources=amounts)
