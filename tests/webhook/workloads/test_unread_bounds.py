"""The search for GPUs that are not read takes little time, whatever an author writes."""

from collections.abc import Mapping
from typing import Any

from tests.builders import JSON
from webhook.configuration.loader import load_directory
from webhook.workloads.gpu_amounts import MAX_DEPTH
from webhook.workloads.misplaced import MAX_MISPLACED
from webhook.workloads.unread import quota_findings, unread_gpus

BUILT_IN = load_directory(None)
MAPPING, KINDS = BUILT_IN.resource_mapping, BUILT_IN.workload_kinds


def test_a_kind_in_a_map_is_never_made_a_text() -> None:
    data: JSON = {"limits": {"nvidia.com/gpu": 1}, "text": "x" * 1_000}
    for _ in range(MAX_DEPTH):
        data = {"apiVersion": data, "kind": data}
    asked = Recording(KINDS)

    unread_gpus("example.com", "TrainingJob", data, (), MAPPING, asked)

    assert asked.keys_asked == {("example.com", "TrainingJob")}


class Recording(dict[Any, Any]):
    """Kinds, and for which of them somebody asked."""

    def __init__(self, kinds: Mapping[Any, Any]) -> None:
        super().__init__(kinds)
        self.keys_asked: set[Any] = set()

    def get(self, key: Any, default: Any = None) -> Any:
        self.keys_asked.add(key)
        return super().get(key, default)


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
