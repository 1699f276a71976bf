"""The annotations that the registered match conditions know: a pod with none of them never reaches the webhook.

A GPUResourceMapping may name others. Their pods are counted once they are stored, but never reviewed.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from policies.gpus.mapping_spec import ResourceMappingSpec
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import WEBHOOK_CONFIGURATION_KINDS, webhook_configuration_path

BUILT_IN = ("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices")
"""The annotations that the chart always names."""
UNREGISTERED = "is not known to the registered webhooks: its pods are counted, and neither they nor changes of it are reviewed"
REMEDY = "add it to webhooks.fractionAnnotations of the chart"
CALL_SECONDS = 1.0
"""For one configuration, and for all schemas; the API server waits 5 s for the answer about a document."""

_ADDED = re.compile(r"(?<='gpu-fraction-num-devices')(,'[^']*')+")
"""What webhooks.fractionAnnotations adds to a condition, which stands here without white space."""


def without_added(expression: str) -> str:
    """Return a match condition without white space, and without what webhooks.fractionAnnotations adds to it."""
    return _ADDED.sub("", "".join(expression.split()))


def match_conditions(webhooks: Iterable[Mapping[str, Any]]) -> set[str]:
    return {each["expression"] for webhook in webhooks for each in webhook.get("matchConditions") or ()}


def registered_conditions(api: ApiClient) -> Collection[str]:
    """Return all match conditions of both configurations; no conditions if one of them cannot be read."""
    conditions = set()
    for kind in WEBHOOK_CONFIGURATION_KINDS:
        try:
            answer = api.get(webhook_configuration_path(kind), timeout=CALL_SECONDS)
            conditions |= match_conditions(msgspec.json.decode(answer).get("webhooks") or ())
        except (errors.ApiError, msgspec.MsgspecError):
            return ()
    return conditions


def unregistered(spec: ResourceMappingSpec, conditions: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield path and key of every fraction annotation that a condition on such annotations lacks."""
    on_annotations = [condition for condition in conditions if f"'{BUILT_IN[0]}'" in condition]
    for index, annotation in enumerate(spec.fraction_annotations):
        key = annotation.key
        if key not in BUILT_IN and not all(f"'{key}'" in each for each in on_annotations):
            yield f"spec.fractionAnnotations[{index}].key", key
