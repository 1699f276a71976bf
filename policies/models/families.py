"""Published models by name: their parameters, attention, and the precision of their checkpoints."""

import difflib
from collections.abc import Mapping

from policies.models.attention import Attention
from policies.models.estimate import ModelShape, Precision, invalid

_LONGEST_NAME = 63


def _family(
    billions: float, layers: int, kv_heads: int, head_size: int, precision: Precision = Precision.BF16
) -> ModelShape:
    attention = Attention(layers=layers, kv_heads=kv_heads, head_size=head_size)
    return ModelShape(params=round(billions * 10**9), attention=attention, precision=precision)


# Latent attention caches one vector per layer for keys and values together: kv_lora_rank 512 + qk_rope_head_dim 64.
_LATENT = (1, (512 + 64) // 2)

FAMILIES: Mapping[str, ModelShape] = {
    "deepseek-r1": _family(671, 61, *_LATENT, Precision.FP8),
    "deepseek-v3": _family(671, 61, *_LATENT, Precision.FP8),
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
    found = FAMILIES.get(word)
    if found is None:
        near = difflib.get_close_matches(word[:_LONGEST_NAME], FAMILIES, n=3) or sorted(FAMILIES)[::7]
        raise invalid(f"a built-in family such as {', '.join(near)} (others: model-params)", text)
    return found
