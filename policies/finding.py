"""Findings of rules about a pod, each one sentence: the field and its value, what to write, why, a contact, and the rule."""

import re
from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from typing import Self

import msgspec
from msgspec.structs import replace


class Severity(Enum):
    """How serious a finding is while its rule is enforced; the rule's mode can only soften it."""

    DENIAL = "denial"
    WARNING = "warning"


class Reason(StrEnum):
    """A stable name for programs: in audit lines, metrics, Events, SARIF and `status.details.causes`. And its meaning."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        reason = str.__new__(cls, name)
        reason._value_, reason.meaning = name, meaning
        return reason

    INVALID_QUANTITY = "InvalidQuantity", "an amount of GPUs is invalid, negative, or too large"
    FRACTIONAL_GPU = "FractionalGPU", "an amount of GPUs is not a whole number"
    REQUEST_NOT_LIMIT = "RequestNotLimit", "a GPU request differs from its limit"
    MISSING_LIMIT = "MissingLimit", "a GPU request has no limit"
    EXCEEDS_MAX_PER_CONTAINER = (
        "ExceedsMaxPerContainer",
        "a container requests more than maxPerContainer of the policy",
    )
    EXCEEDS_MAX_PER_POD = "ExceedsMaxPerPod", "a pod requests more than maxPerPod of the policy"
    EXCEEDS_NODE = "ExceedsNode", "a pod requests more than any node has"
    OTHER_VENDOR = "OtherVendor", "a pod requests GPUs of another vendor than those of its class"
    UNKNOWN_SLICE = "UnknownSlice", "no class or node on which the pod can run has the MIG profile"
    SEVERAL_SLICES = (
        "SeveralSlices",
        "a container requests several slices or shares, of which a process sees one",
    )
    DEVICE_VARIABLE = "DeviceVariable", "a container with GPUs sets a variable that the device plugin sets"
    DAEMONSET_HOLDS_GPUS = "DaemonSetHoldsGPUs", "a DaemonSet holds whole GPUs on every node"
    FRACTION_BESIDE_GPUS = "FractionBesideGPUs", "a fraction annotation stands beside whole GPUs"
    FRACTION_TOO_SMALL = "FractionTooSmall", "a fraction annotation counts as more than it says"

    INVALID_ANNOTATION = "InvalidAnnotation", "an annotation has an invalid value"
    INEFFECTIVE_ANNOTATION = "IneffectiveAnnotation", "an annotation has no effect"
    UNKNOWN_ANNOTATION = "UnknownAnnotation", "an annotation or label of gpu-admission.dev/ is not read"
    INVALID_RESOURCE_NAME = "InvalidResourceName", "the API server refuses the name of a GPU resource"
    UNKNOWN_RESOURCE_NAME = (
        "UnknownResourceName",
        "the name of a resource nearly equals that of a GPU resource",
    )
    MISPLACED_FIELD = "MisplacedField", "a field is written where nothing reads it"
    UNREAD_GPUS = "UnreadGPUs", "the object contains GPU resources that gpu-admission does not read"

    UNKNOWN_CLASS = "UnknownClass", "a pod names a GPU class that the catalogue does not have"
    CLASS_NOT_OFFERED = "ClassNotOffered", "a class does not have the resources that the pod requests"
    CLASS_CONTRADICTION = (
        "ClassContradiction",
        "constraints of a pod contradict each other, or its annotation",
    )
    CLASS_NOT_PINNED = "ClassNotPinned", "a pod cannot be pinned to its class"
    CLASS_NOT_ALLOWED = "ClassNotAllowed", "the namespace may not use a class on which the pod could run"
    MODEL_TOO_LARGE = "ModelTooLarge", "the model of a pod needs more GPU memory than the class has"
    NO_NODE = "NoNode", "no node can take the pod now, and none can be created"
    DRIVER_TOO_OLD = "DriverTooOld", "no node that can take the pod has the CUDA version"
    MISSING_TOLERATION = "MissingToleration", "a DaemonSet does not tolerate the taint of GPU nodes"

    EXCEEDS_MAX_RUNTIME = "ExceedsMaxRuntime", "a pod may run longer than max of the policy"
    OWNER_UNREAD = (
        "OwnerUnread",
        "a pod gets max or no runtime in place of the default, because the object that makes it could not be read",
    )
    NO_DISRUPTION_BUDGET = (
        "NoDisruptionBudget",
        "no PodDisruptionBudget selects the replicas of a server",
    )
    EXCEEDS_SHARE = "ExceedsShare", "a pod requests more CPU or memory than the share of its GPUs"

    PROBE_KILLS_LOADING = "ProbeKillsLoading", "a probe kills the container before its model is loaded"
    SCALES_TO_ZERO = "ScalesToZero", "the first request waits until a model is loaded"
    SHARED_MEMORY_NOT_ADDED = "SharedMemoryNotAdded", "a volume for /dev/shm is not added"
    MORE_PROCESSES = "MoreProcesses", "a container starts more processes than it has GPUs"
    IDLE_GPUS = "IdleGPUs", "a container starts fewer processes than it has GPUs"
    MODEL_NOT_FETCHED = "ModelNotFetched", "the model is not fetched in advance, or its fetching fails"

    EXPOSED_GPUS = "ExposedGPUs", "a container reaches GPUs that it does not request"
    PRIVILEGED_CONTAINER = "PrivilegedContainer", "a privileged container on a GPU node sees all GPUs"
    TOLERATES_GPU_TAINT = "ToleratesGPUTaint", "a pod without GPUs tolerates the taint of GPU nodes"

    QUOTA_EXCEEDED = "QuotaExceeded", "the request and the usage of the namespace together exceed the quota"
    QUOTA_CAN_NEVER_FIT = "QuotaCanNeverFit", "the request exceeds the whole quota"
    BUDGET_SPENT = "BudgetSpent", "the GPU-hours that the namespace may use in this period are spent"
    BUDGET_LOW = "BudgetLow", "few of the GPU-hours that the namespace may use in this period are left"
    QUOTA_QUEUED = "QuotaQueued", "the pod waits in line for quota"
    OTHERS_WAIT = "OthersWait", "other pods wait in line for the quota"
    UNWANTED_GATE = "UnwantedGate", "the pod has the gate of the line for quota, where pods do not wait"
    NOT_STORED = "NotStored", "pods of the namespace were admitted lately, and never stored"
    QUEUE_FULL = "QueueFull", "as many pods wait in line for the quota as may"
    QUOTA_MISSING = "QuotaMissing", "the policy requires a GPUQuota, and the namespace has none"
    QUOTA_NOT_COUNTED = "QuotaNotCounted", "the quota, or a dimension of it, has not been counted yet"
    QUOTA_RECALCULATING = "QuotaRecalculating", "the quota is being recalculated under a new catalogue"
    LEDGER_UNREACHABLE = "LedgerUnreachable", "the ledger of the quota could not be read or written"
    LEDGER_UNREADABLE = "LedgerUnreadable", "the ledger of the quota has reservations that cannot be read"
    LEDGER_FULL = "LedgerFull", "the ledger of the quota cannot hold more reservations"
    CHARGED_WHILE_WAITING = "ChargedWhileWaiting", "a ResourceQuota also counts pods that wait in line"
    INEFFECTIVE_QUOTA = (
        "IneffectiveQuota",
        "a key of a ResourceQuota or GPUQuota has no effect, or is invalid",
    )
    UNCOUNTABLE_DEVICES = "UncountableDevices", "the devices of a pod or claim cannot be counted"
    UNCLASSIFIED_POD = "UnclassifiedPod", "the quota counts by class, and the pod or claim names none"
    PROTECTED_CLAIM = (
        "ProtectedClaim",
        "a ResourceClaim must keep an annotation or finalizer that the quota needs",
    )

    INJECTION_MISSING = "InjectionMissing", "an injected field is missing from the final pod"
    INJECTION_KEPT = "InjectionKept", "an injected field keeps its value in an update"
    WOULD_INJECT = "WouldInject", "a rule that is not enforced would change the pod"
    TOO_LARGE = "TooLarge", "an object has more or longer fields than are read"
    INVALID_DOCUMENT = "InvalidDocument", "a document of gpu-admission.dev is invalid, or not in force"


PLATFORM_TEAM = "the platform team"
"""The contact if the policy names none (`spec.help`)."""

VALUE_LENGTH = 120
"""The most characters of a value in a sentence; an annotation may hold 256 KiB."""

_TEMPLATE = re.compile(
    r"((?:[\w-]+(?:\[[^\]]*\])?\.)*)(?!jobTemplate\.)(\w*[tT]emplate)\.(spec|metadata)(\..+)?", re.DOTALL
)
_FIELD = re.compile(r"[^.\[\]]+\[\d+\]$|\[([^\]]*)\]$|[^.\[\]]+$")
"""The last field of a path: a key in brackets, an item with its list, or a name."""
_EVERY_WORKLOAD = frozenset({"spec", "template", "jobTemplate", "podTemplate"})
"""Steps to a pod template that tell none from another."""


def truncate(value: str, length: int = VALUE_LENGTH) -> str:
    """Return the value, cut to so many characters."""
    return value if len(value) <= length else value[: length - 1] + "…"


def short_path(path: str) -> str:
    """Return the path without the way to a pod template, but for the step that distinguishes several.

    `spec.template.spec.containers[0]` → `containers[0]`, `spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]` →
    `Worker…containers[0]`, `spec.template.metadata.annotations[x]` → `template.metadata.annotations[x]`.
    """
    found = _TEMPLATE.fullmatch(path)
    if found is None:
        return path
    way, template, part, rest = found.groups()
    steps = [step for step in (*way.split("."), template) if step and step not in _EVERY_WORKLOAD]
    inside = f"{part}{rest or ''}"
    below = inside.removeprefix("spec.") if inside != "spec" or steps else "template.spec"
    if part == "metadata" and (template == "template" or not steps):
        below = f"{template}.{below}"
    return f"{steps[-1]}…{below}" if steps else below


class Edit(msgspec.Struct, frozen=True):
    """One change of an object: the field at the path gets the value; None removes it. Missing parents become maps."""

    path: str
    value: str | float | None = None

    @property
    def words(self) -> str:
        """In words: `set nvidia.com/gpu: 1`, `remove env[2]`, `remove label x/y`."""
        field = _FIELD.search(self.path)
        name = field[1] or field[0] if field else self.path
        name = f"label {name}" if ".labels[" in self.path else name
        return f"remove {name}" if self.value is None else f"set {name}: {self.value}"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem of a pod, or advice.

    path: relative to the pod (`spec.containers[0]…`). value: the value of the field; decimal: the same amount as a
      decimal number, if the value has a suffix (0.5 for "500m").
    message: what must hold and why. fix: edits of the object that remove the finding, and bring no other.
    remedy: what to write, in words; "" if the fix says it. ask: what the people who run the cluster can do, as an infinitive
      ("to raise spec.hard.gpus"); the evaluation fills in their `contact` if the finding has none.
    details: further facts, for lines of their own in a denial.
    """

    rule: str
    reason: Reason
    message: str
    severity: Severity = Severity.DENIAL
    path: str = ""
    container: str | None = None
    value: str | None = None
    decimal: str = ""
    fix: tuple[Edit, ...] = ()
    remedy: str = ""
    ask: str = ""
    details: tuple[str, ...] = ()
    contact: str = PLATFORM_TEAM

    @property
    def escalation(self) -> str:
        """In words, e.g. `ask the platform team to raise spec.hard.gpus`; empty without `ask`."""
        return f"ask {self.contact} {self.ask}" if self.ask else ""

    def with_contact(self, contact: str) -> "Finding":
        """Return the finding with this contact, unless it names one of its own."""
        return replace(self, contact=contact) if self.ask and self.contact == PLATFORM_TEAM else self

    def at(self, path_of: Callable[[str], str]) -> "Finding":
        """Return the finding about the same fields of another object, at the paths that `path_of` says."""
        fix = tuple(Edit(path_of(edit.path), edit.value) for edit in self.fix)
        return replace(self, path=path_of(self.path), fix=fix)

    @property
    def advice(self) -> str:
        """What to write, in words: the remedy, or else the fix."""
        return self.remedy or self.fix_in_words

    @property
    def fix_in_words(self) -> str:
        return " and ".join(dict.fromkeys(edit.words for edit in self.fix))

    def sentence(self) -> str:
        """Return all of it as one line.

        `spec.containers[0].… (container "main") = "500m" (0.5): set …; must …; or ask … [gpu-requests]`
        """
        text, advice = self.message, self.advice
        if advice.endswith("?"):
            is_predicate = text.startswith(("must ", "should "))
            text = f"{advice} The value {text}" if is_predicate else f"{advice} {text[:1].upper()}{text[1:]}"
        elif advice:
            text = f"{advice}; {text}"
        if self.ask:
            text += f"; {'or ' if advice else ''}{self.escalation}"
        return self._line(text)

    def brief(self, length: int) -> str:
        """Return the same without the reasons, cut to `length` characters where there is no remedy."""
        return self._line(self.advice) if self.advice else truncate(self.sentence(), length)

    def _line(self, text: str) -> str:
        subject = short_path(self.path)
        if self.container is not None:
            subject += f' (container "{self.container}")'
        if self.value is not None:
            subject += f' = "{truncate(self.value)}"'
        if self.decimal:
            subject += f" ({self.decimal})"
        return f"{subject.strip()}: {text} [{self.rule}]" if subject else f"{text} [{self.rule}]"


