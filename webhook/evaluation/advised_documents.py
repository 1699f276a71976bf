"""Findings about ResourceQuotas and LimitRanges: quota keys that limit nothing, and GPUs that a LimitRange gives."""

from collections.abc import Callable
from itertools import islice

import msgspec

from policies.finding import Finding
from policies.gpus import limit_range_findings
from policies.gpus.invalid_limit_ranges import invalid_amounts
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.limit_ranges import decode_limit_range
from policies.pods.quantity import QuantityText
from policies.quota.spec import charged_waiting_findings, resource_quota_findings
from webhook.cluster.objects import fields_of
from webhook.evaluation.kinds import LIMIT_RANGE

MAX_KEYS = 1_000
"""Keys of a ResourceQuota that are read."""
_AMOUNT: msgspec.json.Decoder[QuantityText] = msgspec.json.Decoder(QuantityText)


def document_findings(
    group_kind: tuple[str, str],
    document: bytes | msgspec.Raw,
    mapping: ResourceMapping,
    has_line: Callable[[], bool],
) -> list[Finding]:
    """Return the findings about an object. Empty if it cannot be read: the API server rejects it.

    `has_line`: whether pods that exceed the quota of the namespace wait in line.
    """
    try:
        if group_kind == LIMIT_RANGE:
            limit_range = decode_limit_range(document)
            invalid = [*invalid_amounts(limit_range, mapping)]
            return invalid or [*limit_range_findings.limit_range_warnings(limit_range, mapping)]
        fields = islice(fields_of(document, "spec", "hard").items(), MAX_KEYS)
        hard = {key: _AMOUNT.decode(amount) for key, amount in fields}
    except msgspec.ValidationError:
        return []
    charged = charged_waiting_findings(hard, mapping) if has_line() else ()
    return [*resource_quota_findings(hard, mapping), *charged]
