"""Builds pods from parts of workload objects. There is one function for each PodForm."""

from collections.abc import Iterator
from typing import Any

import msgspec

from policies.pods.field_paths import Parts
from webhook.configuration.workload_kinds import PodForm, PodPath, steps
from webhook.configuration.yaml_documents import YamlDocument, load_documents
from webhook.workloads.counts import bound, first_value, values

_DEFAULTS = ("affinity", "nodeSelector", "tolerations", "volumes")
_PLACEHOLDERS = ("{{", "${")
_CONTAINER_LISTS = ("containers", "initContainers")

_FIRST = ("spec", "containers", 0)

Origins = dict[Parts, Parts]
"""Path in the pod → path in the object."""


def pod_data(form: PodPath, whole: Any, at: Parts, value: Any) -> tuple[dict[str, Any], Origins] | None:
    """Return the pod that `value` at `at` describes, and the origins of its parts. None if it describes no pod."""
    match form.form:
        case PodForm.TEMPLATE:
            return value, {(): at}
        case PodForm.SPEC:
            found = _of_spec(form, at, value)
        case PodForm.RESOURCES:
            found = _of_resources(form, whole, at, value)
        case PodForm.AMOUNTS:
            found = _of_amounts(form, whole, at, value)
        case _:
            found = _of_patch(at, value)
    if found is None:
        return None
    pod, origins = found
    spec = pod["spec"]
    for path in form.defaults:
        outer = bound(form, at, path)
        for key in _DEFAULTS:
            if spec.get(key) is None:
                for origin, default in values(whole, (*outer, key)):
                    spec[key] = default
                    origins["spec", key] = origin
    return pod, origins


def decided_template(template: Any) -> Any:
    """Return the pod template with its parameters for quantities (`${trialParameters.gpus}`) replaced or removed.

    Return the same object if there are no such parameters.
    """
    spec = template.get("spec") if isinstance(template, dict) else None
    if not isinstance(spec, dict):
        return template
    lists = {name: spec[name] for name in _CONTAINER_LISTS if isinstance(spec.get(name), list)}
    decided = {name: [_with_decided(container) for container in listed] for name, listed in lists.items()}
    return template if decided == lists else {**template, "spec": {**spec, **decided}}


def _of_spec(form: PodPath, at: Parts, data: dict[str, Any]) -> tuple[dict[str, Any], Origins] | None:
    elsewhere, own = list(_members(form, data)), data.get("containers")
    if not (isinstance(own, list) or elsewhere):
        return None
    containers = list(own) if isinstance(own, list) else []
    origins: Origins = {("spec",): at, ("metadata",): (*at, "metadata")}
    for at_member, member in elsewhere:
        here: Parts = ("spec", "containers", len(containers))
        origins[here] = (*at, *at_member)
        container = {"name": str(at_member[0]), **member}
        # A Tekton v1 step names its resources `computeResources`.
        if isinstance(container.get("computeResources"), dict):
            container["resources"] = container.pop("computeResources")
            origins[*here, "resources"] = (*at, *at_member, "computeResources")
        containers.append(container)
    spec = {**data, "containers": [_with_decided(container) for container in containers]}
    return {"metadata": data.get("metadata"), "spec": spec}, origins


def _members(form: PodPath, data: dict[str, Any]) -> Iterator[tuple[Parts, dict[str, Any]]]:
    for path in form.containers:
        for parts, member in values(data, steps(path)):
            found = [(parts, member)]
            if isinstance(member, list):
                found = [((*parts, index), item) for index, item in enumerate(member)]
            yield from ((place, each) for place, each in found if isinstance(each, dict))


