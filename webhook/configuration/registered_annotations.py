"""The annotations that the registered match conditions know: a pod of which they know none never reaches the webhook.

A GPUResourceMapping may name others. Their pods are then counted when they are stored, and never reviewed.
"""

import re
from collections.abc import Collection, Iterable, Iterator

import msgspec

from policies.gpus.resource_mapping import ResourceMappingSpec
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.objects import WEBHOOK_CONFIGURATION

KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
GROUP = "admissionregistration.k8s.io"
BUILT_IN = ("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices")
"""Those that the chart always names."""
UNREGISTERED = "is not known to the registered webhooks: its pods are counted, and neither they nor changes of it are reviewed"
REMEDY = "add it to webhooks.fractionAnnotations of the chart"
CALL_SECONDS = 1.0
"""For one configuration; the API server waits 5 s for the answer about a document."""

_ADDED = re.compile(r"(?<='gpu-memory')(\|\|k=='[^']*')+|(?<='gpu-fraction-num-devices')(,'[^']*')+")
"""What webhooks.fractionAnnotations adds to a condition, which stands here without white space."""


class _Condition(msgspec.Struct):
    expression: str


class _Webhook(msgspec.Struct, rename="camel"):
    match_conditions: list[_Condition] | None = None


class _Configuration(msgspec.Struct):
    webhooks: list[_Webhook] | None = None


_CONFIGURATION = msgspec.json.Decoder(_Configuration)


def without_added(expression: str) -> str:
    """Return a match condition without white space, and without what webhooks.fractionAnnotations adds to it."""
    return _ADDED.sub("", "".join(expression.split()))


def registered_conditions(api: ApiClient) -> Collection[str]:
    """Return all match conditions of both configurations; none where they cannot be read, and nothing can be said."""
    found = set()
    for kind in KINDS:
        path = api_path(f"/apis/{GROUP}/v1", kind, WEBHOOK_CONFIGURATION)
        try:
            configuration = _CONFIGURATION.decode(api.get(path, timeout=CALL_SECONDS))
        except (errors.ApiError, msgspec.MsgspecError):
            return ()
        webhooks = configuration.webhooks or ()
        found |= {each.expression for webhook in webhooks for each in webhook.match_conditions or ()}
    return found


def unregistered(spec: ResourceMappingSpec, conditions: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield path and key of every fraction annotation that a condition on such annotations lacks."""
    on_annotations = [each for each in conditions if f"'{BUILT_IN[0]}'" in each]
    for index, annotation in enumerate(spec.fraction_annotations):
        key = annotation.key
        if key not in BUILT_IN and not all(f"'{key}'" in each for each in on_annotations):
            yield f"spec.fractionAnnotations[{index}].key", key
