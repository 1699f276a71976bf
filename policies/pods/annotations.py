"""The annotations that users may set on a pod, and those that the webhook writes. An annotation cannot switch off a rule."""

import msgspec

from policies.finding import Edit, Edits, Finding, Reason
from policies.pods.field_paths import annotation_path

INVALID_ANNOTATION = Reason("InvalidAnnotation", "an annotation has an invalid value")
INEFFECTIVE_ANNOTATION = Reason("IneffectiveAnnotation", "an annotation has no effect")

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
MAX_RUNTIME = DOMAIN + "max-runtime"
MODELS = frozenset({MODEL_FAMILY, MODEL_PARAMS})
"""The annotations that declare a model."""

CANARY = DOMAIN + "canary"
"""Only on dry runs: the webhook adds CANARY_ANSWER. The rules do the same as without it."""
CANARY_ANSWER = DOMAIN + "canary-answer"
"""Written by the webhook. A canary is never stored."""

DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DISRUPTION_ANNOTATIONS = (DO_NOT_DISRUPT, SAFE_TO_EVICT)
"""Annotations of others that a rule adds: Karpenter and the cluster autoscaler read them."""

INJECTED = DOMAIN + "injected"
"""Written by the webhook for people to read. `policies.pods.injected` reads it on updates. No creation depends on it."""


class BadAnnotation(msgspec.Struct, frozen=True):
    """An annotation with an invalid value. The rule that needs the value reports it."""

    key: str
    value: str
    message: str
    remedy: str
    example: str | None = None
    """A value that would be right, if only the author knows which."""
    choices: tuple[Edits, ...] = ()

    def finding(self) -> Finding:
        return Finding(
            reason=INVALID_ANNOTATION,
            path=annotation_path(self.key),
            value=self.value,
            message=self.message,
            remedy=self.remedy,
            choices=self.choices
            or (((Edit(annotation_path(self.key), self.example),),) if self.example else ()),
            is_example=self.example is not None,
        )


def whole_number(key: str, text: str, unit: str, *, maximum: int) -> int | BadAnnotation:
    """Return the annotation's value as a whole number from 1 to `maximum`."""
    digits = text.strip()
    # int() accepts unicode digits, `1_0`, and thousands of digits.
    is_short_number = digits.isascii() and digits.isdigit() and len(digits) <= len(str(10**12))
    if is_short_number and 1 <= int(digits) <= maximum:
        return int(digits)
    message = f"must be a whole number of {unit} from 1 to {maximum}"
    return BadAnnotation(key, text, message, f'set for example {key}: "60" ({unit})', example="60")
