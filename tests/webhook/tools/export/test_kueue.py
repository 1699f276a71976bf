"""Flavors and queues of Kueue from GPUQuotas; a real Kueue admits by them in tests/neighbours/test_kueue.py."""

from collections.abc import Collection
from fractions import Fraction

from policies.quota.amounts import Amounts
from tests.builders import JSON
from tests.cases import cases
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_objects
from webhook.tools.export.kueue import kueue_objects

POLICY = Document(
    "GPUPolicy",
    "default",
    {
        "rules": {
            "gpu-class": {"labelKey": "nvidia.com/gpu.product"},
            "gpu-toleration": {"tolerations": [{"key": "dedicated", "value": "gpus"}]},
        }
    },
)
NVIDIA = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def granted(objects: list[JSON]) -> dict[str, dict[str, int]]:
    """Return by ClusterQueue what its flavors grant."""
    return {
        each["metadata"]["name"]: {
            flavor["name"]: flavor["resources"][-1]["nominalQuota"]
            for flavor in each["spec"]["resourceGroups"][0]["flavors"]
        }
        for each in objects
        if each["kind"] == "ClusterQueue"
    }


def amounts(**hard: float | str) -> Amounts:
    return {key.replace("__", "/").replace("_", "-"): Fraction(amount) for key, amount in hard.items()}


@cases(
    ("hard", "with_nodes", "want"),
    by_class=(amounts(classes__nvidia_t4=4), (), {"ml": {"nvidia-t4": 4}}),
    whole_gpus=(amounts(classes__nvidia_t4="7/2"), (), {"ml": {"nvidia-t4": 3}}),
    less_in_total=(amounts(gpus=2, classes__nvidia_t4=4), (), {"ml": {"nvidia-t4": 2}}),
    by_family=(
        amounts(classes__nvidia_a100=4),
        (),
        {"ml": {"nvidia-a100-40gb": 4, "nvidia-a100-80gb": 4}},
    ),
    in_total_of_what_nodes_have=(amounts(gpus=8), ("nvidia-l4",), {"ml": {"nvidia-l4": 8}}),
    in_total_of_no_known_class=(amounts(gpus=8), (), {}),
    of_two_vendors=(
        amounts(classes__nvidia_t4=4, classes__amd_mi300x=2),
        (),
        {"ml-amd": {"amd-mi300x": 2}, "ml-nvidia": {"nvidia-t4": 4}},
    ),
)
def test_what_queues_grant(
    hard: Amounts, with_nodes: Collection[str], want: dict[str, dict[str, int]]
) -> None:
    objects = kueue_objects(load_objects([]), {"ml": hard}, with_nodes)

    assert granted(objects) == want
    locals_of = {
        each["spec"]["clusterQueue"]: each["metadata"] for each in objects if each["kind"] == "LocalQueue"
    }
    assert locals_of.keys() == want.keys()
    assert {each["namespace"] for each in locals_of.values()} <= {"ml"}


@cases(
    ("documents", "labels", "tolerations"),
    by_default=([], {"accelerator": "nvidia-t4"}, [NVIDIA]),
    by_the_default_policy=(
        [POLICY],
        {"nvidia.com/gpu.product": "Tesla-T4"},
        [NVIDIA, {"key": "dedicated", "value": "gpus"}],
    ),
)
def test_a_flavor_has_what_pods_of_its_class_get(
    documents: list[Document], labels: JSON, tolerations: list[JSON]
) -> None:
    flavor, *_ = kueue_objects(load_objects(documents), {"ml": amounts(classes__nvidia_t4=4)}, ())

    assert flavor["spec"]["nodeLabels"] == labels
    assert flavor["spec"]["tolerations"] == tolerations
