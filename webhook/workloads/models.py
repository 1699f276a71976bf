"""An InferenceService of LLMKube with the GPUs that its Model states.

Source: defilantech/LLMKube@907ac8d8 pkg/apiutil/gpu.go (`GPUCount`, `GPUResourceName`): the count of the Model, if it is above 0,
precedes that of the service.
"""

from typing import Any

from policies.finding import UNREAD_GPUS, Finding, Severity
from policies.gpus.resource_mapping import NVIDIA_GPU
from policies.pods.field_paths import value_at, with_value
from webhook.workloads.counts import plain_number

SERVICE, MODEL = ("inference.llmkube.dev", "InferenceService"), "Model"
_GPU = ("spec", "hardware", "gpu")
_BY_VENDOR = {"amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}


def model_of(data: Any) -> tuple[str, str]:
    """Return kind and name of the Model of an InferenceService; "" without a name."""
    name = value_at(data, ("spec", "modelRef"))
    return MODEL, name if isinstance(name, str) else ""


def with_model(data: Any, model: Any) -> Any:
    """Return the InferenceService with the count and the resource (`spec.resources.gpuResourceName`) of its Model."""
    gpu = value_at(model, _GPU)
    if not (isinstance(gpu, dict) and isinstance(data.get("spec"), dict)):
        return data
    count = plain_number(gpu.get("count"))
    name = gpu.get("resourceName") or _BY_VENDOR.get(str(gpu.get("vendor")), NVIDIA_GPU)
    resources = value_at(data, ("spec", "resources"))
    resources = resources if isinstance(resources, dict) else {}
    return with_value(
        data,
        ("spec", "resources"),
        {**resources, **({"gpu": count} if count else {}), "gpuResourceName": name},
    )


def unknown_model(data: Any) -> Finding:
    """Return a warning that the Model of the InferenceService is not known."""
    _, name = model_of(data)
    return Finding(
        rule="workloads",
        reason=UNREAD_GPUS,
        severity=Severity.WARNING,
        path="spec.modelRef",
        value=name,
        message="names a Model that is neither here nor in the cluster: its GPUs are not known",
        remedy="check it together with the Model",
    )
