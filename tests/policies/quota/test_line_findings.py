"""What a denial says of the pods that belong to a denied one."""

from policies.quota.line_findings import group_notes
from policies.quota.quota_request import quota_request_for_pod
from policies.quota.waiting import POD_GROUP
from tests.builders import context, gpu_container, pod, view


def test_a_denied_pod_of_a_group_names_what_the_others_hold() -> None:
    alone, grouped = pod(gpu_container()), pod(gpu_container())
    grouped["metadata"]["labels"] = {POD_GROUP: "train"}
    said = [
        list(group_notes(quota_request_for_pod("r", view(each), before, context())))
        for each, before in ((alone, None), (grouped, None), (grouped, view(grouped)))
    ]

    assert said == [
        [],
        [
            "the other pods of pod group train cannot start without it, and hold their quota: delete them, if it is not "
            "created again"
        ],
        [],
    ]
