"""End pods that run to completion after a time that is known before they start, so that none holds GPUs forever.

Reads:   activeDeadlineSeconds, restartPolicy, ports and readinessProbe; annotation max-runtime; what makes the pod, and its own
         deadline (`policies.pods.workload`).
Adds:    `activeDeadlineSeconds` to a pod that runs to completion and has none: the annotation, else the deadline of the object
         that makes it, which is its author's wish and never cut, else `default`, else `max`, as a LimitRange does.
Denies:  a deadline of the pod, its annotation or its owner above `max`; an annotation that is not a duration.
Warns:   of an annotation that has no effect; of a pod that gets `max` or nothing in place of `default`, because its owner could
         not be read; of a deadline of a workload above `max`, which would be denied to its pods.

Pods run to completion if their owner's kind says so (a Job, a PyTorchJob), or if they do not always restart and no container with
GPUs serves. `exempt.kinds` are left alone. `mode` is disabled by default.
"""

import re
from collections.abc import Iterator

import msgspec

from policies.finding import Edit, Finding, Reason, Severity, one_choice, separate_choices, warning
from policies.gpus.classes import GPUClass, GPUClasses
from policies.placement.pinning import pinning
from policies.pods.annotations import INEFFECTIVE_ANNOTATION, INVALID_ANNOTATION, MAX_RUNTIME, BadAnnotation
from policies.pods.duration import DURATION_MUST, duration_seconds, duration_text, meant_seconds
from policies.pods.field_paths import annotation_path
from policies.pods.patch import PodPatch
from policies.pods.pod import Pod
from policies.pods.workload import Owner, Workload
from policies.rule import Context, Mode, Need, Rule, RuleOptions
from policies.rules.readiness_delay import gpu_places

EXCEEDS_MAX_RUNTIME = Reason("ExceedsMaxRuntime", "a pod may run longer than max of the policy")
OWNER_UNREAD = Reason(
    "OwnerUnread",
    "a pod gets max or no runtime in place of the default, because the object that makes it could not be read",
)

ID = "max-runtime"
PATH = "spec.activeDeadlineSeconds"
LONGEST = "the longest runtime that the policy allows"
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")


class Runtimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Runtimes as text, such as `8h`. `max` also holds as the default where there is none."""

    default: str | None = None
    max: str | None = None

    def problems(self, path: str = "") -> Iterator[tuple[str, str]]:
        for name, text in (("default", self.default), ("max", self.max)):
            if text is not None and duration_seconds(text) is None:
                yield f"{path}{name}", f'{DURATION_MUST}, not "{text}"'
        default, maximum = _seconds(self.default), _seconds(self.max)
        if default is not None and maximum is not None and default > maximum:
            yield f"{path}default", f"must be at most max ({self.max}), not {self.default}"


class Exempt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kinds: tuple[str, ...] = ("RayCluster", "VirtualMachineInstance")
    """Kinds of controllers. By default those whose pods do not always restart, and still end only when somebody deletes them."""


class MaxRuntimeOptions(RuleOptions, frozen=True):
    mode: Mode = Mode.DISABLED
    default: str | None = None
    max: str | None = None
    by_class: dict[str, Runtimes] = msgspec.field(default_factory=dict)
    """By class or family, the class first. What is not set there is as for every class."""
    exempt: Exempt = Exempt()

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from Runtimes(default=self.default, max=self.max).problems()
        for name, runtimes in self.by_class.items():
            yield from runtimes.problems(f"byClass[{name}].")
        for index, kind in enumerate(self.exempt.kinds):
            if not _KIND.fullmatch(kind):
                yield f"exempt.kinds[{index}]", f'must be a kind such as RayCluster, not "{kind}"'

    def class_problems(self, gpu_classes: GPUClasses) -> Iterator[tuple[str, str]]:
        for name in self.by_class:
            if not gpu_classes.resolve(name):
                yield f"byClass[{name}]", f"must be a class or a family{gpu_classes.suggestion(name, ': ')}"

    def limits_for(self, pod: Pod, gpu_classes: GPUClasses) -> tuple[int | None, int | None]:
        """Return default and maximum in seconds, None if there is none. Of several possible classes the longest count."""
        pinned = pinning(pod, gpu_classes) if self.by_class else None
        classes = gpu_classes.named(pinned.classes) if pinned is not None else ()
        runtimes = [self.limits_for_class(each) for each in classes] or [self.limits_for_class(None)]
        defaults, longest = zip(*runtimes, strict=True)
        return (None if None in defaults else max(defaults), None if None in longest else max(longest))

    def limits_for_class(self, gpu_class: GPUClass | None) -> tuple[int | None, int | None]:
        """Return default and maximum for pods of the class, or of none that is known."""
        named = gpu_class and (self.by_class.get(gpu_class.name) or self.by_class.get(gpu_class.family))
        return self._effective(named or Runtimes())

    def _effective(self, of_class: Runtimes) -> tuple[int | None, int | None]:
        maximum = _seconds(of_class.max or self.max)
        default = _seconds(of_class.default or self.default) or maximum
        return (default if default is None or maximum is None else min(default, maximum)), maximum


def _seconds(text: str | None) -> int | None:
    return None if text is None else duration_seconds(text)


def mutate(patch: PodPatch, options: MaxRuntimeOptions, context: Context) -> Iterator[Finding]:
    pod = patch.pod
    if not context.surely_requests_gpus(pod):
        return
    annotated = _annotated_seconds(pod)
    if isinstance(annotated, BadAnnotation):
        yield annotated.finding()
    elif runs_to_completion(pod, context) and context.owner.kind not in options.exempt.kinds:
        yield from _set_deadline(patch, annotated, options, context)
    elif annotated is not None:
        yield _ineffective(pod, "the pod does not run to completion")


def _set_deadline(
    patch: PodPatch, annotated: int | None, options: MaxRuntimeOptions, context: Context
) -> Iterator[Finding]:
    """Give the pod a deadline, unless it has one, or its wish or its owner's deadline exceeds the maximum."""
    pod, owner = patch.pod, context.owner
    (default, maximum), own = options.limits_for(pod, context.classes), pod.spec.active_deadline_seconds
    if own is not None:
        if annotated not in {None, own}:
            yield _ineffective(pod, f"{PATH} is {own}")
        yield from _too_long(own, maximum, PATH)
        return
    seconds = annotated or owner.deadline
    if seconds is None and owner.deadline_is_known:
        seconds = default
    elif seconds is None and owner.problem:
        seconds = maximum  # shortens nothing: a longer deadline of the owner would be denied
        if default is not None and default != maximum:
            yield _owner_unread(default, maximum, owner)
    if seconds is None:
        return
    if maximum is None or seconds <= maximum:
        patch.set_active_deadline(seconds)
    elif annotated is not None:
        yield Finding(
            reason=EXCEEDS_MAX_RUNTIME,
            path=annotation_path(MAX_RUNTIME),
            value=pod.annotations[MAX_RUNTIME],
            message=f"must be at most {duration_text(maximum)}, {LONGEST}",
            choices=one_choice(Edit(annotation_path(MAX_RUNTIME), duration_text(maximum))),
        )
    elif owner.name:  # of a template, `check_workload` names the field
        message = f"{owner.deadline_path} of {owner.name} must be at most {maximum} ({duration_text(maximum)}), not {seconds}"
        yield Finding(reason=EXCEEDS_MAX_RUNTIME, message=message)


