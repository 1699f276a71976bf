"""The pod as the rules see it, frozen structs with exactly the fields that some rule reads.

`decode_pod` makes one straight from JSON bytes; its error carries the path of the offending field. Fields that the API
may send as `null` are optional here. What a rule only copies (probe handlers, `valueFrom`) stays raw JSON.
"""

from functools import cached_property
from typing import Literal

import msgspec

from policies.finding import truncate
from policies.pods.quantity import QuantityText

ResourceList = dict[str, QuantityText]

LONGEST_MAKER = 256
"""Characters of `Metadata.controlled_by`."""


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of all views: camelCase on the wire, and defaults left out when a view becomes part of a patch."""


class Toleration(View, frozen=True):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class ResourceClaimReference(View, frozen=True):
    name: str = ""
    request: str | None = None


class Resources(View, frozen=True, dict=True):
    limits: ResourceList | None = None
    requests: ResourceList | None = None
    claims: tuple[ResourceClaimReference, ...] | None = None


class EnvVar(View, frozen=True):
    name: str = ""
    value: str | None = None
    value_from: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class VolumeMount(View, frozen=True):
    name: str = ""
    mount_path: str = ""
    sub_path: str | None = None
    sub_path_expr: str | None = None
    read_only: bool | None = None


class Probe(View, frozen=True):
    """A probe; the handlers are only ever copied, so they stay raw JSON. Defaults are the API's own."""

    http_get: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    tcp_socket: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    grpc: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    exec: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    initial_delay_seconds: int | None = None
    period_seconds: int | None = None
    timeout_seconds: int | None = None
    success_threshold: int | None = None
    failure_threshold: int | None = None
    termination_grace_period_seconds: int | None = None


class Capabilities(View, frozen=True):
    add: tuple[str, ...] | None = None
    drop: tuple[str, ...] | None = None


class SeccompProfile(View, frozen=True):
    type: str = ""
    localhost_profile: str | None = None


class SecurityContext(View, frozen=True):
    privileged: bool | None = None
    allow_privilege_escalation: bool | None = None
    read_only_root_filesystem: bool | None = None
    run_as_non_root: bool | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    capabilities: Capabilities | None = None
    seccomp_profile: SeccompProfile | None = None


class PodSecurityContext(View, frozen=True):
    run_as_non_root: bool | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    fs_group: int | None = None
    seccomp_profile: SeccompProfile | None = None


class SecretReference(View, frozen=True):
    name: str = ""
    optional: bool | None = None


class EnvFromSource(View, frozen=True):
    prefix: str | None = None
    secret_ref: SecretReference | None = None


class Container(View, frozen=True):
    name: str = ""
    image: str | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None
    env_from: tuple[EnvFromSource, ...] | None = None
    resources: Resources | None = None
    volume_mounts: tuple[VolumeMount, ...] | None = None
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    startup_probe: Probe | None = None
    security_context: SecurityContext | None = None
    restart_policy: str | None = None

    @property
    def limits(self) -> ResourceList:
        return (self.resources and self.resources.limits) or {}

    @property
    def requests(self) -> ResourceList:
        return (self.resources and self.resources.requests) or {}


class EmptyDir(View, frozen=True):
    medium: str | None = None
    size_limit: QuantityText = None


class HostPath(View, frozen=True):
    path: str = ""


class PersistentVolumeClaimSource(View, frozen=True):
    claim_name: str = ""
    read_only: bool | None = None


class SecretVolumeSource(View, frozen=True):
    secret_name: str | None = None
    default_mode: int | None = None
    optional: bool | None = None


class Volume(View, frozen=True):
    name: str = ""
    empty_dir: EmptyDir | None = None
    host_path: HostPath | None = None
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    secret: SecretVolumeSource | None = None


