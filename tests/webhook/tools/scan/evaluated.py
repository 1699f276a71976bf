"""The built-in configuration, and pods that were evaluated by it."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from tests.builders import JSON, gpu_container, pod
from webhook.configuration.loader import load_directory
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.tools.scan.report import Proposal, ScanReport
from webhook.tools.stored_objects import Evaluation, evaluate

BUILT_IN = load_directory(None)
BY = Evaluator(cache=DecisionCache(BUILT_IN), now=datetime(2026, 11, 21, tzinfo=UTC))

UNKNOWN = {"gpu-admission.dev/gpu-class": "a1000"}


def evaluated_pod(name: str, *containers: JSON, owner: str = "", **tweaks: Any) -> Evaluation:
    document = pod(*(containers or (gpu_container(),)), **tweaks)
    document["metadata"]["name"] = name
    if owner:
        kind, _, named = owner.partition("/")
        made_by = {"apiVersion": "apps/v1", "kind": kind, "name": named, "controller": True}
        document["metadata"]["ownerReferences"] = [made_by]
    return evaluate("", "Pod", "team", msgspec.json.encode(document), BY)


NOTHING_PROPOSED = Proposal(classes=(), quotas={}, teams={}, exemptions={}, relaxed=(), files={})
EMPTY_REPORT = ScanReport(
    scanned_at="2026-11-21T12:00:00Z",
    source="the built-in defaults",
    is_enforced=False,
    omitted=(),
    pods=0,
    gpu_pods=0,
    workloads=0,
    pod_effects={},
    workload_effects={},
    rules={},
    problems=(),
    changes=(),
    left_out=0,
    namespaces=(),
    classes={},
    unread=(),
    nodes=(),
    limit_ranges=(),
    proposal=NOTHING_PROPOSED,
)
