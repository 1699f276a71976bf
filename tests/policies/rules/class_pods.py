"""Pods for rule gpu-class, and what the rule makes of them."""

from typing import Any

from policies.finding import Severity
from policies.pods.patch import PodPatch
from policies.rule import Phase
from policies.rules.gpu_class import GPUClassOptions, check, mutate
from tests import builders
from tests.builders import JSON, apply, context, gpu_container, pod, view

CLASS = "gpu-admission.dev/gpu-class"
PARAMS = "gpu-admission.dev/model-params"
ANY = GPUClassOptions()
T4_ONLY = GPUClassOptions(allowed=("nvidia-t4",))
GATED = [{"name": "kueue.x-k8s.io/admission"}]
UNKNOWN = "must be a GPU class or a family of classes"


def asking(name: str | None = None, gpus: str = "1", resource: str = "nvidia.com/gpu", **tweaks: Any) -> JSON:
    """Return a GPU pod; `annotations` among the tweaks are added to that of the class."""
    annotations = {CLASS: name} if name is not None else {}
    annotations |= tweaks.pop("annotations", {})
    return pod(gpu_container(gpus, resource=resource), annotations=annotations, **tweaks)


def modelled(params: str = "7b", **tweaks: Any) -> JSON:
    return asking(annotations={PARAMS: params}, **tweaks)


def selecting(value: str, key: str = "accelerator") -> JSON:
    return {"nodeSelector": {key: value}}


def affinity(key: str, operator: str, *values: str) -> JSON:
    return {"affinity": builders.node_affinity([(key, operator, *values)])}


def placed(document: JSON, options: GPUClassOptions = ANY, **tweaks: Any) -> JSON:
    """Return the document as /mutate leaves it; a second pass changes nothing."""
    once = _mutated(document, options, **tweaks)
    assert _mutated(once, options, **tweaks) == once
    return once


def _mutated(document: JSON, options: GPUClassOptions, **tweaks: Any) -> JSON:
    patch = PodPatch(view(document))
    assert list(mutate(patch, options, context(Phase.MUTATE, **tweaks))) == []
    return apply(document, patch)


def reported(document: JSON, options: GPUClassOptions = ANY, **tweaks: Any) -> list[tuple[Severity, str]]:
    """Return what /validate says of the document as /mutate left it."""
    is_changed = not tweaks.get("is_update") and tweaks.get("phase", Phase.VALIDATE) is Phase.VALIDATE
    final = placed(document, options, **tweaks) if is_changed else document
    return [(each.severity, each.sentence()) for each in check(view(final), options, context(**tweaks))]


def annotated(value: str, text: str) -> str:
    """Return the sentence of a finding about the class that the annotation names."""
    return f'metadata.annotations[{CLASS}] = "{value}": {text}'
