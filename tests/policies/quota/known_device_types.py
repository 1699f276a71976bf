"""A catalogue with known kinds of devices, and requests for them."""

from typing import Any

from policies.gpus.classes import DeviceAttributeValues, GPUClasses, MigProfile
from policies.gpus.device_types import DeviceAttribute, DeviceCapacity, DeviceType, DeviceTypes
from policies.gpus.mapping_spec import DerivedMappingSpec
from policies.gpus.resource_mapping import ResourceMapping
from policies.quota.catalogue import PublishedCatalogue
from tests.builders import JSON, gpu_class
from tests.policies.quota.charging import RESOURCE_MAPPING
from tests.policies.quota.claims import ANY, GPU, H100, devices

MIG, SHARED = "mig.nvidia.com", "shared.example.com"
PREFIX = "resources/deviceclass.resource.kubernetes.io/"
PRODUCT = "gpu.nvidia.com/productName"
ATTRIBUTES = 'device.attributes["gpu.nvidia.com"]'
SLICES = {
    "1g.10gb": MigProfile(sevenths=1, memory_gib=10, per_gpu=7),
    "3g.40gb": MigProfile(sevenths=3, memory_gib=40, per_gpu=2),
}


def of_product(name: str, family: str, memory: int, product: str, **fields: Any) -> Any:
    lists = (DeviceAttributeValues(key=PRODUCT, values=(product,)),)
    return gpu_class(name, family, memory, device_attributes=lists, **fields)


CLASSES = GPUClasses(
    (
        of_product("nvidia-h100", "nvidia-h100", 80, "H100", mig_profiles=SLICES, device_classes=(H100,)),
        of_product("nvidia-a100-40gb", "nvidia-a100", 40, "A100 40GB"),
        of_product("nvidia-a100-80gb", "nvidia-a100", 80, "A100 80GB"),
        gpu_class("amd-mi300x", "amd-mi300x", 192, resource="amd.com/gpu"),
    )
)


def kind(product: str, profile: str | None = None, **fields: Any) -> DeviceType:
    stated = {"productName": product, "profile": profile, "type": "mig" if profile else "gpu"}
    attributes = {f"{GPU}/{name}": DeviceAttribute(string=each) for name, each in stated.items() if each}
    return DeviceType(GPU, attributes, **fields)


KINDS = (
    kind("H100"),
    kind("H100", "1g.10gb", card_parts=720),
    kind("H100", "3g.40gb", card_parts=2520),
    kind("A100 40GB"),
    kind("A100 80GB"),
    kind("RTX 5090"),
    kind(
        "A100 80GB",
        is_shared=True,
        capacity={f"{GPU}/memory": DeviceCapacity("80Gi")},
        weighed_capacities=(f"{GPU}/memory",),
    ),
)
NODES = ({0: 2, 1: 14}, {3: 8}, {5: 40}, {3: 1, 4: 4})
BY_CLASS = {GPU: (0, 3, 4, 5), MIG: (1, 2), H100: (0, 1), ANY: (5,), SHARED: (6,), "empty.example.com": ()}


def catalogue(nodes: tuple[dict[int, int], ...] = NODES) -> PublishedCatalogue:
    derived = DerivedMappingSpec(device_types=DeviceTypes(KINDS, nodes), types_by_class=BY_CLASS)
    return PublishedCatalogue(CLASSES, ResourceMapping((derived, *RESOURCE_MAPPING.specs)))


CATALOGUE = catalogue()


def selected(device_class: str, *expressions: str, **more: Any) -> JSON:
    return devices(device_class, selectors=[{"cel": {"expression": each}} for each in expressions], **more)


def product(name: str) -> str:
    return f'{ATTRIBUTES}.productName == "{name}"'
