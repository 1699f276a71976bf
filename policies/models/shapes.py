"""The shape of a transformer, and how it is written: in annotations, in a `config.json`, or as the name of a published model."""

import difflib
import re
from collections.abc import Mapping
from enum import Enum
from fractions import Fraction
from math import ceil
from string import ascii_lowercase
from typing import Any

import msgspec

LARGEST_COUNT = 10**9
"""Maximum of every number except the number of parameters. It keeps the arithmetic short."""
LEAST_PARAMS = 10**6
"""A smaller number without a unit is an error: 70 means 70b."""
LARGEST_PARAMS = 10**15
"""Far more than any model has."""

_PARAMS = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)(?:[eE]\+?([0-9]{1,2}))?\s*([kKmMbBtT]?)")
_PARAM_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_COUNT = re.compile(r"[0-9]{1,10}")
_LONGEST_NAME = 63
"""Characters of a family's name that are compared with the known names."""


class EstimateError(ValueError):
    """The description of a model is invalid. The message quotes it."""


class Attention(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The numbers that the KV cache depends on. With grouped-query attention, there are fewer KV heads than heads."""

    layers: int
    kv_heads: int
    head_size: int

    @property
    def cached_per_token(self) -> int:
        """Numbers of one token: a key and a value for each head of each layer."""
        return 2 * self.layers * self.kv_heads * self.head_size

    def __str__(self) -> str:
        heads = f"{self.kv_heads} KV head" + ("s" if self.kv_heads > 1 else "")
        return f"{self.layers} layers, {heads}, head size {self.head_size}"


class Precision(Enum):
    """The format in which parameters are stored."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    FP4 = "fp4"
    INT4 = "int4"

    @property
    def size(self) -> Fraction:
        """Bytes of one parameter. TF32 is stored as FP32."""
        return Fraction(int(self.value.lstrip(ascii_lowercase)), 8)  # every name ends with its number of bits


_ALIASES = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float8": "fp8"}


class ModelPhase(Enum):
    TRAINING = "training"
    SERVING = "serving"


class ModelShape(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The input of the estimate. All numbers are positive. `sequence` is in tokens."""

    params: int
    precision: Precision = Precision.BF16
    phase: ModelPhase = ModelPhase.SERVING
    batch: int = 1
    sequence: int = 512
    checkpointing: bool = False
    attention: Attention | None = None


_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
_HEAD_SIZE = ("head_dim", "kv_channels")
_HIDDEN = ("hidden_size", "n_embd", "d_model")


def attention_of_config(config: Any) -> Attention:
    """Return the attention in a `config.json` of Hugging Face's transformers. Raises EstimateError.

    Of a multimodal model, the text model counts. Layers with a sliding window or linear attention count in full.
    """
    if not isinstance(config, dict):
        raise EstimateError("must be a JSON object, the config.json of a model")
    text = config.get("text_config")
    if isinstance(text, dict):
        config = text
    layers = _needed(config, _LAYERS)
    rank = _number(config, ("kv_lora_rank",))
    if rank is not None:
        # Multi-head latent attention (MLA). Half of the cached numbers, because Attention counts a key and a value (see _MLA).
        cached = rank + (_number(config, ("qk_rope_head_dim",)) or 0)
        return Attention(layers=layers, kv_heads=1, head_size=-(-cached // 2))
    heads = _needed(config, _HEADS)
    # In Falcon's first models, this flag means that all heads share one key and value.
    shared = 1 if config.get("multi_query") is True else heads
    return Attention(
        layers=layers,
        kv_heads=_number(config, _KV_HEADS) or shared,
        head_size=_number(config, _HEAD_SIZE) or -(-_needed(config, _HIDDEN) // heads),
    )


def _needed(config: dict[str, Any], names: tuple[str, ...]) -> int:
    number = _number(config, names)
    if number is None:
        raise EstimateError(f"must have {names[0]}")
    return number


def _number(config: dict[str, Any], names: tuple[str, ...]) -> int | None:
    """Return the first of these fields that the config has, or None. Raises EstimateError."""
    name = next((name for name in names if config.get(name) is not None), None)
    if name is None:
        return None
    value = config[name]
    if type(value) is not int or not 1 <= value <= LARGEST_COUNT:
        raise EstimateError(f"must have a whole number from 1 to {LARGEST_COUNT} as {name}")
    return value


def parse_params(text: str) -> int:
    """Read a number of parameters: `70b`, `7B`, `350M`, `1.3e9`, `7000000000`. Raises EstimateError."""
    match = _PARAMS.fullmatch(text.strip())
    if match is None:
        raise invalid("a number of parameters such as 70b, 350M or 1.3e9", text)
    count: Fraction = Fraction(match[1]) * 10 ** int(match[2] or 0) * _PARAM_UNITS[match[3].lower()]
    if not 0 < count <= LARGEST_PARAMS:
        raise invalid(f"more than 0 and at most {LARGEST_PARAMS:.0e} parameters", text)
    if count < LEAST_PARAMS and not match[3]:
        raise invalid("a number of parameters with its unit, such as 70b", text)
    return ceil(count)


def parse_precision(text: str) -> Precision:
    """Read a precision: a value of `Precision`, or its name in PyTorch. Raises EstimateError."""
    word = text.strip().lower()
    try:
        return Precision(_ALIASES.get(word, word))
    except ValueError:
        known = ", ".join(precision.value for precision in Precision)
        raise invalid(f"one of {known}", text) from None


def parse_phase(text: str) -> ModelPhase:
    try:
        return ModelPhase(text.strip().lower())
    except ValueError:
        raise invalid("training or serving", text) from None


def parse_count(text: str, what: str) -> int:
    """Read a positive whole number. `what` names it in the error: "batch size". Raises EstimateError."""
    word = text.strip()
    if _COUNT.fullmatch(word) and 0 < int(word) <= LARGEST_COUNT:
        return int(word)
    raise invalid(f"a {what}, a whole number from 1 to {LARGEST_COUNT}", text)


def parse_flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise invalid("true or false", text)
    return word == "true"


def invalid(want: str, text: str) -> EstimateError:
    return EstimateError(f'must be {want}, not "{text[:40]}"')


def _family(
    billions: float, layers: int, kv_heads: int, head_size: int, precision: Precision = Precision.BF16
) -> ModelShape:
    attention = Attention(layers=layers, kv_heads=kv_heads, head_size=head_size)
    return ModelShape(params=round(billions * 10**9), attention=attention, precision=precision)


_MLA = (1, (512 + 64) // 2)
"""KV heads and head size of multi-head latent attention. It caches one vector per layer for keys and values together:
kv_lora_rank 512 + qk_rope_head_dim 64."""

FAMILIES: Mapping[str, ModelShape] = {
    "deepseek-r1": _family(671, 61, *_MLA, Precision.FP8),
    "deepseek-v3": _family(671, 61, *_MLA, Precision.FP8),
    "llama-2-7b": _family(6.74, 32, 32, 128),
    "llama-2-13b": _family(13.02, 40, 40, 128),
    "llama-2-70b": _family(68.98, 80, 8, 128),
    "llama-3-8b": _family(8.03, 32, 8, 128),
    "llama-3-70b": _family(70.55, 80, 8, 128),
    "llama-3.1-8b": _family(8.03, 32, 8, 128),
    "llama-3.1-70b": _family(70.55, 80, 8, 128),
    "llama-3.1-405b": _family(405.85, 126, 8, 128),
    "llama-3.2-1b": _family(1.24, 16, 8, 64),
    "llama-3.2-3b": _family(3.21, 28, 8, 128),
    "llama-3.3-70b": _family(70.55, 80, 8, 128),
    "mistral-7b": _family(7.25, 32, 8, 128),
    "mixtral-8x7b": _family(46.7, 32, 8, 128),
    "mixtral-8x22b": _family(140.6, 56, 8, 128),
    "phi-4": _family(14.66, 40, 10, 128),
    "qwen2.5-7b": _family(7.62, 28, 4, 128),
    "qwen2.5-14b": _family(14.77, 48, 8, 128),
    "qwen2.5-32b": _family(32.76, 64, 8, 128),
    "qwen2.5-72b": _family(72.71, 80, 8, 128),
    "qwen3-8b": _family(8.19, 36, 8, 128),
    "qwen3-32b": _family(32.76, 64, 8, 128),
    "qwen3-235b-a22b": _family(235.09, 94, 4, 128),
}
"""By name. Attention: `config.json` of each on Hugging Face. Parameters and precision: its model card. The table omits models
whose checkpoint has several precisions, such as gpt-oss."""


def parse_family(text: str) -> ModelShape:
    """Read the name of a family of models, such as llama-3.1-8b. Raises EstimateError."""
    word = text.strip().lower()
    shape = FAMILIES.get(word)
    if shape is None:
        some = sorted(FAMILIES)[::7]  # of several makers
        near = ", ".join(near_families(text) or some)
        raise invalid(f"a built-in family such as {near} (of others, state the number of parameters)", text)
    return shape


def near_families(text: str) -> list[str]:
    return difflib.get_close_matches(text.strip().lower()[:_LONGEST_NAME], FAMILIES, n=3)
