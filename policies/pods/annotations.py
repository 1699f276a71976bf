"""The annotations a user may set on a pod, read once into typed values.

None of them can switch a rule off; they only ask for help. An invalid value is a `BadAnnotation`, which the rule
that needs the value turns into its finding.
"""

import msgspec

from policies.finding import Finding
from policies.pods.field_paths import annotation_path

DOMAIN = "gpu-admission.dev/"
GPU_CLASS = DOMAIN + "gpu-class"
CUDA = DOMAIN + "cuda"
MODEL_FAMILY = DOMAIN + "model-family"
MODEL_PARAMS = DOMAIN + "model-params"
MODEL_PRECISION = DOMAIN + "model-precision"
MODEL_PHASE = DOMAIN + "model-phase"
MODEL_BATCH = DOMAIN + "model-batch"
MODEL_SEQUENCE = DOMAIN + "model-sequence"
MODEL_CHECKPOINTING = DOMAIN + "model-checkpointing"
MODEL_LAYERS = DOMAIN + "model-layers"
MODEL_KV_HEADS = DOMAIN + "model-kv-heads"
MODEL_HEAD_SIZE = DOMAIN + "model-head-size"
MODEL_URI = DOMAIN + "model-uri"
MODEL_PATH = DOMAIN + "model-path"
MODEL_CACHE_CLAIM = DOMAIN + "model-cache-claim"
MODEL_LOAD_SECONDS = DOMAIN + "model-load-seconds"
SPOT = DOMAIN + "spot"

CANARY = DOMAIN + "canary"
"""On a dry run: the webhook adds a trace of its own. It changes nothing of what the rules do."""
CANARY_ANSWER = DOMAIN + "canary-answer"
"""Written by us onto a canary, which is never stored."""

INJECTED = DOMAIN + "injected"
"""Written by us for people to read. Updates may get back what it names (`policies.pods.restore`); no creation depends on it."""


class BadAnnotation(msgspec.Struct, frozen=True):
    """An annotation whose value cannot be used."""

    key: str
    value: str
    message: str
    remedy: str

    def finding(self, rule_id: str) -> Finding:
        """Return the denial by the rule that needs the value."""
        path = annotation_path(self.key)
        return Finding(rule=rule_id, path=path, value=self.value, message=self.message, remedy=self.remedy)


def whole_number(key: str, text: str, unit: str, *, maximum: int) -> int | BadAnnotation:
    """Return the annotation's value as a whole number from 1 to `maximum`."""
    digits = text.strip()
    # ASCII only and few of them: int() would take unicode digits, `1_0`, and thousands of digits.
    if digits.isascii() and digits.isdigit() and len(digits) <= 12 and 1 <= int(digits) <= maximum:  # noqa: PLR2004 - see above
        return int(digits)
    message = f"must be a whole number of {unit} from 1 to {maximum}"
    return BadAnnotation(key, text, message, f'set for example {key}: "60" ({unit})')
