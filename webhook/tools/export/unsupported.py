"""What of the rules is left to the webhook, and why: told with every export, so that nobody counts on more than there is."""

from collections.abc import Iterator, Sequence

import msgspec

from policies.placement.class_choice import ANY
from policies.policy import Binding
from policies.rules import (
    gpu_class,
    gpu_isolation,
    gpu_quota,
    gpu_requests,
    gpu_toleration,
    model_warming,
    readiness_delay,
    shared_memory,
)

EVERY_POLICY = ""


class Unsupported(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that is not exported: of which rule, what of it, why; `policy` where it is one policy's doing."""

    rule: str
    what: str
    why: str
    policy: str = EVERY_POLICY

    def __str__(self) -> str:
        subject = f"{self.rule} of policy {self.policy}" if self.policy else self.rule
        return f"{subject}: {self.what}: {self.why}"


_ALL = "all of it"
_TEMPLATES = (
    "pod templates of workloads",
    "their pods are looked at when they are created; a policy per kind would tell no more",
)

_STATIC: dict[str, tuple[tuple[str, str], ...]] = {
    gpu_requests.RULE.id: (
        (
            "slices that no class has, too many of them for a node, the resource of another vendor than the class's",
            "what a class has depends on where the pod can land, which is worked out over the whole catalogue",
        ),
        (
            "the values of fraction annotations",
            "their scheduler refuses them itself; the pod gets no GPU by them",
        ),
        ("warnings", "of time-sliced shares and of variables set by hand: advice, told by the webhook"),
        (
            "amounts finer than thousandths",
            "CEL compares quantities exactly, the API server rounds them up to thousandths",
        ),
    ),
    gpu_class.RULE.id: (
        (
            "the choice of a class by annotation, model size or default, and the nodeSelector for it",
            "it is worked out from estimates over the catalogue; where classes are restricted, pods have to pin themselves",
        ),
        (
            "annotations that contradict the pod's own placement, or name a class that lacks what the pod asks for",
            "follows from the choice",
        ),
        _TEMPLATES,
    ),
    gpu_isolation.RULE.id: (_TEMPLATES,),
    readiness_delay.RULE.id: (
        (_ALL, "the load time is estimated over the pod as a whole; without it probes stay as written"),
    ),
    shared_memory.RULE.id: (
        (_ALL, "its size is worked out from the pod's memory; without it /dev/shm has 64 MiB"),
    ),
    model_warming.RULE.id: (
        (_ALL, "it adds a container with a program in it; without it the server loads the model itself"),
    ),
    gpu_quota.RULE.id: ((_ALL, "it counts over all pods of a namespace, and CEL sees one object at a time"),),
}


def of_binding(binding: Binding, other_kinds: Sequence[str]) -> Iterator[Unsupported]:
    """Yield what is never exported of this rule, with these options; `other_kinds` have pods that CEL does not find."""
    rule_id, options = binding.rule.id, binding.options
    for what, why in _STATIC.get(rule_id, ()):
        yield Unsupported(rule=rule_id, what=what, why=why)
    if isinstance(options, gpu_requests.GPURequestsOptions) and other_kinds:
        yield Unsupported(
            rule=rule_id,
            what=f"some or all pods of {', '.join(other_kinds)}",
            why="they are put together from several parts, or lie in lists of lists, of which CEL can make no list",
        )
    if isinstance(options, gpu_requests.GPURequestsOptions) and options.complete_limits:
        yield Unsupported(
            rule=rule_id,
            what="completeLimits",
            why="without the webhook such pods are refused by the API server itself",
        )
    if isinstance(options, gpu_class.GPUClassOptions) and ANY in options.allowed:
        yield Unsupported(
            rule=rule_id, what="entitlement", why="every class is allowed, so there is nothing to refuse"
        )


def not_injected(policy: str, binding: Binding, mode: str) -> Unsupported:
    return Unsupported(
        rule=binding.rule.id,
        policy=policy,
        what="what it adds",
        why=f"mode {mode}: a policy of the API server can add, but not tell what it would have added",
    )


def without_mutations(rule_id: str) -> Unsupported:
    return Unsupported(
        rule=rule_id,
        what="what it adds",
        why="needs MutatingAdmissionPolicy: Kubernetes 1.36, or 1.34 where its beta is switched on",
    )


INJECTING = frozenset({gpu_toleration.RULE.id, gpu_isolation.RULE.id})
