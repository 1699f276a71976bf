"""The GPUs of pods that hold quota without a node: since when, and until what."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from policies.quota.demand import UnclassifiedPods
from policies.quota.waiting import GATE
from tests.builders import gpu_container, pod
from tests.cases import cases
from tests.webhook.controller.counters import unknown_kind
from webhook.cluster.objects import timestamp
from webhook.configuration.loader import load_directory
from webhook.controller.namespace_sum import anchored_clock
from webhook.controller.usage_sums import UsageSums
from webhook.quota.counted_records import ClaimHistory, CountedPod

CATALOGUES_CONFIG_MAP = load_directory(None)
CREATED, BEFORE = "2026-11-22T08:00:00Z", "2026-11-22T09:00:00Z"
OURS, OTHERS = {"schedulingGates": [{"name": GATE}]}, {"schedulingGates": [{"name": "example.com/other"}]}
BOUND = {"nodeName": "a"}


def history(
    *states: dict[str, Any] | None, created: str = CREATED, phase: str = "Pending", gpus: str = "2"
) -> UsageSums:
    """Return sums that saw one pod with these specs, one after the other; None is its deletion."""
    sums = UsageSums(CATALOGUES_CONFIG_MAP, ClaimHistory(), unknown_kind, anchored_clock())
    before: CountedPod | None = None
    for spec in states:
        after = None
        if spec is not None:
            document = pod(gpu_container(gpus), **spec)
            document["metadata"] = {
                "name": "a",
                "namespace": "team",
                "uid": "a",
                "creationTimestamp": created,
            }
            document["status"] = {"phase": phase}
            after = sums.reader.read_pod(msgspec.Raw(msgspec.json.encode(document)))
        sums.pod_changed(before, after)
        before = after
    return sums


@cases(
    ("sums", "want"),
    that_was_never_placed=(history({}), 2),
    that_was_looked_at_again=(history({}, {"priority": 1}), 2),
    under_the_gate_of_another=(history(OTHERS), 2),
    under_our_gate=(history(OURS), 0),
    whose_gate_has_just_been_removed=(history(OURS, {}), 0),
    on_a_node=(history(BOUND), 0),
    that_came_onto_a_node=(history({}, BOUND), 0),
    that_was_deleted=(history({}, None), 0),
    that_has_failed=(history({}, phase="Failed"), 0),
    that_is_younger=(history({}, created="2026-11-22T09:00:01Z"), 0),
)
def test_what_a_pod_holds_without_a_node(sums: UsageSums, want: int) -> None:
    assert sums.unbound_gpus("team", UnclassifiedPods.TOTAL_ONLY, BEFORE) == want
    assert sums.unbound_gpus("other", UnclassifiedPods.TOTAL_ONLY, BEFORE) == 0


def test_a_pod_that_waited_in_line_holds_from_the_removal_of_its_gate_on() -> None:
    sums = history(OURS, {}, {"priority": 1})
    now = datetime.now(UTC)

    held = [
        sums.unbound_gpus("team", UnclassifiedPods.TOTAL_ONLY, timestamp(now + timedelta(seconds=each)))
        for each in (-60, 60)
    ]
    assert held == [0, 2]
