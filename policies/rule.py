"""A rule: an id, options, and pure functions over a pod.

`mutate` changes a draft and may yield findings; `check` only yields findings. At /mutate the changes of `mutate` are sent,
and `check` runs before it if `check_before_mutation`. At /validate `check` runs, and `mutate` on a scratch copy: a change that it
still makes there was lost. On a pod template both run, `mutate` on a scratch copy, and only the findings count.

`check_claim` checks ResourceClaims and their templates. `check_claim_template` advises on a ResourceClaimTemplate,
`check_workload` once on an object that is not a pod, such as a Deployment. Findings of these two are warnings in every mode. No
rule asks the quota: the evaluator does, if no rule denies, and `check_reservation` reports its answer.

A rule declares in its own file its id, its reasons, and what it needs. No finding names its rule: the evaluation fills it in.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import Enum, auto
from typing import Any, ClassVar

import msgspec

from policies.finding import Finding, Reason
from policies.gpus.claimed_devices import ClaimSpec, GPUCount, ResourceClaimTemplate
from policies.gpus.classes import GPUClasses
from policies.gpus.device_types import NO_TAINTS, DeviceTypeTaints
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.nodes import NodeFacts
from policies.pods.label_selector import LabelSelector
from policies.pods.limit_ranges import NamespaceLimits
from policies.pods.patch import PodPatch
from policies.pods.pod import Pod, Toleration
from policies.pods.workload import NO_OWNER, Owner, Workload
from policies.quota.ledger.quota_ledger import QuotaLedger


class Mode(Enum):
    """How strictly a rule is applied."""

    ENFORCE = "enforce"
    WARN = "warn"
    AUDIT = "audit"
    DISABLED = "disabled"


class Phase(Enum):
    MUTATE = "mutate"
    VALIDATE = "validate"
    TEMPLATE = "template"


class Need(Enum):
    """A fact besides the pod that is read only for the rules that declare it."""

    OWNER = auto()
    """The object that creates the pod."""
    LIMIT_RANGES = auto()
    LEDGER = auto()
    """The ledger of the quota, for `check_workload` and `check_claim_template`."""
    PDBS = auto()
    """The PodDisruptionBudgets of the namespace, for `check_workload`."""


class RuleOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The options of every rule; a rule's own are a subclass.

    `removed`: options of earlier versions, by name, and what to write instead.
    """

    removed: ClassVar[Mapping[str, str]] = {}
    mode: Mode = Mode.ENFORCE

    @property
    def queues_pods(self) -> bool:
        """Whether pods that exceed the quota wait in line while the rule is enforced."""
        return False

    @property
    def respects_kueue(self) -> bool:
        """Whether pods that Kueue has admitted start also beyond the quota."""
        return False

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the options, sentence) for every value that has the right type and is invalid."""
        yield from ()

    def advice(self) -> Iterator[tuple[str, str]]:
        """Yield likewise what is valid, but probably a mistake."""
        yield from ()

    def class_problems(self, gpu_classes: GPUClasses) -> Iterator[tuple[str, str]]:  # noqa: ARG002 - for subclasses
        """Yield likewise the GPU classes that do not exist."""
        yield from ()


FETCHER_IMAGE = "gpu-admission-fetcher:0.1.0"
"""What model-warming runs where neither the policy nor `serve --fetcher-image` names an image; `deploy/Dockerfile` builds it."""


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Everything besides the pod that a rule may look at."""

    phase: Phase
    namespace: str
    now: datetime
    classes: GPUClasses
    resource_mapping: ResourceMapping
    device_classes: tuple[str, ...] = ()
    """DeviceClasses with accelerators that the pod's claims request. `policies.gpus.claimed_devices` removes other claims."""
    claim_classes: Mapping[str, frozenset[str]] = {}
    """By name of a claim in the pod, the classes that its devices may be of (`policies.placement.claim_classes`), if known."""
    claimed_gpus: GPUCount | None = None
    """The GPUs that its only claim requests, if they are known."""
    device_taints: DeviceTypeTaints = NO_TAINTS
    claim_taints: Mapping[str, tuple[Toleration, ...]] = {}
    """By name of a claim in the pod, the taints of devices that keep it from all of them (`ClaimedClasses.taints`)."""
    made_by_daemonset: bool = False
    """The pod comes from a DaemonSet, or is its template: its placement is decided already."""
    owner: Owner = NO_OWNER
    """The object that creates the pod, if a rule needs it."""
    is_update: bool = False
    fetcher_image: str = FETCHER_IMAGE
    nodes: NodeFacts | None = None
    """The nodes of the cluster, None if they are not known."""
    limit_ranges: NamespaceLimits | None = None
    """The LimitRanges of the namespace. None if no rule needs them, or they cannot be read."""
    ledger: QuotaLedger | None = None
    """The ledger of the namespace. None without a quota, or if no rule needs it."""
    lets_wait: bool = False
    """Whether new pods that exceed the quota of this ledger wait in line now."""
    pdb_selectors: tuple[LabelSelector, ...] | None = None
    """The selectors of the namespace's PodDisruptionBudgets. None if no rule needs them, or they cannot be read."""
    config_maps: Mapping[str, Mapping[str, str]] = {}
    """The data of ConfigMaps of the namespace, by name, as far as they are known: none in a review."""
    options_of: Callable[[str], RuleOptions | None] = lambda _rule_id: None
    """The options of another rule, None if it is disabled. Some rules depend on others."""

    def surely_requests_gpus(self, pod: Pod) -> bool:
        """Whether the pod requests a GPU, and not only unknown devices."""
        return bool(self.device_classes) or self.resource_mapping.requests_gpus_without_claims(pod)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the registry."""

    id: str
    summary: str
    reasons: tuple[Reason, ...] = ()
    """The reasons of its findings. A rule that mutates has the reasons of injected fields, too."""
    options: type[RuleOptions] = RuleOptions
    mutate: Callable[[PodPatch, Any, Context], Iterator[Finding]] | None = None
    check: Callable[[Pod, Any, Context], Iterator[Finding]] | None = None
    check_claim: Callable[[ClaimSpec | None, str, Any, Context], Iterator[Finding]] | None = None
    """Check what a ResourceClaim, or a template of claims, requests. The text is the path of the spec in the object."""
    check_claim_template: Callable[[ResourceClaimTemplate, Context], Iterator[Finding]] | None = None
    check_workload: Callable[[Workload, Any, Context], Iterator[Finding]] | None = None
    """Advise on an object as a whole; paths start at the object. `check` reports the problems of its pods."""
    concerns: Callable[[Workload, ResourceMapping], bool] = lambda _workload, _mapping: True
    """Whether `check_workload` may say something about an object. Only then it is called, and what it needs is read."""
    check_reservation: Callable[..., Iterator[Finding]] | None = None
    """Report the answer of the quota (`policies.rules.gpu_quota.check_reservation`). Exactly one rule does."""
    check_before_mutation: bool = False
    """Also check before all mutations: the API server would refuse the pod right after /mutate with a worse sentence."""
    not_fixable: str = ""
    """Why no finding that denies has a fix, "" if one has, or if the rule denies nothing."""
    not_exported: str = ""
    """Why `gpu-admission export` leaves the rule to the webhook, "" if it exports it."""
    exported_without: Mapping[str, str] = {}
    """What of an exported rule stays with the webhook, and why."""
    metadata_keys: tuple[str, ...] = ()
    """Globs over the keys of annotations and labels that it reads, besides those of `gpu-admission.dev/` and of
    GPUResourceMappings. Two pods that differ only in other keys get the same decision."""
    needs: frozenset[Need] = frozenset()
    checks_updates: bool = False
    """Also check a pod whose placement changed after it was created (a scheduling gate was lifted)."""
