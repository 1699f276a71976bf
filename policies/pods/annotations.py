"""The annotations that users may set on a pod, and those that the webhook writes. An annotation cannot switch off a rule."""

import re
from fractions import Fraction
from math import ceil

import msgspec

from policies.finding import Edit, Edits, Finding, Reason, one_choice
from policies.pods.duration import meant_seconds
from policies.pods.field_paths import annotation_path

INVALID_ANNOTATION = Reason("InvalidAnnotation", "an annotation has an invalid value", hides_others=True)
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
RULE_BY_ANNOTATION = {
    CUDA: "cuda-version",
    SPOT: "spot",
    MAX_RUNTIME: "max-runtime",
    MODEL_LOAD_SECONDS: "readiness-delay",
    **dict.fromkeys((MODEL_URI, MODEL_PATH, MODEL_CACHE_CLAIM), "model-warming"),
}
"""The only rule that reads an annotation: it has no effect if that is off. Several rules read the others."""

CANARY = DOMAIN + "canary"
"""Only on dry runs: the webhook adds CANARY_ANSWER. The rules do the same as without it."""
CANARY_ANSWER = DOMAIN + "canary-answer"
"""Written by the webhook. A canary is never stored."""

DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DISRUPTION_ANNOTATIONS = (DO_NOT_DISRUPT, SAFE_TO_EVICT)
"""Annotations of others that a rule adds: Karpenter and the cluster autoscaler read them."""

INJECTED = DOMAIN + "injected"
"""Written by the webhook for people. `policies.pods.injected` reads it on updates. On a creation only words depend on it."""

SECONDS, MIB, BYTES = "seconds", "MiB", "bytes"
_UNIT_POWERS = {BYTES: 0, MIB: 2}
"""Units of memory, as powers of 1024."""
_PREFIXES = ("", "k", "m", "g", "t")
_AMOUNT = re.compile(r"([0-9]{1,13}(?:\.[0-9]{1,3})?)\s*(([kmgt]?)(?:i?b?|bytes?))", re.IGNORECASE)

BOOLEAN_WORDS = {
    **dict.fromkeys(("yes", "y", "on", "1"), "true"),
    **dict.fromkeys(("no", "n", "off", "0"), "false"),
}
"""What people write for true and false."""


class BadAnnotation(msgspec.Struct, frozen=True):
    """An annotation with an invalid value. The rule that needs the value reports it.

    meant: what its author probably means; "" if nobody can tell. remedy: what to write; "" if `meant` says it.
    """

    key: str
    value: str
    message: str
    remedy: str = ""
    meant: str = ""
    example: str = ""
    """A valid value, to show the form; only the author knows the intended one."""
    choices: tuple[Edits, ...] = ()

    def finding(self) -> Finding:
        path, written = annotation_path(self.key), self.meant or self.example
        return Finding(
            reason=INVALID_ANNOTATION,
            path=path,
            value=self.value,
            message=self.message,
            choices=self.choices or (one_choice(Edit(path, written)) if written else ()),
            is_example=not self.meant and bool(self.example),
            remedy=f'set {self.key}: "{self.meant}"' if self.meant else self.remedy,
        )


_MAX_DIGITS = 13
"""Of a number that is read."""


def parse_whole_number(key: str, text: str, unit: str, *, maximum: int) -> int | BadAnnotation:
    """Return the annotation's value as a whole number from 1 to `maximum`."""
    digits = text.strip()
    # int() accepts unicode digits, `1_0`, and thousands of digits.
    is_bounded_number = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS
    if is_bounded_number and 1 <= int(digits) <= maximum:
        return int(digits)
    message = f"must be a whole number of {unit} from 1 to {maximum}"
    meant = _meant_number(digits, unit)
    is_possible = meant and int(meant) <= maximum
    return BadAnnotation(
        key, text, message, f"write the number of {unit} alone", meant if is_possible else "", "60"
    )


def _meant_number(text: str, unit: str) -> str:
    """Return the number in this unit of an amount with another unit, such as 2Gi, 1.5 GB, 5m and 8hours; "" if there is none."""
    if unit == SECONDS:
        return str(meant_seconds(text) or "")
    match = _AMOUNT.fullmatch(text)
    if match is None or (match[2] and unit not in _UNIT_POWERS):
        return ""
    power = _PREFIXES.index(match[3].lower()) - _UNIT_POWERS[unit] if match[2] else 0
    return str(ceil(Fraction(match[1]) * Fraction(1024) ** power) or "")
