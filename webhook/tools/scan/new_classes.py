"""Proposes GPUClasses that a cluster lacks.

A class for nodes of no known class comes from their labels for product and memory, and from their MIG resources; without a memory
label there is no proposal. For a DeviceClass (DRA) whose selector requires a known product, its name is added to the known class.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import msgspec

from policies.gpus.classes import SEVENTHS
from policies.gpus.device_classes import DeviceClass
from policies.gpus.resource_mapping import ResourceMapping
from policies.gpus.vendors import of_all
from policies.pods.names import is_class_name
from policies.quota.demand import Catalogues
from webhook.configuration.documents import CLASS, Document
from webhook.tools.status.capacity import GPUNode

PRODUCT_LABELS = (
    *of_all(lambda vendor: vendor.product_labels),
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
)
"""Labels with the product of the card. Their writers also label the memory of the card."""
MEMORY_MIB_LABELS = (
    *of_all(lambda vendor: vendor.memory_mib_labels),
    "karpenter.k8s.aws/instance-gpu-memory",
    "eks.amazonaws.com/instance-gpu-memory",
)
"""Labels with the memory of one card in MiB (GPU Feature Discovery; Karpenter and EKS Auto Mode)."""
MEMORY_GB_LABELS = of_all(lambda vendor: vendor.memory_gb_labels)
"""Labels with the memory of one card as `192G`."""
SHARED = "-SHARED"
"""GPU Feature Discovery appends this to the product under time-slicing and MPS."""
SLICED = "-MIG-"
"""GPU Feature Discovery appends this and a profile under MIG strategy `single`. Each `nvidia.com/gpu` is a slice then; an
administrator must write such a class, with the share that a slice has of the card."""
_PROFILE = re.compile(
    r"nvidia\.com/mig-(?P<name>(?P<gpu>[1-7])g\.(?P<memory>[1-9][0-9]{0,3})gb)(?P<media>\.me)?"
)
_PRODUCT_NAME = re.compile(r"\.productName\s*==\s*(\"[^\"\\]{1,63}\"|'[^'\\]{1,63}')")
"""A comparison in a selector with an attribute of NVIDIA's DRA driver, such as `NVIDIA A100-SXM4-80GB`."""
_LONGEST_NAME = 63


def new_classes(nodes: Iterable[GPUNode], known: Catalogues) -> Iterator[Document]:
    """Yield a GPUClass for each product of nodes that no known class has."""
    products: dict[tuple[str, str], list[GPUNode]] = defaultdict(list)
    for node in nodes:
        key = next((key for key in PRODUCT_LABELS if node.labels.get(key)), None)
        if key is not None and not node.classes and SLICED not in node.labels[key]:
            products[key, node.labels[key].removesuffix(SHARED)].append(node)
    for (key, product), members in sorted(products.items()):
        name, memory = _class_name(product), _memory_gib(members)
        resource = _whole_card(members, known.resource_mapping)
        if name is None or known.classes.resolve(name) or memory is None or resource is None:
            continue
        spec: dict[str, Any] = {"memoryGiB": memory, "resource": resource}
        spec["nodeLabels"] = [{"key": key, "values": sorted({node.labels[key] for node in members})}]
        if profiles := _mig_profiles(members, memory):
            spec["migProfiles"] = profiles
        yield Document(CLASS, name, spec)


def named_classes(device_classes: Iterable[DeviceClass], known: Catalogues) -> Iterator[Document]:
    """Yield the known classes that lack a DeviceClass of their product, with the DeviceClass added."""
    names: dict[str, list[str]] = defaultdict(list)
    for each in device_classes:
        if known.resource_mapping.device_class(each.name) and not known.classes.of_device_class(each.name):
            products = {product for text in each.expressions for product in _PRODUCT_NAME.findall(text)}
            # GPU Feature Discovery writes the product name with "-" for spaces.
            values = {product.strip("\"'").replace(" ", "-") for product in products}
            found = {
                c.name for value in values for c in known.classes.matching_label(PRODUCT_LABELS[0], value)
            }
            if len(values) == len(found) == 1:
                names[found.pop()].append(each.name)
    for name, devices in sorted(names.items()):
        gpu_class = known.classes.get(name)
        spec = msgspec.json.decode(msgspec.json.encode(gpu_class))
        del spec["name"]
        yield Document(
            CLASS, name, {**spec, "deviceClasses": sorted({*spec.get("deviceClasses", ()), *devices})}
        )


def _class_name(product: str) -> str | None:
    name = re.sub(r"[^a-z0-9.]+", "-", product.lower())[:_LONGEST_NAME].strip("-.")
    return name if is_class_name(name) else None


def _memory_gib(nodes: Iterable[GPUNode]) -> int | None:
    """Return the smallest memory of the nodes' cards in GiB, rounded because drivers report a little less; None if unknown."""
    found = []
    for node in nodes:
        mib = next(
            (node.labels[key] for key in MEMORY_MIB_LABELS if node.labels.get(key, "").isdecimal()), None
        )
        gigabytes = next((node.labels[key] for key in MEMORY_GB_LABELS if key in node.labels), "")
        if mib is not None:
            found.append(round(Fraction(int(mib), 1024)))
        elif gigabytes.removesuffix("G").isdecimal():
            found.append(int(gigabytes.removesuffix("G")))
    return min(found, default=0) or None


def _whole_card(nodes: Iterable[GPUNode], mapping: ResourceMapping) -> str | None:
    """Return the resource name of whole cards on the nodes; None unless there is exactly one."""
    names = {card for node in nodes for name in node.allocatable if (card := mapping.whole_card(name))}
    return names.pop() if len(names) == 1 else None


def _mig_profiles(nodes: Iterable[GPUNode], memory: int) -> dict[str, dict[str, int]]:
    """Return the MIG profiles of the nodes. `perGPU` is how many fit on a card by compute and memory."""
    profiles = {}
    for resource in sorted({name for node in nodes for name in node.allocatable}):
        found = _PROFILE.fullmatch(resource)
        if found is not None and int(found["memory"]) <= memory:
            sevenths, gib = int(found["gpu"]), int(found["memory"])
            # Only one slice of a card has the media engines (+me).
            per_gpu = 1 if found["media"] else min(SEVENTHS // sevenths, memory // gib)
            name = found["name"] + ("+me" if found["media"] else "")
            profiles[name] = {"sevenths": sevenths, "memoryGiB": gib, "perGPU": per_gpu}
    return profiles