_INJECTED = {Reason.INJECTION_MISSING, Reason.INJECTION_KEPT, Reason.WOULD_INJECT}
_REASONS = {
    "gpu-requests": _INJECTED
    | {Reason.INVALID_QUANTITY, Reason.FRACTIONAL_GPU, Reason.REQUEST_NOT_LIMIT, Reason.MISSING_LIMIT}
    | {Reason.EXCEEDS_MAX_PER_CONTAINER, Reason.EXCEEDS_MAX_PER_POD, Reason.EXCEEDS_NODE, Reason.NO_NODE}
    | {Reason.OTHER_VENDOR, Reason.UNKNOWN_SLICE, Reason.SEVERAL_SLICES, Reason.DEVICE_VARIABLE}
    | {Reason.DAEMONSET_HOLDS_GPUS, Reason.FRACTION_BESIDE_GPUS, Reason.FRACTION_TOO_SMALL}
    | {Reason.INVALID_ANNOTATION, Reason.INEFFECTIVE_ANNOTATION},
    "ineffective-fields": {Reason.INEFFECTIVE_ANNOTATION, Reason.UNKNOWN_ANNOTATION, Reason.MISPLACED_FIELD}
    | {Reason.INVALID_RESOURCE_NAME, Reason.UNKNOWN_RESOURCE_NAME},
    "gpu-class": _INJECTED
    | {Reason.UNKNOWN_CLASS, Reason.CLASS_NOT_OFFERED, Reason.CLASS_CONTRADICTION, Reason.CLASS_NOT_PINNED}
    | {Reason.CLASS_NOT_ALLOWED, Reason.MODEL_TOO_LARGE, Reason.NO_NODE}
    | {Reason.INVALID_ANNOTATION, Reason.INEFFECTIVE_ANNOTATION},
    "cuda-version": _INJECTED
    | {Reason.DRIVER_TOO_OLD, Reason.INVALID_ANNOTATION, Reason.INEFFECTIVE_ANNOTATION},
    "gpu-toleration": _INJECTED | {Reason.MISSING_TOLERATION, Reason.NO_NODE},
    "spot": _INJECTED | {Reason.INVALID_ANNOTATION, Reason.INEFFECTIVE_ANNOTATION},
    "max-runtime": _INJECTED
    | {
        Reason.EXCEEDS_MAX_RUNTIME,
        Reason.OWNER_UNREAD,
        Reason.INVALID_ANNOTATION,
        Reason.INEFFECTIVE_ANNOTATION,
    },
    "disruption": _INJECTED | {Reason.NO_DISRUPTION_BUDGET},
    "host-resources": _INJECTED | {Reason.EXCEEDS_SHARE},
    "readiness-delay": _INJECTED
    | {Reason.PROBE_KILLS_LOADING, Reason.SCALES_TO_ZERO}
    | {Reason.INVALID_ANNOTATION, Reason.INEFFECTIVE_ANNOTATION},
    "shared-memory": _INJECTED | {Reason.SHARED_MEMORY_NOT_ADDED},
    "parallelism": {Reason.MORE_PROCESSES, Reason.IDLE_GPUS, Reason.SEVERAL_SLICES},
    "model-warming": _INJECTED
    | {Reason.MODEL_NOT_FETCHED, Reason.INVALID_ANNOTATION, Reason.INEFFECTIVE_ANNOTATION},
    "gpu-isolation": _INJECTED
    | {Reason.EXPOSED_GPUS, Reason.PRIVILEGED_CONTAINER, Reason.TOLERATES_GPU_TAINT, Reason.DEVICE_VARIABLE},
    "gpu-quota": {Reason.QUOTA_EXCEEDED, Reason.QUOTA_CAN_NEVER_FIT, Reason.QUOTA_MISSING}
    | {Reason.QUOTA_QUEUED, Reason.OTHERS_WAIT, Reason.QUEUE_FULL, Reason.CHARGED_WHILE_WAITING}
    | {Reason.BUDGET_SPENT, Reason.BUDGET_LOW, Reason.UNWANTED_GATE, Reason.NOT_STORED}
    | {Reason.QUOTA_NOT_COUNTED, Reason.QUOTA_RECALCULATING, Reason.INEFFECTIVE_QUOTA}
    | {Reason.LEDGER_UNREACHABLE, Reason.LEDGER_UNREADABLE, Reason.LEDGER_FULL}
    | {Reason.UNCOUNTABLE_DEVICES, Reason.UNCLASSIFIED_POD, Reason.PROTECTED_CLAIM}
    | {Reason.INVALID_QUANTITY, Reason.INVALID_ANNOTATION},
}
RULES_BY_REASON: Mapping[Reason, tuple[str, ...]] = {
    reason: tuple(rule for rule, reasons in _REASONS.items() if reason in reasons) for reason in Reason
}
"""The rules whose findings have the reason. Empty for a reason that belongs to no rule."""