class NodeSelectorRequirement(View, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(View, frozen=True):
    match_expressions: tuple[NodeSelectorRequirement, ...] | None = None
    match_fields: tuple[NodeSelectorRequirement, ...] | None = None


class NodeSelector(View, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None


class PreferredSchedulingTerm(View, frozen=True):
    preference: NodeSelectorTerm | None = None


class NodeAffinity(View, frozen=True):
    required: NodeSelector | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )
    preferred: tuple[PreferredSchedulingTerm, ...] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(View, frozen=True):
    node_affinity: NodeAffinity | None = None


class SchedulingGate(View, frozen=True):
    name: str = ""


class PodResourceClaim(View, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodOS(View, frozen=True):
    name: str = ""


class PodSpec(View, frozen=True):
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    ephemeral_containers: tuple[Container, ...] | None = None
    volumes: tuple[Volume, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    node_name: str | None = None
    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    resource_claims: tuple[PodResourceClaim, ...] | None = None
    resources: Resources | None = None
    overhead: ResourceList | None = None
    security_context: PodSecurityContext | None = None
    scheduler_name: str | None = None
    runtime_class_name: str | None = None
    host_ipc: bool | None = msgspec.field(name="hostIPC", default=None)
    os: PodOS | None = None
    restart_policy: str | None = None
    termination_grace_period_seconds: int | None = None


class ExtendedResourceClaimStatus(View, frozen=True):
    resource_claim_name: str = ""


class PodStatus(View, frozen=True):
    phase: str = ""
    extended_resource_claim_status: ExtendedResourceClaimStatus | None = None


class OwnerReference(View, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(View, frozen=True):
    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    finalizers: tuple[str, ...] | None = None

    @property
    def is_owned(self) -> bool:
        """Whether a controller made the object, as far as the object says."""
        return any(owner.controller for owner in self.owner_references or ())

    @property
    def controlled_by(self) -> str:
        """The controller that made the object, as `ReplicaSet/train-5d9`, as far as the object says; "" if none did.

        Cut to LONGEST_MAKER: an owner of a kind that the API server does not serve may have a name of 1 MB.
        """
        owner = next((each for each in self.owner_references or () if each.controller), None)
        return truncate(f"{owner.kind}/{owner.name}", LONGEST_MAKER) if owner else ""

    @property
    def version(self) -> int:
        """The resourceVersion, which Kubernetes orders as a whole number; 0 where there is none."""
        text = self.resource_version or ""
        return int(text) if text.isascii() and text.isdigit() else 0


ContainerList = Literal["containers", "initContainers"]


class ContainerPlace(msgspec.Struct, frozen=True):
    """A container and where it stands, e.g. `spec.initContainers[0]`."""

    container: Container
    list_name: ContainerList
    index: int

    @property
    def path(self) -> str:
        return f"spec.{self.list_name}[{self.index}]"

    def amount_path(self, resource: str) -> str:
        """Return the path of what the container asks of the resource: its limit, else its request."""
        kind = "limits" if resource in self.container.limits else "requests"
        return f"{self.path}.resources.{kind}[{resource}]"

    @property
    def is_sidecar(self) -> bool:
        """A restartable init container: it runs beside the app containers for the whole life of the pod."""
        return self.list_name == "initContainers" and self.container.restart_policy == "Always"


class Pod(View, frozen=True, dict=True):
    metadata: Metadata | None = None
    given_spec: PodSpec | None = msgspec.field(default=None, name="spec")
    status: PodStatus | None = None

    @property
    def spec(self) -> PodSpec:
        return self.given_spec or EMPTY_SPEC

    @property
    def annotations(self) -> dict[str, str]:
        return (self.metadata and self.metadata.annotations) or {}

    @property
    def labels(self) -> dict[str, str]:
        return (self.metadata and self.metadata.labels) or {}

    @cached_property
    def places(self) -> tuple[ContainerPlace, ...]:
        """App containers, then init containers, in their order. Ephemeral ones can ask for nothing."""
        apps, inits = self.spec.containers or (), self.spec.init_containers or ()
        return (
            *(ContainerPlace(each, "containers", at) for at, each in enumerate(apps)),
            *(ContainerPlace(each, "initContainers", at) for at, each in enumerate(inits)),
        )

    @property
    def is_terminal(self) -> bool:
        """Whether all its containers have ended for good, so that nothing is held any more."""
        return self.status is not None and self.status.phase in {"Succeeded", "Failed"}

    @property
    def is_windows(self) -> bool:
        """Whether it says that it runs on Windows: then the API server refuses most of a Linux container's securityContext."""
        system = self.spec.os and self.spec.os.name
        return "windows" in (system, (self.spec.node_selector or {}).get("kubernetes.io/os"))

    @property
    def is_gated(self) -> bool:
        return bool(self.spec.scheduling_gates)

    def volume_named(self, name: str) -> Volume | None:
        return next((volume for volume in self.spec.volumes or () if volume.name == name), None)


EMPTY_SPEC = PodSpec()
_DECODER = msgspec.json.Decoder(Pod)


def decode_pod(document: bytes | msgspec.Raw) -> Pod:
    """Return the view of a Pod in JSON; `msgspec.ValidationError` names the path of a field of the wrong type."""
    return _DECODER.decode(document)
