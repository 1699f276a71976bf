"""How much a model keeps in its KV cache for each token: by its attention, its family, or its `config.json`."""

from collections.abc import Mapping
from typing import Any

import msgspec

LARGEST_COUNT = 10**9
"""Bound of every number that is read here and in `policies.models.estimate`; it keeps the arithmetic short."""


class EstimateError(ValueError):
    """The description of a model is invalid; the message is a sentence that quotes it."""


class Attention(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the KV cache depends on. `kv_heads` are those that grouped-query attention leaves, `head_size` numbers each."""

    layers: int
    kv_heads: int
    head_size: int

    @property
    def cached_per_token(self) -> int:
        """Numbers kept for one token: a key and a value for each head of each layer."""
        return 2 * self.layers * self.kv_heads * self.head_size

    def __str__(self) -> str:
        heads = f"{self.kv_heads} KV head" + ("s" if self.kv_heads > 1 else "")
        return f"{self.layers} layers, {heads}, head size {self.head_size}"


class ModelFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A published model: parameters, attention, and the precision of its checkpoint, a value of `Precision`."""

    params: int
    attention: Attention
    precision: str = "bf16"


def _family(
    billions: float, layers: int, kv_heads: int, head_size: int, precision: str = "bf16"
) -> ModelFamily:
    attention = Attention(layers=layers, kv_heads=kv_heads, head_size=head_size)
    return ModelFamily(params=round(billions * 10**9), attention=attention, precision=precision)


# Latent attention keeps one vector per layer for keys and values together: kv_lora_rank 512 + qk_rope_head_dim 64.
_LATENT = (1, (512 + 64) // 2)

FAMILIES: Mapping[str, ModelFamily] = {
    "deepseek-r1": _family(671, 61, *_LATENT, "fp8"),
    "deepseek-v3": _family(671, 61, *_LATENT, "fp8"),
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
"""By name. Attention: `config.json` of each on Hugging Face; parameters and precision: its model card. Models whose checkpoint
has several precisions, such as gpt-oss, are left out."""

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
_HEAD_SIZE = ("head_dim", "kv_channels")
_HIDDEN = ("hidden_size", "n_embd", "d_model")


def attention_of_config(config: Any) -> Attention:
    """Return the attention that a `config.json` of Hugging Face's transformers describes. Raises EstimateError.

    The text model of a multimodal one counts. Layers with a sliding window or linear attention are counted in full.
    """
    if not isinstance(config, dict):
        raise EstimateError("must be a JSON object, the config.json of a model")
    text = config.get("text_config")
    if isinstance(text, dict):
        config = text
    layers = _needed(config, _LAYERS)
    latent = _number(config, ("kv_lora_rank",))
    if latent is not None:
        # Half of what is kept, for Attention counts keys and values; see _LATENT.
        kept = latent + (_number(config, ("qk_rope_head_dim",)) or 0)
        return Attention(layers=layers, kv_heads=1, head_size=-(-kept // 2))
    heads = _needed(config, _HEADS)
    # Falcon's first models say that all heads share one key and value by a flag alone.
    shared = 1 if config.get("multi_query") is True else heads
    return Attention(
        layers=layers,
        kv_heads=_number(config, _KV_HEADS) or shared,
        head_size=_number(config, _HEAD_SIZE) or -(-_needed(config, _HIDDEN) // heads),
    )


def _needed(config: dict[str, Any], names: tuple[str, ...]) -> int:
    found = _number(config, names)
    if found is None:
        raise EstimateError(f"must have {names[0]}")
    return found


def _number(config: dict[str, Any], names: tuple[str, ...]) -> int | None:
    """Return the first of these fields that is there, None where none is. Raises EstimateError."""
    name = next((each for each in names if config.get(each) is not None), None)
    if name is None:
        return None
    value = config[name]
    if type(value) is not int or not 1 <= value <= LARGEST_COUNT:
        raise EstimateError(f"must have a whole number from 1 to {LARGEST_COUNT} as {name}")
    return value