def _of_resources(
    form: PodPath, whole: Any, at: Parts, data: dict[str, Any]
) -> tuple[dict[str, Any], Origins]:
    container: dict[str, Any] = {"name": str(at[-2:][0]), "resources": _decided(data)}
    spec: dict[str, Any] = {"containers": [container]}
    origins: Origins = {("spec", "containers", 0, "resources"): at}
    claims = first_value(whole, form, at, form.claims) if form.claims else None
    listed = [each for each in claims if isinstance(each, dict)] if isinstance(claims, list) else []
    if listed:
        names = [f"claim-{index}" for index in range(len(listed))]
        spec["resourceClaims"] = [{**each, "name": name} for name, each in zip(names, listed, strict=True)]
        container["resources"] = {**container["resources"], "claims": [{"name": name} for name in names]}
        origins["spec", "resourceClaims"] = bound(form, at, form.claims)
    return {"spec": spec}, origins


def _of_amounts(
    form: PodPath, whole: Any, at: Parts, data: dict[str, Any]
) -> tuple[dict[str, Any], Origins] | None:
    limits: dict[str, Any] = {}
    origins: Origins = {}
    for name, quantity, origin in _amounts(form, whole, at):
        counted = limits.get(name)
        limits[name] = quantity + counted if type(quantity) is type(counted) is int else quantity
        origins.setdefault((*_FIRST, "resources", "limits", name), origin)
    if not limits:
        return None
    elsewhere = list(_members(form, data))
    containers = [{"name": str(at_member[0]), **member} for at_member, member in elsewhere] or [
        {"name": str(at[-1])}
    ]
    origins |= {("spec", "containers", index): (*at, *part) for index, (part, _) in enumerate(elsewhere)}
    written = containers[0].get("resources")
    resources = _decided(written) if isinstance(written, dict) else {}
    others = resources.get("limits")
    containers[0]["resources"] = {
        **resources,
        "limits": {**(others if isinstance(others, dict) else {}), **limits},
    }
    return {"spec": {"containers": [containers[0], *map(_with_decided, containers[1:])]}}, origins


def _amounts(form: PodPath, whole: Any, at: Parts) -> Iterator[tuple[str, Any, Parts]]:
    """Yield the name of each resource, its amount, and the path of the amount."""
    for gpu in form.gpus:
        names = list(values(whole, bound(form, at, gpu.name))) if gpu.name else []
        if not gpu.quantity:
            found = [(name, 1, origin) for origin, name in names]
        else:
            name = names[0][1] if names else gpu.resource
            found = [
                (name, _decided_quantity(value), origin)
                for origin, value in values(whole, bound(form, at, gpu.quantity))
            ]
        yield from (
            each for each in found if isinstance(each[0], str) and each[0] and not _is_placeholder(each[0])
        )


def _of_patch(at: Parts, text: str) -> tuple[dict[str, Any], Origins] | None:
    """Return None for an expression, and for other text that does not describe a map. Argo itself reports errors in it."""
    documents = list(load_documents(text, aliases=0))
    if len(documents) != 1 or not isinstance(documents[0], YamlDocument):
        return None
    try:
        spec = msgspec.json.decode(msgspec.json.encode(documents[0].data))
    except (TypeError, OverflowError, msgspec.DecodeError):
        return None
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        return None
    containers = [_with_decided(each) for each in spec["containers"]]
    return {"spec": {**spec, "containers": containers}}, {("spec",): at}


def _with_decided(container: Any) -> Any:
    if not isinstance(container, dict) or not isinstance(container.get("resources"), dict):
        return container
    return {**container, "resources": _decided(container["resources"])}


def _decided(resources: dict[str, Any]) -> dict[str, Any]:
    """Return the resources with each parameter (`{{inputs.parameters.gpus}}`) replaced by 1 for devices, and removed otherwise.

    So the pod requests a GPU, although the number is not known yet.
    """
    decided = dict(resources)
    for name, member in resources.items():
        if isinstance(member, dict):
            kept = {key: value for key, value in member.items() if "/" in key or not _is_placeholder(value)}
            decided[name] = {key: _decided_quantity(value) for key, value in kept.items()}
    return decided


def _decided_quantity(value: Any) -> Any:
    return "1" if _is_placeholder(value) else value


def _is_placeholder(value: Any) -> bool:
    return isinstance(value, str) and any(mark in value for mark in _PLACEHOLDERS)
