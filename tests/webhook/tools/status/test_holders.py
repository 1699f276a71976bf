"""The claims that hold a quota, with what the controller counts for them."""

from pathlib import Path
from typing import Any, cast

import msgspec

from policies.gpus.device_classes import ClusterDevices, decode_device_class
from policies.quota.amounts import GPUS
from policies.quota.demand import UnclassifiedPods
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, status
from tests.webhook.tools.status.allocated_claims import allocated, cluster_with
from webhook.configuration.loader import load_objects
from webhook.tools.status.listed_devices import AllocatedKinds
from webhook.tools.status.permitted import Permitted
from webhook.tools.status.quotas import holders_of_quota

SLICE = allocated("gpu-0-mig-1g10gb-0")


@cases(
    ("claim", "node", "may_list_slices", "want"),
    the_slice_that_it_has=(SLICE, "n1", True, "1/7"),
    its_pod_is_not_bound=(SLICE, "", True, "1"),
    other_pods_may_use_it=(allocated("gpu-0-mig-1g10gb-0", made_for_pod=False), "n1", True, "1"),
    it_has_a_card=(allocated("gpu-0", request="gpu/large"), "n1", True, "1"),
    it_has_nothing_yet=(allocated(), "n1", True, "1"),
    a_device_that_no_slice_lists=(allocated("gone"), "n1", True, "1"),
    its_reader_may_not_list_slices=(SLICE, "n1", False, "1"),
)
def test_what_a_claim_holds(
    tmp_path: Path, claim: dict[str, Any], node: str, may_list_slices: bool, want: str
) -> None:
    cluster = cluster_with(claim, node)
    stored = cast("list[Any]", cluster.objects["deviceclasses"])
    classes = tuple(decode_device_class(msgspec.json.encode(each)) for each in stored)
    with ApiServer(tmp_path, cluster) as server:
        reader = Permitted(server.client())
        slices = reader.slices()
        assert slices is not None
        kinds = AllocatedKinds(slices, load_objects([]).resource_mapping).device_kinds
        published = load_objects([], ClusterDevices(classes, kinds))
        if not may_list_slices:
            cluster.objects["resourceslices"] = status(403, "no", "Forbidden")
            reader = Permitted(server.client())
        found = holders_of_quota(reader, published, "ml", UnclassifiedPods.TOTAL_ONLY, None)

    assert [(each.kind, str(each.demand[GPUS])) for each in found] == [("ResourceClaim", want)]
    assert reader.omitted == ([] if may_list_slices else ["list resourceslices.resource.k8s.io"])
