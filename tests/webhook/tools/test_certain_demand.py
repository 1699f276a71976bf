"""What a bound pod holds for somebody who may not list nodes: never another amount than the status of the quota says."""

import msgspec

from policies.quota.amounts import texts
from policies.quota.demand import UnclassifiedPods
from tests.builders import JSON, container, pod
from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.quota.counted_records import RecordReader
from webhook.tools.certain_demand import certain_demand

READER = RecordReader(load_directory(None))


def pinned(*products: str) -> JSON:
    terms = [
        {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": list(products)}]}
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


SMALL, LARGE = "NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB"


@cases(
    ("resource", "products", "want"),
    a_whole_card=("nvidia.com/gpu", (), {"gpus": "1", "resources/nvidia.com/gpu": "1"}),
    a_slice_that_is_the_same_part_of_every_card=(
        "nvidia.com/mig-2g.20gb",
        (),
        {"gpus": "2/7", "resources/nvidia.com/mig-2g.20gb": "1"},
    ),
    a_slice_that_is_different_parts=("nvidia.com/mig-1g.10gb", (), {"resources/nvidia.com/mig-1g.10gb": "1"}),
    of_one_class=(
        "nvidia.com/mig-1g.10gb",
        (LARGE,),
        {
            "classes/nvidia-a100": "1/7",
            "classes/nvidia-a100-80gb": "1/7",
            "gpus": "1/7",
            "resources/nvidia.com/mig-1g.10gb": "1",
        },
    ),
    of_two_classes_of_a_family=(
        "nvidia.com/mig-1g.10gb",
        (SMALL, LARGE),
        {"resources/nvidia.com/mig-1g.10gb": "1"},
    ),
)
def test_only_what_does_not_depend_on_the_node(
    resource: str, products: tuple[str, ...], want: dict[str, str]
) -> None:
    affinity = {"affinity": pinned(*products)} if products else {}
    document = pod(container(resources={"limits": {resource: "1"}}), nodeName="n1", **affinity)
    document["metadata"] = {
        "name": "a",
        "namespace": "team",
        "uid": "u",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    record = READER.read_pod(msgspec.Raw(msgspec.json.encode(document)))
    assert record is not None

    assert texts(certain_demand(READER, record, UnclassifiedPods.TOTAL_ONLY, None)) == want
