"""Classes and a resource mapping with everything that a charge can depend on, and one call that charges a document."""

from collections.abc import Mapping

import msgspec

from policies.gpus.claimed_devices import decode_claim
from policies.gpus.classes import GPUClasses, NodeLabel
from policies.gpus.mapping_spec import (
    AnnotationKey,
    DeviceClassPattern,
    Measure,
    ResourceMappingSpec,
    ResourcePattern,
)
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.nodes import HOSTNAME, NO_NODES, NamedNode, NodeIndex
from policies.quota.catalogue import PublishedCatalogue
from policies.quota.claim_demand import claim_demand
from policies.quota.demand import Demand, UnclassifiedPods, pod_demand
from tests import builders
from tests.builders import JSON, gpu_class, view

CLASSES = GPUClasses(
    (
        *builders.CLASSES,
        # A pool that is time-sliced by four, without and with a resource name of its own.
        gpu_class(
            "t4-shared",
            "nvidia-t4",
            16,
            equivalents={"nvidia.com/gpu": "1/4", "nvidia.com/gpu.shared": "1/4"},
        ),
        gpu_class(
            "nvidia-h100",
            "nvidia-h100",
            80,
            node_labels=(
                NodeLabel(key="accelerator", values=("nvidia-h100",)),
                NodeLabel(key="nvidia.com/gpu.product", values=("NVIDIA-H100-80GB-HBM3",)),
            ),
            device_classes=("h100.example.com", "large.example.com"),
        ),
        gpu_class("nvidia-h200", "nvidia-h200", 141, device_classes=("large.example.com",)),
    )
)

RESOURCES = {
    "nvidia.com/gpumem-percentage": Measure.MEMORY_PERCENT,
    "gpu.intel.com/i915": Measure.DEVICES,
    "gpu.intel.com/memory.max": Measure.MEMORY_BYTES,
    "gpu.intel.com/millicores": Measure.CORE_MILLIS,
}
RESOURCE_MAPPING = ResourceMapping(
    (
        *builders.RESOURCE_MAPPING.specs,
        ResourceMappingSpec(
            resources=tuple(ResourcePattern(pattern=name, measure=each) for name, each in RESOURCES.items()),
            fraction_annotations=(AnnotationKey(key="gpu-fraction-num-devices", measure=Measure.DEVICES),),
            device_classes=(
                DeviceClassPattern(pattern="gpu.nvidia.com", resource="nvidia.com/gpu"),
                DeviceClassPattern(pattern="*.example.com"),
                DeviceClassPattern(pattern="nic.vendor.com", measure=Measure.NOTHING),
            ),
        ),
    )
)


def index(nodes: Mapping[str, Mapping[str, str]], classes: GPUClasses = CLASSES) -> NodeIndex:
    """Return nodes with these labels, by name."""
    kept = {name: tuple(sorted(labels.items())) for name, labels in nodes.items()}
    return NodeIndex(
        classes.label_keys,
        (NamedNode(name, name, nodes[name].get(HOSTNAME, name), labels) for name, labels in kept.items()),
    )


def counted(
    document: JSON,
    mode: UnclassifiedPods = UnclassifiedPods.TOTAL_ONLY,
    node_labels: Mapping[str, str] | None = None,
    classes: GPUClasses = CLASSES,
    nodes: NodeIndex = NO_NODES,
) -> Demand:
    """Return what the Pod costs: bound to a node with these labels, or as it is beside `nodes`."""
    if node_labels is not None:
        document = {**document, "spec": {**document["spec"], "nodeName": "node"}}
        nodes = index({"node": node_labels}, classes)
    return pod_demand(view(document), PublishedCatalogue(classes, RESOURCE_MAPPING), mode, nodes=nodes)


def counted_claim(document: JSON, mode: UnclassifiedPods = UnclassifiedPods.TOTAL_ONLY) -> Demand:
    """Return what the ResourceClaim costs."""
    claim = decode_claim(msgspec.json.encode(document))
    return claim_demand(claim, PublishedCatalogue(CLASSES, RESOURCE_MAPPING), mode)