def _owner_unread(default: int, maximum: int | None, owner: Owner) -> Finding:
    """Return the warning that a pod gets no default, because its owner, which could not be read, may have a deadline."""
    in_place = "no" if maximum is None else f"max ({duration_text(maximum)}) and no"
    return warning(
        reason=OWNER_UNREAD,
        path=PATH,
        choices=separate_choices(
            Edit(PATH, default), Edit(annotation_path(MAX_RUNTIME), duration_text(default))
        ),
        remedy=f"set it, or annotation {MAX_RUNTIME}",
        message=f"{in_place} default ({duration_text(default)}) is added, because {owner.name} could not be read: "
        f"{owner.problem}",
    )


def check_workload(workload: Workload, options: MaxRuntimeOptions, context: Context) -> Iterator[Finding]:
    """Warn of the workload's own deadline, if it is longer than its pods may run."""
    known: set[str] = set()
    for pods in workload.pods:
        owner = pods.owner
        is_new = owner.deadline is not None and owner.deadline_path not in known
        if is_new and owner.kind not in options.exempt.kinds and context.surely_requests_gpus(pods.pod):
            known.add(owner.deadline_path)
            maximum = options.limits_for(pods.admitted, context.classes)[1]
            for finding in _too_long(owner.deadline, maximum, owner.deadline_path):
                yield msgspec.structs.replace(finding, severity=Severity.WARNING)


def runs_to_completion(pod: Pod, context: Context) -> bool:
    """Whether the pod ends by itself.

    Servers and notebooks do not. They have restartPolicy Always, or a container with GPUs that has a port or a readinessProbe.
    """
    if context.owner.completes:
        return True
    if pod.spec.restart_policy not in {"Never", "OnFailure"}:
        return False
    containers = (place.container for place in gpu_places(pod, context) or pod.apps)
    return not any(container.ports or container.readiness_probe for container in containers)


def _annotated_seconds(pod: Pod) -> int | BadAnnotation | None:
    """Return the seconds of the annotation, None without one."""
    text = pod.annotations.get(MAX_RUNTIME)
    if text is None:
        return None
    seconds, meant = duration_seconds(text.strip()), meant_seconds(text.strip())
    written = duration_text(meant) if meant else ""
    return seconds or BadAnnotation(
        MAX_RUNTIME, text, DURATION_MUST, f'set for example {MAX_RUNTIME}: "8h"', written, "8h"
    )


def _ineffective(pod: Pod, why: str) -> Finding:
    return warning(
        reason=INEFFECTIVE_ANNOTATION,
        path=annotation_path(MAX_RUNTIME),
        value=pod.annotations[MAX_RUNTIME],
        message=f"has no effect: {why}",
    )


def _too_long(seconds: int | str | None, maximum: int | None, path: str) -> Iterator[Finding]:
    """Yield the denial of a deadline above the maximum. A text is a parameter that a tool will replace, so it is unknown."""
    if maximum is not None and isinstance(seconds, int) and seconds > maximum:
        yield Finding(
            reason=EXCEEDS_MAX_RUNTIME,
            path=path,
            value=str(seconds),
            message=f"must be at most {maximum} ({duration_text(maximum)}), {LONGEST}",
            choices=one_choice(Edit(path, maximum)),
        )


RULE = Rule(
    id=ID,
    reasons=(INVALID_ANNOTATION, INEFFECTIVE_ANNOTATION, EXCEEDS_MAX_RUNTIME, OWNER_UNREAD),
    summary="pods that run to completion end within a known time",
    options=MaxRuntimeOptions,
    mutate=mutate,
    check_workload=check_workload,
    needs=frozenset({Need.OWNER}),
    exported_without={
        "pods that controllers of Kubernetes make": "their deadline may be that of their Job, which CEL cannot look up",
        "what it adds": "a pod without a deadline is denied: the default may be that of its owner, and the webhook adds it",
        "annotation max-runtime": "the webhook reads it before, and sets the field",
        "pods that only use claims (DRA)": "CEL cannot look up their devices",
    },
)
