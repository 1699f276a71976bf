"""Reviews where nodes are known, in a namespace with a default class and a quota."""

import json
from collections.abc import Iterator
from pathlib import Path

from policies.placement.nodes import HOSTNAME, NamedNode, NodeState, node_facts, nodes_with_other_labels
from policies.pods.annotations import GPU_CLASS
from tests.builders import JSON, gpu_container, pod
from tests.webhook.app_client import AppClient
from tests.webhook.serving.hostile_bodies import review, workload
from tests.webhook.serving.hostile_program import POLICY, client_with_quotas
from tests.webhook.serving.long_objects import affinity, requirement, term
from webhook.configuration.loader import keys_to_know, load_directory
from webhook.evaluation.facts import Facts

CLASSES = 7
"""The last one has no nodes."""
KEYS = 4
"""Labels of each class besides its own."""


def client_with_nodes(config: Path, *, nodes: int, values: int) -> AppClient:
    """Return a client of the app with so many nodes. Classes are on nodes with one of so many values of each of KEYS labels."""
    labels = [{"key": f"l{key}", "values": [f"v{value}" for value in range(values)]} for key in range(KEYS)]
    classes = [
        {
            "apiVersion": "gpu-admission.dev/v1alpha1",
            "kind": "GPUClass",
            "metadata": {"name": f"card-{each}"},
            "spec": {
                "family": "card",
                "memoryGiB": 80,
                "nodeLabels": [{"key": "accelerator", "values": [f"card-{each}"]}, *labels],
            },
        }
        for each in range(CLASSES)
    ]
    policy = POLICY.replace("nvidia-a100-80gb}", "card-0}")
    Path(config, "policy.yaml").write_text("\n---\n".join([policy, *map(json.dumps, classes)]))
    keys = keys_to_know(load_directory(config))
    state = NodeState(resources=frozenset({"nvidia.com/gpu"}), amounts=(("nvidia.com/gpu", 8),))
    named = [
        NamedNode(
            uid=f"{number}",
            name=f"n{number}",
            hostname=f"n{number}",
            labels=(
                ("accelerator", f"card-{number % (CLASSES - 1)}"),
                *((f"l{key}", f"v{number % values}") for key in range(KEYS)),
            ),
            state=state,
            other_labels=(f"{HOSTNAME}=n{number}", f"rack=r{number // 10}"),
        )
        for number in range(nodes)
    ]
    facts = node_facts(
        keys, [(each.labels, each.state) for each in named], (), nodes_with_other_labels(named)
    )
    client, _ = client_with_quotas(config, Facts(nodes=lambda: facts))
    return client


def pods_on_classes(mark: str) -> Iterator[tuple[str, JSON]]:
    """Yield pods that choose classes in each way. The mark makes each another one than those of other marks."""
    last = f"card-{CLASSES - 1}"
    specs: dict[str, JSON] = {
        "no class": {},
        "an annotation": {"annotations": {GPU_CLASS: last}},
        "a family": {"annotations": {GPU_CLASS: "card"}},
        "a node label": {"nodeSelector": {"l0": "v1"}},
        "labels of no node": {"nodeSelector": {"accelerator": last, "l0": "v1"}},
        "labels of no class": {"nodeSelector": {"accelerator": last, "l0": "v1", "l3": "v-none"}},
        "an affinity": {"affinity": affinity(term(requirement("card-1", last)))},
        "another label": {"nodeSelector": {"rack": "r1"}},
        "no node": {"nodeSelector": {"accelerator": "card-1", "rack": "r-none"}},
        "an unknown class": {"annotations": {GPU_CLASS: "card-x"}},
        "too many GPUs": {"annotations": {GPU_CLASS: last}, "containers": [gpu_container("9", args=[mark])]},
    }
    for name, spec in specs.items():
        yield name, pod(gpu_container(args=[mark]), **spec)


def reviews_with_nodes(mark: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, the endpoint and the body of each review."""
    for name, document in pods_on_classes(mark):
        for endpoint in ("/mutate", "/validate"):
            yield name, endpoint, review("", "Pod", document, namespace="strict")
        template = workload("Deployment", document)
        yield (
            f"{name}, in a template",
            "/validate",
            review("apps", "Deployment", template, namespace="strict"),
        )
