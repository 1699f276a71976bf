"""The tolerations that rule gpu-toleration gives a pod on nodes of a class."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from policies.gpus.cards import vendor_domain
from policies.gpus.classes import GPUClass
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Pod, Toleration

GPU_TOLERATION = "gpu-toleration"


@runtime_checkable
class TolerationOptions(Protocol):
    """The tolerations that a policy lists: for all GPU pods, and by vendor, which is the domain of the requested resource."""

    @property
    def tolerations(self) -> Sequence[Toleration]: ...
    @property
    def by_vendor(self) -> Mapping[str, Sequence[Toleration]]: ...


def toleration_for_resource(key: str) -> Toleration:
    """Return the toleration for the taint that nodes with the resource `key` have by convention.

    The admission plugin ExtendedResourceToleration of Kubernetes adds the same one. GKE sets such taints for nvidia.com/gpu and
    google.com/tpu; guides of other clouds and vendors follow the convention.
    """
    return Toleration(key=key, operator="Exists", effect="NoSchedule")


def given_tolerations(
    pod: Pod,
    options: TolerationOptions,
    classes: Iterable[GPUClass],
    mapping: ResourceMapping,
    device_classes: Sequence[str] = (),
) -> list[Toleration]:
    """Return the tolerations that a pod of these classes should have. Empty if it requests no GPU.

    device_classes: the names of the DeviceClasses that its claims request.
    """
    requested = [request.resource.name for request in mapping.requests(pod)]
    fraction = mapping.pod_fraction(pod)
    if not requested and fraction is None and not device_classes:
        return []
    taint_keys = [mapping.whole_card_resource(name) for name in requested]
    if fraction is not None:
        annotation, _ = fraction
        taint_keys.append(annotation.resource)
    taint_keys += [
        pattern.resource for name in device_classes if (pattern := mapping.device_class_pattern(name))
    ]
    keys = dict.fromkeys(key for key in taint_keys if key is not None)
    tolerations = list(options.tolerations)
    if options.by_vendor:
        for each in dict.fromkeys(map(vendor_domain, keys)):
            tolerations += options.by_vendor.get(each, ())
    for gpu_class in classes:
        tolerations += gpu_class.tolerations
    listed_keys = {toleration.key for toleration in tolerations}
    return [*(toleration_for_resource(key) for key in keys if key not in listed_keys), *tolerations]
