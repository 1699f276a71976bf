"""What is known of the accelerators of one vendor; `policies.gpus.vendors` has the table."""

import msgspec

from policies.gpus.mapping_spec import DeviceClassPattern, ResourcePattern

VOID, NONE = "void", "none"
HIDING = ("", NONE, VOID)
"""Values that show no GPU. `none` still mounts the driver's libraries (README of nvidia-container-runtime)."""


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """The known properties of one vendor's accelerators.

    resources: resource names and their units. In each domain, the first matching pattern decides. The resource of the whole card
      is also the taint key of nodes.
    device_classes: DeviceClasses and drivers of DRA in the vendor's Helm charts and documentation. One device counts as a whole
      card, also of mig.nvidia.com, unless ResourceSlices say what it is.
    one_device_each: resources whose unit is one device for a process. Not those of Neuron (a device has several cores), MIG (a
      process sees one of two slices), Intel and TPUs (the unit depends on the node).
    visible_devices: variables by which the container runtime shows devices, from its sources.
    hiding_values: values of these variables that show no device. Findings suggest the last one.
    node_paths: beginnings of the paths of devices and drivers on a node, compared after a slash is added to the path. One that
      ends with a slash is this file or directory, and what is below it.
    monitor_resources: resources whose unit shows all cards of a node and reserves none. `resources` have them as nothing.
    hardware_labels: globs of node labels by which pods choose hardware (`LabelKeys`). other_labels: globs of others.
    sharing_labels: globs of `label=value` of nodes that share cards under their own name.
    product_labels, memory_mib_labels, memory_gb_labels: node labels with the product, and the memory of one card in MiB or as
      `192G`.
    """

    resources: tuple[ResourcePattern, ...] = ()
    device_classes: tuple[DeviceClassPattern, ...] = ()
    one_device_each: tuple[str, ...] = ()
    visible_devices: tuple[str, ...] = ()
    hiding_values: tuple[str, ...] = HIDING
    node_paths: tuple[str, ...] = ()
    monitor_resources: tuple[str, ...] = ()
    hardware_labels: tuple[str, ...] = ()
    other_labels: tuple[str, ...] = ()
    sharing_labels: tuple[str, ...] = ()
    product_labels: tuple[str, ...] = ()
    memory_mib_labels: tuple[str, ...] = ()
    memory_gb_labels: tuple[str, ...] = ()
