"""The pod as the rules see it: frozen structs with the fields that some rule reads.

Fields that the API may send as `null` are optional. Values that rules only copy (probe handlers, `valueFrom`) stay raw JSON.
"""

from collections.abc import Collection
from datetime import datetime
from functools import cached_property
from typing import Literal

import msgspec

from policies.finding import truncate
from policies.pods.quantity import QuantityText
from policies.printable import printable

ResourceList = dict[str, QuantityText]

LONGEST_OWNER = 256
"""Characters of `Metadata.controlled_by`."""
TEMPLATE_HASH = "pod-template-hash"


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of all views: camelCase in JSON. A view in a patch omits its defaults."""


class StrictView(View, frozen=True, forbid_unknown_fields=True):
    """Base of the parts of our documents, which must have no other fields."""


class Named(View, frozen=True):
    """An object with only its name: a scheduling gate, the OS, a claim of a container."""

    name: str = ""


class Toleration(View, frozen=True):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class Resources(View, frozen=True, dict=True):
    limits: ResourceList | None = None
    requests: ResourceList | None = None
    claims: tuple[Named, ...] | None = None


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
    """Of a container, or of the pod. Only the pod's has `fs_group`."""

    privileged: bool | None = None
    allow_privilege_escalation: bool | None = None
    read_only_root_filesystem: bool | None = None
    run_as_non_root: bool | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    fs_group: int | None = None
    capabilities: Capabilities | None = None
    seccomp_profile: SeccompProfile | None = None


class SecretReference(View, frozen=True):
    name: str = ""
    optional: bool | None = None


class EnvFromSource(View, frozen=True):
    prefix: str | None = None
    config_map_ref: Named | None = None
    secret_ref: SecretReference | None = None


class Container(View, frozen=True):
    name: str = ""
    image: str | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None
    env_from: tuple[EnvFromSource, ...] | None = None
    ports: tuple[msgspec.Raw, ...] | None = None
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


class ImageVolumeSource(View, frozen=True):
    reference: str = ""


class Volume(View, frozen=True):
    name: str = ""
    empty_dir: EmptyDir | None = None
    host_path: HostPath | None = None
    image: ImageVolumeSource | None = None
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    secret: SecretVolumeSource | None = None


