"""Place a pod on nodes whose driver has the CUDA version that its image needs.

Reads:   annotation cuda, or NVIDIA_REQUIRE_CUDA of a container that requests a GPU; where `serve` has a cluster, the label
         nvidia.com/cuda.runtime-version.full of its nodes.
Adds:    required node affinity on that version, where nodes on which the pod can run have the label and one is new enough.
Denies:  an annotation that is not a CUDA version.
Warns:   where no such node is new enough; of an annotation that has no effect.

An older driver than the image needs lets the pod start and its first call fail. From CUDA 11 on, a driver runs programs of its
whole major version (NVIDIA, "CUDA Compatibility: Minor Version Compatibility"), so the minor version of the annotation counts
only with `exactVersion`. That of the variable always does: NVIDIA's container toolkit, in its legacy mode, starts no container on
an older driver. Constraints of the pod on a label nvidia.com/cuda.… are its own choice, and are left alone.
"""

import re
from collections.abc import Iterator
from itertools import islice

import msgspec

from policies.finding import ContactEdit, Finding, Reason, truncate, warning
from policies.gpus.cards import vendor_domain
from policies.placement.nodes import NodeFacts
from policies.pods.annotations import CUDA, INEFFECTIVE_ANNOTATION, INVALID_ANNOTATION, BadAnnotation
from policies.pods.field_paths import annotation_path
from policies.pods.label_selector import ABSENT
from policies.pods.patch import PodPatch
from policies.pods.pod import ContainerPlace, NodeSelectorRequirement, Pod
from policies.rule import Context, Rule, RuleOptions

DRIVER_TOO_OLD = Reason("DriverTooOld", "no node that can take the pod has the CUDA version")

ID = "cuda-version"
# GPU Feature Discovery (NVIDIA/k8s-device-plugin, internal/lm/nvml.go): cuda.runtime-version is the newest CUDA of the node's
# driver (cuDriverGetVersion, "12.4"). Its cuda.driver labels hold the driver's own version (550.54.15).
MAJOR = "nvidia.com/cuda.runtime-version.major"
FULL = "nvidia.com/cuda.runtime-version.full"
CUDA_LABELS = "nvidia.com/cuda."

REQUIRE = "NVIDIA_REQUIRE_CUDA"
DISABLE = "NVIDIA_DISABLE_REQUIRE"
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
"""True for strconv.ParseBool, by which the NVIDIA Container Toolkit reads NVIDIA_DISABLE_REQUIRE."""
_VERSION = re.compile(r"([1-9][0-9]?)(?:\.([0-9]{1,2}))?")
_VERSION_ANYWHERE = re.compile(r"(?<![0-9.])[1-9][0-9]?\.[0-9]{1,2}(?![0-9])")
"""The version in another text, such as v12.4 and 12.4.1."""
_AT_LEAST = "cuda>="
_MAX_TERMS = 16
"""Maximum of terms of an affinity: the version is added to each. No real pod has more."""
_MAX_CONSTRAINT = 4_096
"""Maximum of characters of a constraint; images of NVIDIA have up to 2,000."""
_MAX_CONTAINERS = 8
"""Containers of a pod whose constraints are read."""

_MINOR_VERSIONS_COMPATIBLE = 11
"""From this major version on, a driver runs programs of later minor versions."""

Version = tuple[int, int]


class CUDAVersionOptions(RuleOptions, frozen=True):
    exact_version: bool = False
    """Whether the minor version of the annotation counts, too."""


class _RequestedVersion(msgspec.Struct, frozen=True):
    """The CUDA version that a pod needs, and the field that says so: the annotation, or a variable of a container."""

    version: Version
    path: str
    text: str
    is_exact: bool
    """Whether the minor version counts."""
    container: str | None = None


def mutate(patch: PodPatch, options: CUDAVersionOptions, context: Context) -> Iterator[Finding]:
    requested = _requested_version(patch.pod, options, context)
    if (
        isinstance(requested, _RequestedVersion)
        and (offers := _node_versions(patch.pod, context)) is not None
    ):
        for requirement in _requirements(requested.version) if offers.allow(requested.version) else ():
            patch.require_node_affinity(requirement)
    yield from ()


def check(pod: Pod, options: CUDAVersionOptions, context: Context) -> Iterator[Finding]:
    requested = _requested_version(pod, options, context)
    if isinstance(requested, BadAnnotation):
        yield requested.finding()
    elif requested is not None and (offers := _node_versions(pod, context)) is not None:
        yield from _obstacles(requested, offers)


def _requested_version(
    pod: Pod, options: CUDAVersionOptions, context: Context
) -> _RequestedVersion | BadAnnotation | None:
    """Return the version that the annotation names, else the newest that a container's variable requires."""
    text = pod.annotations.get(CUDA)
    if text is not None:
        if not context.resource_mapping.pod_requests_gpus(pod):
            return None
        version = _parse_version(text.strip())
        if version is None:
            meant = _VERSION_ANYWHERE.search(text)
            example = f'set for example {CUDA}: "12.4"'
            return BadAnnotation(
                CUDA, text, "must be a CUDA version", example, meant[0] if meant else "", "12.4"
            )
        major, minor = version
        is_exact = options.exact_version or major < _MINOR_VERSIONS_COMPATIBLE
        return _RequestedVersion((major, minor if is_exact else 0), annotation_path(CUDA), text, is_exact)
    if context.nodes is None:
        return None
    with_gpus = context.resource_mapping.places_with_gpus(pod)
    naming = (place for place in with_gpus if any(var.name == REQUIRE for var in place.container.env or ()))
    requested = (
        requirement
        for place in islice(naming, _MAX_CONTAINERS)
        for requirement in _versions_required_by(place)
    )
    return max(requested, key=lambda requirement: requirement.version, default=None)


