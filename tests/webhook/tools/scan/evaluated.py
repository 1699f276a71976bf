"""The built-in configuration, and pods that were evaluated by it."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from tests.builders import JSON, gpu_container, pod
from webhook.configuration.loader import load_directory
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
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
