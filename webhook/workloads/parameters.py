"""Parameters in place of quantities, such as `${trialParameters.gpus}`: the resources of a template without them."""

from typing import Any

from webhook.workloads.gpu_amounts import PARAMETERS

_NATIVE = frozenset({"cpu", "memory", "ephemeral-storage"})
_CONTAINER_LISTS = ("containers", "initContainers")


def template_without_parameters(template: Any) -> Any:
    """Return the template without parameters in its resources. Return the same object if it has none."""
    spec = template.get("spec") if isinstance(template, dict) else None
    if not isinstance(spec, dict):
        return template
    lists = {name: spec[name] for name in _CONTAINER_LISTS if isinstance(spec.get(name), list)}
    changed = {name: [*map(container_without_parameters, listed)] for name, listed in lists.items()}
    return template if changed == lists else {**template, "spec": {**spec, **changed}}


def container_without_parameters(container: Any) -> Any:
    if not isinstance(container, dict) or not isinstance(container.get("resources"), dict):
        return container
    return {**container, "resources": resources_without_parameters(container["resources"])}


def resources_without_parameters(resources: dict[str, Any]) -> dict[str, Any]:
    """Return the resources with each parameter, `${trialParameters.gpus}`, replaced by 1 for devices, or removed.

    So the pod requests a GPU, although the number is not known yet.
    """
    changed = dict(resources)
    for name, member in resources.items():
        if isinstance(member, dict):
            kept = {
                key: value for key, value in member.items() if not (is_parameter(value) and _is_native(key))
            }
            changed[name] = {key: quantity_without_parameters(value) for key, value in kept.items()}
    return changed


def _is_native(key: str) -> bool:
    """Whether it is a resource of Kubernetes itself; another name, with a domain or misspelt, is one of devices."""
    return key in _NATIVE or key.startswith("hugepages-")


def quantity_without_parameters(value: Any) -> Any:
    return "1" if is_parameter(value) else value


def is_parameter(value: Any) -> bool:
    return isinstance(value, str) and any(mark in value for mark in PARAMETERS)