def _versions_required_by(place: ContainerPlace) -> Iterator[_RequestedVersion]:
    texts: dict[str, tuple[int, str]] = {}
    for index, variable in enumerate(place.container.env or ()):
        if variable.name in {REQUIRE, DISABLE}:
            texts[variable.name] = index, variable.value or ""
    index, text = texts[REQUIRE]
    version = _minimum_version(text) if len(text) <= _MAX_CONSTRAINT else None
    if version is not None and texts.get(DISABLE, (0, ""))[1] not in _TRUE:
        yield _RequestedVersion(version, f"{place.path}.env[{index}]", text, True, place.container.name)


def _minimum_version(expression: str) -> Version | None:
    """Return the least version that some alternative of the expression needs. None if an alternative names no version.

    Blanks separate alternatives, commas what must hold together (NVIDIA Container Toolkit, "Constraints").
    """
    alternatives = []
    for alternative in expression.split():
        terms = (term for term in alternative.split(",") if term.startswith(_AT_LEAST))
        versions = (_parse_version(term.removeprefix(_AT_LEAST)) for term in terms)
        alternatives.append(max(filter(None, versions), default=None))
    known = [version for version in alternatives if version is not None]
    return min(known) if known and len(known) == len(alternatives) else None


def _parse_version(text: str) -> Version | None:
    match = _VERSION.fullmatch(text)
    return (int(match[1]), int(match[2] or 0)) if match else None


def _is_settled(pod: Pod, context: Context) -> bool:
    """Whether something else chooses the version: who places the pod, its own constraints, or another vendor's GPU."""
    if context.made_by_daemonset or pod.spec.node_name:
        return True
    if any(key.startswith(CUDA_LABELS) for key in pod.node_selector):
        return True
    terms = [term.match_expressions or () for term in pod.required_terms if not term.is_empty]
    if len(terms) > _MAX_TERMS:
        return True
    if terms and all(any(requirement.key.startswith(CUDA_LABELS) for requirement in term) for term in terms):
        return True
    other_vendors = {vendor_domain(gpu_class.resource) for gpu_class in context.classes} - {"nvidia.com"}
    vendors = {vendor_domain(request.resource.name) for request in context.resource_mapping.requests(pod)}
    return bool(vendors) and vendors <= other_vendors


def _node_versions(pod: Pod, context: Context) -> "_NodeVersions | None":
    """Return the versions of the nodes. None if unknown, or if something else chooses the version."""
    nodes = context.nodes
    is_known = nodes is not None and FULL in nodes.keys
    return (
        _NodeVersions(pod, nodes)
        if nodes is not None and is_known and not _is_settled(pod, context)
        else None
    )


class _NodeVersions:
    """The CUDA versions of the nodes that can take a pod. `unlabelled` are node pools without the label."""

    def __init__(self, pod: Pod, nodes: NodeFacts) -> None:
        offers = list(nodes.matching_groups(pod))
        labels = [offer.values(FULL) for offer in offers]
        versions = (_parse_version(text) for values in labels for text in values or ())
        self.newest = max(filter(None, versions), default=None)
        self.has_no_nodes = not offers
        self.has_any_version = None in labels
        self.unlabelled = sorted(
            offer.pool for offer in offers if offer.pool and offer.values(FULL) == ABSENT
        )

    def allow(self, version: Version) -> bool:
        """Whether the affinity on the version leaves some node, and every node pool."""
        # An autoscaler makes no node for an affinity on a label that it does not know of its pool.
        return not self.unlabelled and (
            self.has_any_version or (self.newest is not None and self.newest >= version)
        )


def _obstacles(requested: _RequestedVersion, offers: _NodeVersions) -> Iterator[Finding]:
    if offers.has_no_nodes or offers.allow(requested.version):
        return  # gpu-class reports a pod that no node can take
    nodes, remedy = "the nodes that can take the pod", ""
    if offers.newest is not None and not offers.unlabelled:
        major, minor = offers.newest
        newest = f"{major}.{minor if requested.is_exact else 'x'}"
        reason, message = DRIVER_TOO_OLD, f"should be at most {newest}, the newest CUDA of {nodes}"
        remedy, request = "use an image with an older CUDA", "for newer drivers"
    elif requested.container is None:
        where = f"node pool {offers.unlabelled[0]}" if offers.unlabelled else nodes
        reason = INEFFECTIVE_ANNOTATION
        message = f"has no effect: label {FULL} is missing on {where}"
        request = "for the label, which GPU Feature Discovery sets"
    else:
        return  # nobody wrote an annotation that could have no effect
    yield warning(
        reason=reason,
        path=requested.path,
        container=requested.container,
        value=truncate(requested.text),
        message=message,
        remedy=remedy,
        ask_contact=request,
        contact_choices=((ContactEdit("Node"),),),
    )


def _requirements(version: Version) -> Iterator[NodeSelectorRequirement]:
    """Yield the requirements on node labels: a later major version, or this one without the earlier minor versions."""
    major, minor = version
    yield NodeSelectorRequirement(key=MAJOR, operator="Gt", values=(str(major - 1),))
    if minor:
        older = tuple(f"{major}.{older_minor}" for older_minor in range(minor))
        yield NodeSelectorRequirement(key=FULL, operator="NotIn", values=older)


RULE = Rule(
    id=ID,
    reasons=(INVALID_ANNOTATION, INEFFECTIVE_ANNOTATION, DRIVER_TOO_OLD),
    summary="pods run where the driver has the CUDA version that they need",
    options=CUDAVersionOptions,
    mutate=mutate,
    check=check,
    not_exported="it looks up the version that a pod needs and the drivers of the nodes; CEL cannot look anything up",
)
