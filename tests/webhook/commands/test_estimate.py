"""`gpu-admission estimate`: what people read, what programs read, and how bad input is answered."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cases import cases
from webhook.commands.estimate import estimate

B7 = ("--params", "7b")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(estimate, arguments)
    assert result.exit_code == code, result.output
    return result.output


def test_text_lists_memory_and_classes() -> None:
    lines = run("--params", "7b").splitlines()

    # 7e9 * 2 = 14e9 bytes; KV cache a quarter; 1.2 * 17.5e9 = 21e9 bytes = 19.6 GiB
    assert lines[:5] == [
        "7,000,000,000 parameters in bf16, serving",
        "  weights             13.1 GiB",
        "  KV cache             3.3 GiB",
        "  overhead             3.3 GiB",
        "  total               19.6 GiB",
    ]
    assert "  nvidia-l4             24 GiB" in lines
    assert "  nvidia-a100-40gb      40 GiB   a slice would do: fits 3g.20gb" in lines
    assert not any("nvidia-t4" in line for line in lines)
    assert lines[-2:] == [
        "A rule of thumb: too much for long sequences without --family or --config-json.",
        "Optimizer states and gradients are left out.",
    ]


def test_every_number_of_cards_is_suggested_once_with_the_smallest_size() -> None:
    lines = run("--params", "65b", "--sequence", "2048").splitlines()

    # 65e9 * 2 = 130e9 bytes, as much again of KV cache, 1.2 * 260e9 = 312e9 bytes = 290.6 GiB
    assert lines[6] == "No class holds 290.6 GiB per GPU; needs 8 × 40 GiB or 4 × 80 GiB or 2 × 180 GiB."


def test_an_amount_stays_on_one_line() -> None:
    assert run("--params", "200b") == (
        "200,000,000,000 parameters in bf16, serving\n"
        "  weights            372.6 GiB\n"
        "  KV cache            93.2 GiB\n"
        "  overhead            93.2 GiB\n"
        "  total              558.8 GiB\n"
        "\n"
        "No class holds 558.8 GiB per GPU; needs 8 × 80 GiB or 4 × 141 GiB or\n"
        "2 × 288 GiB.\n"
        "\n"
        "A rule of thumb: too much for long sequences without --family or --config-json.\n"
        "Optimizer states and gradients are left out.\n"
    )


def test_training_shows_activations_and_several_gpus_their_share() -> None:
    shown = run("--params", "1b", "--phase", "training", "--batch", "4", "--checkpointing", "--gpus", "2")

    assert shown.splitlines()[:9] == [
        "1,000,000,000 parameters in bf16, training",
        "  weights              1.9 GiB",
        "  KV cache             1.9 GiB",
        "  activations          1.8 GiB",
        "  overhead             1.2 GiB",
        "  total                6.7 GiB",
        "  per GPU              3.4 GiB   on 2 GPUs",
        "",
        "Fits on 2 of",
    ]


@cases(
    "arguments",
    needs_many=("--params", "1t", "--gpus", "4"),
    needs_several_of_many_sizes=("--params", "65b"),
    fits_with_slices=("--params", "70b", "--precision", "int4", "--gpus", "8"),
    absurd=("--params", "999t", "--batch", "1000000000", "--sequence", "1000000000"),
    help=("--help",),
)
def test_text_fits_80_columns(arguments: tuple[str, ...]) -> None:
    assert max(len(line) for line in run(*arguments).splitlines()) <= 80


def test_json_is_the_whole_answer() -> None:
    answer = json.loads(run("--params", "7b", "--sequence", "512", "--gpus", "2", "-o", "json"))
    assert answer["shape"]["params"] == 7_000_000_000
    assert answer["bytes"]["total"] == 21_000_000_000
    assert answer["placement"]["perGpu"] == 10_500_000_000
    assert answer["placement"]["fits"][0] == "nvidia-t4"
    assert {"className": "nvidia-a100-80gb", "profile": "1g.20gb"} in answer["placement"]["slices"]
    nvl = {"gpus": 1, "memoryGib": 94, "classNames": ["nvidia-h100-94gb", "nvidia-h800-94gb"]}
    assert nvl in answer["placement"]["cards"]
    assert answer["advice"].startswith("fits nvidia-t4 and ")


WHOLE_NUMBER = "a whole number from 1 to 1000000000"


@cases(
    ("arguments", "want"),
    no_params=((), "Missing option '--params' or '--family'."),
    family=(
        ("--family", "clip"),
        "Invalid value for '--family': must be a built-in family such as deepseek-r1, llama-3.1-405b, mixtral-8x22b, "
        'qwen3-235b-a22b (of others, state the number of parameters), not "clip".',
    ),
    params=(
        ("--params", "many"),
        "Invalid value for '--params': must be a number of parameters such as 70b, 350M or 1.3e9, not \"many\".",
    ),
    precision=(
        (*B7, "--precision", "fp64"),
        "Invalid value for '--precision': "
        'must be one of fp32, tf32, fp16, bf16, fp8, int8, fp4, int4, not "fp64".',
    ),
    phase=(
        (*B7, "--phase", "inference"),
        "Invalid value for '--phase': must be training or serving, not \"inference\".",
    ),
    gpus=(
        (*B7, "--gpus", "0"),
        f"Invalid value for '--gpus': must be a number of GPUs, {WHOLE_NUMBER}, not \"0\".",
    ),
    batch=(
        (*B7, "--batch", "x"),
        f"Invalid value for '--batch': must be a batch size, {WHOLE_NUMBER}, not \"x\".",
    ),
    sequence=(
        (*B7, "--sequence", "-1"),
        f"Invalid value for '--sequence': must be a sequence length, {WHOLE_NUMBER}, not \"-1\".",
    ),
)
def test_bad_input_is_answered_with_a_sentence(arguments: tuple[str, ...], want: str) -> None:
    assert run(*arguments, code=2).splitlines()[-1] == f"Error: {want}"


LLAMA = '{"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192}'
KNOWN_CACHE = [
    "70,000,000,000 parameters in bf16, serving",
    "  weights            130.4 GiB",
    "  KV cache             2.5 GiB",
    "  total              132.9 GiB",
]


@cases(
    "arguments",
    config_json=("--config-json", "config.json"),
    family_with_other_parameters=("--family", "llama-3.1-70b"),
)
def test_known_kv_cache(arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(LLAMA)

    lines = run("--params", "70b", "--sequence", "8192", *arguments).splitlines()
    assert lines[:4] == KNOWN_CACHE
    assert lines[-2] == "KV cache of 80 layers, 8 KV heads, head size 128; a tenth of each GPU is left free."


def test_family_alone_has_its_parameters_and_precision() -> None:
    answer = json.loads(run("--family", "deepseek-v3", "-o", "json"))

    assert (answer["shape"]["params"], answer["shape"]["precision"]) == (671_000_000_000, "fp8")
    assert (answer["bytes"]["overhead"], answer["bytes"]["knowsCache"]) == (0, True)


@cases(
    ("content", "want"),
    another_file=("{}", "config.json: must have num_hidden_layers."),
    broken=("{", "config.json: Input data was truncated."),
    deep=("[" * 100_000, "config.json: "),
    missing=(None, "'config.json': No such file or directory"),
)
def test_config_json_that_cannot_be_used(
    content: str | None, want: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("config.json").write_text(content)

    assert want in run("--params", "70b", "--config-json", "config.json", code=2)
