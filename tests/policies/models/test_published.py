"""The estimate against figures that others published or measured."""

import pytest
from msgspec.structs import replace

from policies.models.estimate import GIB, estimate
from policies.models.shapes import (
    FAMILIES,
    Attention,
    EstimateError,
    ModelShape,
    Precision,
    attention_of_config,
)
from tests.builders import JSON
from tests.cases import cases

GB = 10**9
OPT_13B = ModelShape(params=13 * GB, sequence=1, attention=Attention(layers=40, kv_heads=40, head_size=128))


def shape(family: str, tokens: int = 512, precision: Precision = Precision.BF16) -> ModelShape:
    return replace(FAMILIES[family], precision=precision, sequence=tokens)


@cases(
    ("model", "want"),
    {
        # "Llama 3.1 - 405B, 70B & 8B with multilinguality and long context" (Hugging Face), KV cache in FP16.
        "llama-3.1-8b-16k-tokens": (shape("llama-3.1-8b", 16_000), 1.95 * GIB),
        "llama-3.1-70b-128k-tokens": (shape("llama-3.1-70b", 128_000), 39.06 * GIB),
        # "Insights into DeepSeek-V3" (arXiv 2505.09343), table 1: KB of KV cache per token in BF16.
        "deepseek-v3-per-token": (shape("deepseek-v3", 1), 70_272),
        "qwen2.5-72b-per-token": (shape("qwen2.5-72b", 1), 327_680),
        "llama-3.1-405b-per-token": (shape("llama-3.1-405b", 1), 516_096),
        # "Efficient Memory Management for Large Language Model Serving with PagedAttention" (arXiv 2309.06180), section 3.
        "opt-13b-per-token": (OPT_13B, 800 * 1024),
        # vLLM issue 21348: 178,880 tokens in 8.11 GiB on each of four GPUs, with weights in FP8.
        "qwen3-235b-measured-by-vllm": (shape("qwen3-235b-a22b", 178_880, Precision.FP8), 4 * 8.11 * GIB),
    },
)
def test_kv_cache(model: ModelShape, want: float) -> None:
    assert estimate(model).kv_cache == pytest.approx(want, rel=0.015)


@cases(
    ("family", "precision", "want"),
    {
        # vLLM pull request 10511: "model weights take 14.96GiB".
        "llama-3-8b-measured-by-vllm": ("llama-3-8b", Precision.BF16, 14.96 * GIB),
        # The blog on Llama 3.1 as above: weights in FP16, FP8 and INT4.
        "llama-3.1-70b-fp16": ("llama-3.1-70b", Precision.FP16, 140 * GB),
        "llama-3.1-405b-fp8": ("llama-3.1-405b", Precision.FP8, 405 * GB),
        "llama-3.1-8b-int4": ("llama-3.1-8b", Precision.INT4, 4 * GB),
    },
)
def test_weights(family: str, precision: Precision, want: float) -> None:
    assert estimate(shape(family, precision=precision)).weights == pytest.approx(want, rel=0.01)


PER_TOKEN = {
    "deepseek-r1": (671, 68.625),
    "deepseek-v3": (671, 68.625),
    "llama-2-7b": (6.74, 512),
    "llama-2-13b": (13.02, 800),
    "llama-2-70b": (68.98, 320),
    "llama-3-8b": (8.03, 128),
    "llama-3-70b": (70.55, 320),
    "llama-3.1-8b": (8.03, 128),
    "llama-3.1-70b": (70.55, 320),
    "llama-3.1-405b": (405.85, 504),
    "llama-3.2-1b": (1.24, 32),
    "llama-3.2-3b": (3.21, 112),
    "llama-3.3-70b": (70.55, 320),
    "mistral-7b": (7.25, 128),
    "mixtral-8x7b": (46.7, 128),
    "mixtral-8x22b": (140.6, 224),
    "phi-4": (14.66, 200),
    "qwen2.5-7b": (7.62, 56),
    "qwen2.5-14b": (14.77, 192),
    "qwen2.5-32b": (32.76, 256),
    "qwen2.5-72b": (72.71, 320),
    "qwen3-8b": (8.19, 144),
    "qwen3-32b": (32.76, 256),
    "qwen3-235b-a22b": (235.09, 188),
}
"""Billions of parameters, and KiB of cache for a token in 16 bits: 2 (key, value) * layers * KV heads * head size * 2 bytes."""


def test_every_family_by_its_parameters_and_its_cache() -> None:
    caches = {name: estimate(shape(name, 1)).kv_cache / 1024 for name in FAMILIES}
    found = {name: (model.params / GB, caches[name]) for name, model in FAMILIES.items()}

    assert found == PER_TOKEN
    fp8 = {name for name, model in FAMILIES.items() if model.precision is not Precision.BF16}
    assert fp8 == {"deepseek-r1", "deepseek-v3"}


def test_default_of_the_rule_of_thumb_is_that_of_the_design() -> None:
    # Document 002: serving 7B in 16 bits takes 20 to 24 GB, by this very rule with 512 tokens.
    assert 20 * GB <= estimate(ModelShape(params=7 * GB)).total <= 24 * GB


def test_total_of_a_known_cache_is_what_the_server_loads_and_keeps() -> None:
    # 140e9 bytes = 130.4 GiB, and 2 * 80 * 8 * 128 * 2 bytes * 8192 tokens = 2.5 GiB; a rule of thumb says 782 GiB.
    needed = estimate(replace(FAMILIES["llama-3.1-70b"], params=70 * GB, sequence=8192))

    assert needed.total == pytest.approx(132.9 * GIB, rel=0.001)
    assert (needed.fits(80, 2), needed.fits(70, 2), needed.fits(64, 2)) == (True, False, False)
    assert needed.weights_fit(66, 2)


LLAMA: JSON = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}
FALCON = {"num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": True}
LATENT = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 128}
NO_COUNT = "must have a whole number from 1 to 1000000000 as"


@cases(
    ("config", "want"),
    llama=(LLAMA, (32, 8, 128)),
    head_size_of_its_own=({**LLAMA, "head_dim": 256}, (32, 8, 256)),
    without_grouped_queries=({**LLAMA, "num_key_value_heads": None}, (32, 32, 128)),
    multimodal=({"text_config": LLAMA, "vision_config": {}}, (32, 8, 128)),
    gpt_2=({"n_layer": 12, "n_head": 12, "n_embd": 768}, (12, 12, 64)),
    falcon_7b=(FALCON, (32, 1, 64)),
    latent_attention=(LATENT, (61, 1, 288)),
    one_of_each=({"n_layer": 1, "n_head": 1, "n_embd": 1}, (1, 1, 1)),
)
def test_config_json(config: JSON, want: tuple[int, int, int]) -> None:
    found = attention_of_config(config)

    assert (found.layers, found.kv_heads, found.head_size) == want


@cases(
    ("config", "want"),
    list=([], "must be a JSON object, the config.json of a model"),
    empty=({}, "must have num_hidden_layers"),
    no_heads=({"num_hidden_layers": 32}, "must have num_attention_heads"),
    flag=({**LLAMA, "num_hidden_layers": True}, f"{NO_COUNT} num_hidden_layers"),
    zero=({**LLAMA, "num_attention_heads": 0}, f"{NO_COUNT} num_attention_heads"),
)
def test_config_json_that_is_none(config: JSON, want: str) -> None:
    with pytest.raises(EstimateError, match=f"^{want}$"):
        attention_of_config(config)
