"""DRA devices: whether the controller can tell all kinds of them apart."""

from collections.abc import Iterator

from policies.printable import first_names
from webhook.cluster import errors
from webhook.cluster.objects import DEVICES
from webhook.configuration.dynamic_resources import decode_devices, devices_path
from webhook.tools.doctor.check import Observation, doctor_check, warning
from webhook.tools.installed_cluster import InstalledCluster

MAX_NAMES = 3
"""Names that a sentence lists."""


@doctor_check("device-kinds", "Kinds of DRA devices have all attributes that selectors may read")
def _device_kinds(cluster: InstalledCluster) -> Iterator[Observation]:
    namespace = cluster.names.namespace
    try:
        left_out = decode_devices(cluster.api.get(devices_path(namespace))).published.left_out
    except errors.NotFound:  # nothing is published, and the check of configurations names the object
        return
    if left_out:
        message = (
            f"lacks {first_names(left_out, MAX_NAMES)}, because there are too many kinds of devices: a claim whose selector "
            "reads one of them counts as the largest device of its DeviceClass"
        )
        remedy = "set measure nothing in deviceClasses of a GPUResourceMapping for drivers whose devices are not GPUs"
        yield warning("device-kinds-left-out", f"ConfigMap/{DEVICES} in {namespace}", message, remedy)


CHECKS = (_device_kinds,)
