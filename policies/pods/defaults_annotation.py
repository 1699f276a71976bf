"""The annotation in which the API server's plugin LimitRanger lists the amounts that it gave a pod. Anyone can write it."""

from collections.abc import Iterator

from policies.pods.pod import ContainerPlace, Pod

DEFAULTS_ANNOTATION = "kubernetes.io/limit-ranger"
LONGEST_DEFAULTS = 16 * 1024
"""Characters of the annotation that is read: 200 containers with CPU and memory."""
PREFIX = "LimitRanger plugin set: "


def annotated_defaults(pod: Pod) -> frozenset[str]:
    """Return what the annotation lists, one by one: `cpu request for container main`. Empty if it is too long."""
    text = pod.annotations.get(DEFAULTS_ANNOTATION, "")
    if not text.startswith(PREFIX) or len(text) > LONGEST_DEFAULTS:
        return frozenset()
    return frozenset(_each_default(text.removeprefix(PREFIX)))


def _each_default(text: str) -> Iterator[str]:
    for part in text.split("; "):
        listed, _, container = part.partition(" for ")
        resources, _, kind = listed.rpartition(" ")
        yield from (f"{resource} {kind} for {container}" for resource in resources.split(", "))


def default_text(place: ContainerPlace, kind: str, resource: str) -> str:
    """Return how the annotation lists a default; `kind` is `request` or `limit`."""
    prefix = "init container" if place.list_name == "initContainers" else "container"
    return f"{resource} {kind} for {prefix} {place.container.name}"
