"""Names that a terminal would obey, sent through all that writes to the API, with the real API server, which takes such names."""

from collections.abc import Iterator
from typing import Any

from tests.cluster.controllers import eventually
from tests.cluster.quota.quotas import gpu_pod, in_force
from tests.cluster.waiting.line import Line

HOSTILE = "a\x1b[2J\x9b31m\u202eb\u2028c\u200bd\x07\x7f\U000e0041"
"""ESC, CSI of C1, a mark of direction, a line separator, an invisible space, BEL, DEL and a tag."""
GROUP = "/apis/gpu-admission.dev/v1alpha1"


def owned(name: str, gpus: int, **metadata: Any) -> dict[str, Any]:
    """Return a pod of a controller whose kind and name are hostile, with a container and annotations as far as they can be."""
    pod = gpu_pod(name, gpus)
    owner = {
        "apiVersion": "x.example/v1",
        "kind": HOSTILE,
        "name": HOSTILE,
        "uid": HOSTILE,
        "controller": True,
    }
    annotations = {"gpu-admission.dev/gpu-clas": HOSTILE, "scheduling.k8s.io/group-name": HOSTILE}
    pod["metadata"] |= {"ownerReferences": [owner], "annotations": annotations, **metadata}
    pod["spec"]["containers"][0] |= {
        "image": f"x:{HOSTILE}",
        "command": [HOSTILE],
        "env": [{"name": "A", "value": HOSTILE}],
    }
    return pod


def texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield f"{path} key", key
            yield from texts(each, f"{path}.{key}")
    elif isinstance(value, list):
        for each in value:
            yield from texts(each, path)
    elif isinstance(value, str):
        yield path, value


def said(line: Line) -> list[tuple[str, str]]:
    """Return all that webhook and controller have written: what tenants wrote themselves are specs and metadata of pods."""
    found: list[tuple[str, str]] = []
    for path in (
        f"/api/v1/namespaces/{line.name}/events",
        f"{GROUP}/namespaces/{line.name}/gpuquotas",
        f"{GROUP}/gpuclasses",
        f"{GROUP}/clustergpuquotas",
        "/api/v1/namespaces/default/configmaps",
        "/api/v1/namespaces/default/events",
    ):
        for each in (line.client.get(path)[1] or {}).get("items") or ():
            found += texts({key: value for key, value in each.items() if key != "metadata"}, path)
    for each in line.client.get(line.path("pods"))[1]["items"]:
        ours = {
            key: value for key, value in each["metadata"].get("annotations", {}).items() if value != HOSTILE
        }
        found += texts(ours, "annotations")
    return found


def test_no_writer_passes_on_what_a_terminal_obeys(line: Line) -> None:
    in_force(line, {"gpus": "4"})
    never_waits = owned("never-waits", 2)
    never_waits["spec"]["nodeName"] = "n"
    answers = [
        line.create(owned("holder", 3)),
        line.create(owned("waiting", 2)),
        line.create(owned("never", 9)),
        line.create(owned("wrong", 1, annotations={"gpu-admission.dev/model-params": HOSTILE})),
        line.create(never_waits),
    ]
    assert [status for status, _ in answers] == [201, 201, 403, 403, 403], answers
    assert line.waits("waiting")

    def is_written() -> bool:
        written = [text for _, text in said(line)]
        return all(
            any(word in text for text in written) for word in ("largest holders", "exceeded quota", "[2J")
        )

    assert eventually(is_written), said(line)
    found = said(line) + [pair for status, answer in answers if status >= 400 for pair in texts(answer)]
    assert [(path, text) for path, text in found if not text.replace("\n", "").isprintable()] == []