class NodeSelectorRequirement(View, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(View, frozen=True):
    match_expressions: tuple[NodeSelectorRequirement, ...] | None = None
    match_fields: tuple[NodeSelectorRequirement, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it matches no node: "A null or empty node selector term matches no objects" (k8s.io/api core/v1)."""
        return not self.match_expressions and not self.match_fields


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


class PodResourceClaim(View, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class SchedulingGroup(View, frozen=True):
    pod_group_name: str = ""


class PodSpec(View, frozen=True):
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    ephemeral_containers: tuple[Container, ...] | None = None
    volumes: tuple[Volume, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    node_name: str | None = None
    scheduling_gates: tuple[Named, ...] | None = None
    scheduling_group: SchedulingGroup | None = None
    resource_claims: tuple[PodResourceClaim, ...] | None = None
    resources: Resources | None = None
    overhead: ResourceList | None = None
    security_context: SecurityContext | None = None
    scheduler_name: str | None = None
    runtime_class_name: str | None = None
    host_ipc: bool | None = msgspec.field(name="hostIPC", default=None)
    os: Named | None = None
    restart_policy: str | None = None
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | str | None = None
    """Text only in a template of Argo, which may have a parameter there."""


class ExtendedResourceClaimStatus(View, frozen=True):
    resource_claim_name: str = ""


class ResourceClaimStatus(View, frozen=True):
    """`resource_claim_name` is the name of the claim that the resource-claim controller made for the pod."""

    resource_claim_name: str | None = None


class PodStatus(View, frozen=True):
    phase: str = ""
    resource_claim_statuses: tuple[ResourceClaimStatus, ...] | None = None
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
    deletion_timestamp: datetime | None = None
    """When the grace period of a deletion ends."""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    finalizers: tuple[str, ...] | None = None

    @property
    def controller(self) -> OwnerReference | None:
        return next((reference for reference in self.owner_references or () if reference.controller), None)

    @property
    def controlled_by(self) -> str:
        """The controller of the object, such as `Job/train`; "" if it has none. For a pod of a Deployment that is the Deployment.

        A Deployment labels its ReplicaSets and their pods with the hash in the names of these ReplicaSets. The API server does
        not check owners of kinds that it does not serve, so a name may have 1 MB, of any characters. It is cut to LONGEST_OWNER,
        and printable, because Events, statuses and denials name it.
        """
        if (owner := self.controller) is None:
            return ""
        kind, name, template = owner.kind, owner.name, (self.labels or {}).get(TEMPLATE_HASH, "")
        if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
            kind, name = "Deployment", name.removesuffix(f"-{template}")
        return printable(truncate(f"{kind}/{name}", LONGEST_OWNER))

    @property
    def version(self) -> int:
        """The resourceVersion as a whole number, by which Kubernetes orders; 0 if the object has none."""
        text = self.resource_version or ""
        return int(text) if text.isascii() and text.isdigit() else 0


class StoredObject(View, frozen=True):
    """Base of the views of whole objects."""

    metadata: Metadata | None = None

    @property
    def name(self) -> str:
        return (self.metadata and self.metadata.name) or ""

    @property
    def uid(self) -> str:
        return (self.metadata and self.metadata.uid) or ""

    @property
    def namespace(self) -> str:
        return (self.metadata and self.metadata.namespace) or ""


class ContainerPlace(msgspec.Struct, frozen=True):
    """A container and its place in the pod, such as `spec.initContainers[0]`."""

    container: Container
    list_name: Literal["containers", "initContainers"]
    index: int

    @property
    def path(self) -> str:
        return f"spec.{self.list_name}[{self.index}]"

    def amount_paths(self, resource: str, name: str = "") -> list[str]:
        """Return the paths of the container's limit and request of the resource, with another `name` in its place."""
        written = (("limits", self.container.limits), ("requests", self.container.requests))
        kinds = (kind for kind, amounts in written if resource in amounts)
        return [f"{self.path}.resources.{kind}[{name or resource}]" for kind in kinds]

    @property
    def is_sidecar(self) -> bool:
        """Whether it is a restartable init container, which runs beside the app containers."""
        return self.list_name == "initContainers" and self.container.restart_policy == "Always"


class Pod(View, frozen=True, dict=True):
    metadata: Metadata | None = None
    given_spec: PodSpec | None = msgspec.field(default=None, name="spec")
    """The spec as it was sent. Read `spec` instead, which is never None."""
    status: PodStatus | None = None

    @property
    def spec(self) -> PodSpec:
        return self.given_spec or EMPTY_SPEC

    @property
    def annotations(self) -> dict[str, str]:
        return (self.metadata and self.metadata.annotations) or {}

    @property
    def node_selector(self) -> dict[str, str]:
        return self.spec.node_selector or {}

    @property
    def constrains_nodes(self) -> bool:
        return bool(self.spec.node_selector or self.spec.affinity)

    @property
    def node_affinity(self) -> NodeAffinity:
        return (self.spec.affinity and self.spec.affinity.node_affinity) or EMPTY_NODE_AFFINITY

    @property
    def required_terms(self) -> tuple[NodeSelectorTerm, ...]:
        """The alternatives of the required node affinity. Empty if it requires nothing."""
        required = self.node_affinity.required
        return (required and required.node_selector_terms) or ()

    @cached_property
    def places(self) -> tuple[ContainerPlace, ...]:
        """App containers, then init containers, in their order. Ephemeral containers cannot request resources."""
        apps, inits = self.spec.containers or (), self.spec.init_containers or ()
        return (
            *(ContainerPlace(app, "containers", at) for at, app in enumerate(apps)),
            *(ContainerPlace(init, "initContainers", at) for at, init in enumerate(inits)),
        )

    def amount_paths(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the paths of all limits and requests of these resources."""
        places = self.places
        return tuple(path for place in places for name in names for path in place.amount_paths(name))

    @property
    def apps(self) -> tuple[ContainerPlace, ...]:
        return self.places[: len(self.spec.containers or ())]

    @property
    def is_terminal(self) -> bool:
        """Whether all containers have ended, so the pod holds no resources."""
        return self.status is not None and self.status.phase in {"Succeeded", "Failed"}

    @property
    def has_succeeded(self) -> bool:
        return self.status is not None and self.status.phase == "Succeeded"

    @property
    def is_windows(self) -> bool:
        """Whether the pod runs on Windows. Then the API server rejects most of a Linux container's securityContext."""
        system = self.spec.os and self.spec.os.name
        return "windows" in (system, (self.spec.node_selector or {}).get("kubernetes.io/os"))

    @property
    def is_gated(self) -> bool:
        return bool(self.spec.scheduling_gates)

    def volume_named(self, name: str) -> Volume | None:
        return next((volume for volume in self.spec.volumes or () if volume.name == name), None)


EMPTY_SPEC, EMPTY_NODE_AFFINITY = PodSpec(), NodeAffinity()
# Return the view of a Pod in JSON. Its `msgspec.ValidationError` names the path of a field of the wrong type.
decode_pod = msgspec.json.Decoder(Pod).decode
