"""What is said of the resource of a pod that is pinned by a node selector."""

from policies.finding import Severity
from policies.gpus.classes import GPUClasses
from policies.gpus.resource_mapping import GPUResource
from policies.placement.availability import Availability, Complaint
from tests.builders import CLASSES, RESOURCE_MAPPING, pod, view

A100_80 = {"accelerator": "nvidia-a100-80gb"}
A100_40 = {"accelerator": "nvidia-a100-40gb"}
A100 = {"accelerator": "nvidia-a100"}
T4 = {"accelerator": "nvidia-t4"}
ANYWHERE: dict[str, str] = {}


def resource(name: str) -> GPUResource:
    found = RESOURCE_MAPPING.resource(name)
    assert found is not None
    return found


Said = tuple[str, str, Severity]


def warning(message: str, remedy: str) -> Said:
    return message, remedy, Severity.WARNING


def denial(message: str, remedy: str) -> Said:
    return message, remedy, Severity.DENIAL


def said(found: Complaint | None) -> Said | None:
    return found and (found.message, found.remedy, found.severity)


def availability(selector: dict[str, str], gpu_classes: GPUClasses = CLASSES) -> Availability:
    return Availability(view(pod(nodeSelector=selector)), gpu_classes)
