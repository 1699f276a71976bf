"""One minimal valid object of each kind, tweaked by keyword: plain JSON values until `view` makes a Pod of them."""

from typing import Any

import jsonpatch
import msgspec

from policies.draft import PodDraft
from policies.pod import Pod, decode_pod

JSON = dict[str, Any]


def container(name: str = "main", **tweaks: Any) -> JSON:
    return {"name": name, "image": "registry.example/image:1", **tweaks}


def gpu_container(
    quantity: Any = "1", name: str = "main", resource: str = "nvidia.com/gpu", **tweaks: Any
) -> JSON:
    """Return a container that asks for a GPU the way people write it: a limit and nothing else."""
    return container(name, **{"resources": {"limits": {resource: quantity}}, **tweaks})


def pod(*containers: JSON, annotations: dict[str, str] | None = None, **spec: Any) -> JSON:
    """Return a Pod of the containers (one that asks for no GPU if there is none); `spec` is merged into its spec."""
    metadata: JSON = {"name": "trainer", "namespace": "ml-training"}
    if annotations is not None:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": list(containers or (container(),)), **spec},
    }


def view(document: JSON) -> Pod:
    """Return the document as the rules see it, decoded from its JSON bytes as at the webhook's edge."""
    return decode_pod(msgspec.json.encode(document))


def operations(draft: PodDraft) -> list[JSON]:
    """Return the draft's patch as it goes over the wire."""
    return [
        msgspec.json.decode(msgspec.json.encode(operation))
        for change in draft.changes
        for operation in change.operations
    ]


def apply(document: JSON, draft: PodDraft) -> JSON:
    """Return the document with the draft's patch applied, by a JSON patch library that is not ours."""
    patched: JSON = jsonpatch.apply_patch(document, operations(draft))
    return patched
