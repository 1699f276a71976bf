"""The search for GPUs that are not read takes little time, whatever an author writes."""

from time import process_time

from tests.builders import JSON
from webhook.configuration.loader import load_directory
from webhook.workloads.gpu_amounts import MAX_DEPTH
from webhook.workloads.unread import MAX_MISPLACED, quota_findings, unread_gpus

BUILT_IN = load_directory(None)
MAPPING, KINDS = BUILT_IN.resource_mapping, BUILT_IN.workload_kinds


def test_an_object_that_says_a_kind_in_a_map_is_searched_in_no_time() -> None:
    data: JSON = {"spec": {"limits": {"nvidia.com/gpu": 1}, "text": "x" * 100_000}}
    for _ in range(60):
        data = {"apiVersion": data, "kind": data}

    started = process_time()
    unread_gpus("example.com", "TrainingJob", data, (), MAPPING, KINDS)

    assert process_time() - started < 2


def test_gpus_below_more_steps_than_any_kind_has_are_not_searched() -> None:
    data: JSON = {"nvidia.com/gpu": 1}
    for _ in range(MAX_DEPTH):
        data = {"a": data}

    assert unread_gpus("example.com", "TrainingJob", data, (), MAPPING, KINDS) == []
    assert unread_gpus("example.com", "TrainingJob", data["a"], (), MAPPING, KINDS) != []


def test_of_a_quota_as_many_findings_as_are_reported() -> None:
    hard = {f"requests.nvidia.com/gpus{number}": 1 for number in range(100)}
    data = {"spec": {"resourceQuotaSpec": {"hard": hard}}}

    found = list(quota_findings(KINDS["kubeflow.org", "Profile"], data, MAPPING))

    assert len(found) <= MAX_MISPLACED
