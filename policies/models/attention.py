"""The size of a model's KV cache for each token, from its attention or its `config.json`."""

from typing import Any

import msgspec

LARGEST_COUNT = 10**9
"""Bound of every number that is read here and in `policies.models.estimate`. It keeps the arithmetic short."""


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
    latent = _number(config, ("kv_lora_rank",))
    if latent is not None:
        # Half of the cached numbers, because Attention counts keys and values (`families` explains latent attention).
        kept = latent + (_number(config, ("qk_rope_head_dim",)) or 0)
        return Attention(layers=layers, kv_heads=1, head_size=-(-kept // 2))
    heads = _needed(config, _HEADS)
    # In Falcon's first models, this flag means that all heads share one key and value.
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
    """Return the first of these fields that the config has, or None. Raises EstimateError."""
    name = next((each for each in names if config.get(each) is not None), None)
    if name is None:
        return None
    value = config[name]
    if type(value) is not int or not 1 <= value <= LARGEST_COUNT:
        raise EstimateError(f"must have a whole number from 1 to {LARGEST_COUNT} as {name}")
    return value
