"""Where the pods of an object are: the object itself, or the pod templates inside a workload.

One row a kind. A path leads from the object to a pod template (`metadata` and `spec` of a pod).
"""

from collections.abc import Iterator

import msgspec

from policies.pod import Pod, decode_pod

Path = tuple[str, ...]

TEMPLATE_PATHS: dict[tuple[str, str], tuple[Path, ...]] = {
    ("", "PodTemplate"): (("template",),),
    ("", "ReplicationController"): (("spec", "template"),),
    ("apps", "DaemonSet"): (("spec", "template"),),
    ("apps", "Deployment"): (("spec", "template"),),
    ("apps", "ReplicaSet"): (("spec", "template"),),
    ("apps", "StatefulSet"): (("spec", "template"),),
    ("batch", "CronJob"): (("spec", "jobTemplate", "spec", "template"),),
    ("batch", "Job"): (("spec", "template"),),
}
"""(API group, kind) → where its pod templates are. The version does not matter: the paths are the same in all of them."""


class PodTemplate(msgspec.Struct, frozen=True):
    """A pod template and its path in the object, e.g. `spec.template`."""

    pod: Pod
    path: str


def is_pod(group: str, kind: str) -> bool:
    return (group, kind) == ("", "Pod")


def has_templates(group: str, kind: str) -> bool:
    return (group, kind) in TEMPLATE_PATHS


def pod_templates(group: str, kind: str, document: bytes | msgspec.Raw) -> Iterator[PodTemplate]:
    """Yield the pod templates of an object; `msgspec.ValidationError` says what is of the wrong type, with its path."""
    for path in TEMPLATE_PATHS.get((group, kind), ()):
        yield from _walk(msgspec.Raw(document), path, "")


def _walk(document: msgspec.Raw, path: Path, walked: str) -> Iterator[PodTemplate]:
    if bytes(document) == b"null":
        return
    try:
        if not path:
            yield PodTemplate(decode_pod(document), walked)
            return
        members = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(_located(str(error), walked)) from None
    if path[0] in members:
        yield from _walk(members[path[0]], path[1:], f"{walked}.{path[0]}" if walked else path[0])


def _located(message: str, walked: str) -> str:
    # msgspec starts its paths at what it was given ("… - at `$.spec`"); the reader's object starts further up.
    if " - at `$" in message:
        return message.replace("at `$", f"at `$.{walked}" if walked else "at `$")
    return f"{message} - at `$.{walked}`" if walked else message
