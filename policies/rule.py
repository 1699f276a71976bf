"""What a rule is: an id, options, and pure functions over a pod.

`mutate` changes a draft and may yield findings; `check` only yields findings. When each runs:

=============  ==========================  =======================================
phase          `mutate`                    `check`
=============  ==========================  =======================================
/mutate        yes, its changes are sent   if `check_before_mutation`, first of all
/validate      on a scratch copy: what it  yes
               still wants did not survive
template       on a scratch copy, findings yes
               only
=============  ==========================  =======================================

`check_claim_template` advises on a ResourceClaimTemplate, and `check_workload` once on an object that is not a pod, such as a
Deployment: in every mode what they yield is a warning. No rule asks the quota: that is done after all rules, if nothing denies.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from enum import Enum
from typing import Any

import msgspec

from policies.finding import Finding
from policies.gpus.claims import NO_DEVICES, ClaimedDevices, ResourceClaimTemplate
from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.nodes import NodeFacts
from policies.pods.patch import PodPatch
from policies.pods.pod import Pod
from policies.pods.workload import Workload
from policies.quota.quota_request import QuotaGrant


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


class RuleOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The options of every rule; a rule's own are a subclass."""

    mode: Mode = Mode.ENFORCE

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the options, sentence) for every value that is of the right type but makes no sense."""
        yield from ()

    def advice(self) -> Iterator[tuple[str, str]]:
        """Yield likewise what is valid, and probably not meant."""
        yield from ()

    def class_problems(self, catalogue: ClassCatalogue) -> Iterator[tuple[str, str]]:  # noqa: ARG002 - for subclasses
        """Yield likewise what is said about GPU classes that the catalogue does not know."""
        yield from ()


FETCHER_IMAGE = "gpu-admission-fetcher:0.1.0"
"""What model-warming runs where neither the policy nor `serve --fetcher-image` names an image; `deploy/Dockerfile` builds it."""


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Everything besides the pod that a rule may look at."""

    phase: Phase
    namespace: str
    now: datetime
    classes: ClassCatalogue
    resource_mapping: ResourceMapping
    claimed: ClaimedDevices = NO_DEVICES
    """What the claims of the pod ask for. Claims for no accelerator rules do not see; `policies.gpus.claims` takes them out."""
    made_by_daemonset: bool = False
    """The DaemonSet controller made this pod, or this is the template of a DaemonSet: placement is decided already."""
    is_update: bool = False
    fetcher_image: str = FETCHER_IMAGE
    nodes: NodeFacts | None = None
    """The nodes of the cluster, None where they are not known."""
    grant: QuotaGrant | None = None
    """What the quota of the namespace grants, None where there is none, or no rule needs it."""
    options_of: Callable[[str], RuleOptions | None] = lambda _rule_id: None
    """The options of another rule if it is not disabled, for the few that depend on one another."""

    def surely_asks(self, pod: Pod) -> bool:
        """Whether the pod asks for a GPU, and not only for devices of which it is not known what they are."""
        return bool(self.claimed.device_classes) or self.resource_mapping.names_gpus(pod)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the registry."""

    id: str
    summary: str
    options: type[RuleOptions] = RuleOptions
    mutate: Callable[[PodPatch, Any, Context], Iterator[Finding]] | None = None
    check: Callable[[Pod, Any, Context], Iterator[Finding]] | None = None
    check_claim_template: Callable[[ResourceClaimTemplate, Context], Iterator[Finding]] | None = None
    check_workload: Callable[[Workload, Any, Context], Iterator[Finding]] | None = None
    """Advise on an object as a whole; paths start at the object. What is wrong with its pods is for `check`."""
    check_before_mutation: bool = False
    """Also check what came in, because the API server would refuse it right after /mutate with a worse sentence."""
    not_exported: str = ""
    """Why `gpu-admission export` leaves the rule to the webhook, "" if it exports it."""
    on_update: bool = False
    """Also check a pod whose placement changed after it was created (a scheduling gate was lifted)."""
