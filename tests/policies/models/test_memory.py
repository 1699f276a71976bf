"""The model that a pod declares: read whole, and measured against what the pod asks for."""

from policies.finding import Edit
from policies.models.memory import ModelNeed, enough_in_words, model_need, model_shape
from policies.models.shapes import Attention, ModelPhase, ModelShape, Precision
from policies.pods.annotations import BadAnnotation
from tests.builders import CLASSES, JSON, RESOURCE_MAPPING, gpu_class, gpu_container, pod, view
from tests.cases import cases

PREFIX = "gpu-admission.dev/model-"


def declaring(*containers: JSON, **annotations: str) -> JSON:
    return pod(*containers, annotations={PREFIX + key: value for key, value in annotations.items()})


def no_count(name: str, value: str, what: str, example: str) -> BadAnnotation:
    message = f'must be a {what}, a whole number from 1 to 1000000000, not "{value}"'
    return BadAnnotation(
        PREFIX + name, value, message, f'set for example {PREFIX}{name}: "{example}"', example=example
    )


LLAMA = Attention(layers=32, kv_heads=8, head_size=128)


@cases(
    ("annotations", "want"),
    nothing=({}, None),
    no_params=({"batch": "8"}, None),
    a_part_of_its_attention=(
        {"layers": "32"},
        (
            BadAnnotation(
                f"{PREFIX}layers",
                "32",
                f"must stand beside {PREFIX}kv-heads and {PREFIX}head-size",
                "set all three, or none",
                choices=(
                    (
                        Edit(f"metadata.annotations[{PREFIX}kv-heads]", "8"),
                        Edit(f"metadata.annotations[{PREFIX}head-size]", "128"),
                    ),
                    (Edit(f"metadata.annotations[{PREFIX}layers]"),),
                ),
            ),
        ),
    ),
    attention_that_is_no_number=(
        {"params": "8b", "layers": "many", "kv-heads": "0", "head-size": "-1"},
        (
            no_count("layers", "many", "number of layers", "32"),
            no_count("kv-heads", "0", "number of KV heads", "8"),
            no_count("head-size", "-1", "head size", "128"),
        ),
    ),
    defaults=({"params": "7b"}, ModelShape(params=7 * 10**9, sequence=512)),
    everything=(
        {
            "params": "350M",
            "precision": "fp32",
            "phase": "training",
            "batch": "16",
            "sequence": "1024",
            "checkpointing": "True",
        },
        ModelShape(
            params=350 * 10**6,
            precision=Precision.FP32,
            phase=ModelPhase.TRAINING,
            batch=16,
            sequence=1024,
            checkpointing=True,
        ),
    ),
    attention=(
        {"params": "8b", "layers": "32", "kv-heads": "8", "head-size": "128"},
        ModelShape(params=8 * 10**9, attention=LLAMA),
    ),
    family_with_its_precision=(
        {"family": "DeepSeek-R1"},
        ModelShape(
            params=671 * 10**9,
            precision=Precision.FP8,
            attention=Attention(layers=61, kv_heads=1, head_size=288),
        ),
    ),
    annotations_before_the_family=(
        {"family": "llama-3.1-8b", "precision": "int4", "params": "8b"},
        ModelShape(params=8 * 10**9, precision=Precision.INT4, attention=LLAMA),
    ),
)
def test_shape(annotations: dict[str, str], want: ModelShape | None) -> None:
    assert model_shape(view(declaring(gpu_container(), **annotations))) == want


INVALID = {
    "params": ("seventy", "a number of parameters such as 70b, 350M or 1.3e9", "70b"),
    "precision": ("fp12", "one of fp32, tf32, fp16, bf16, fp8, int8, fp4, int4", "bf16"),
    "phase": ("dreaming", "training or serving", "serving"),
    "batch": ("0", "a batch size, a whole number from 1 to 1000000000", "8"),
    "sequence": ("long", "a sequence length, a whole number from 1 to 1000000000", "4096"),
    "checkpointing": ("perhaps", "true or false", "true"),
}


def test_everything_that_is_wrong_is_told_at_once() -> None:
    document = declaring(gpu_container(), **{key: text for key, (text, _, _) in INVALID.items()})

    assert model_need(view(document), RESOURCE_MAPPING) == model_shape(view(document))
    assert model_shape(view(document)) == tuple(
        BadAnnotation(
            PREFIX + key,
            text,
            f'must be {wanted}, not "{text}"',
            f'set for example {PREFIX}{key}: "{example}"',
            example=example,
        )
        for key, (text, wanted, example) in INVALID.items()
    )


@cases(
    ("key", "text", "want"),
    precision=("precision", "FP-16", "fp16"),
    words=("precision", "b float 16", "bfloat16"),
    number_in_words=("params", "70 billion", "70b"),
    number_of_a_name=("params", "llama-70B", "70b"),
    thousands=("sequence", "4k", "4096"),
    with_a_unit=("batch", "8 requests", "8"),
    flag=("checkpointing", "on", "true"),
    negative=("batch", "-8", ""),
    none=("phase", "dreaming", ""),
)
def test_what_is_probably_meant(key: str, text: str, want: str) -> None:
    (bad,) = model_shape(view(declaring(gpu_container(), **{"params": "7b", key: text})))  # type: ignore[misc]
    assert bad.meant == want


# 7e9 * 2 bytes of weights, a quarter of KV cache, times 1.2: 21e9 bytes
ALONE = "7b bf16 serving needs 19.6 GiB by rule of thumb"
SHARED = "7b bf16 serving needs 19.6 GiB over 2 GPUs = 9.8 GiB each by rule of thumb"
LARGE = ["amd-mi300x", "nvidia-a100-40gb", "nvidia-a100-80gb"]


def sliced(profile: str, count: str = "1", name: str = "main") -> JSON:
    return gpu_container(count, name, resource=f"nvidia.com/mig-{profile}")


@cases(
    ("containers", "words", "fits", "hold_weights"),
    one_gpu=([gpu_container()], ALONE, LARGE, [*LARGE, "nvidia-t4"]),
    two_gpus_share_it=([gpu_container("2")], SHARED, [*LARGE, "nvidia-t4"], [*LARGE, "nvidia-t4"]),
    of_the_pod=(
        [gpu_container("1", "a"), gpu_container("1", "b")],
        SHARED,
        [*LARGE, "nvidia-t4"],
        [*LARGE, "nvidia-t4"],
    ),
    slice=([sliced("3g.40gb")], ALONE, ["nvidia-a100-80gb"], ["nvidia-a100-80gb"]),
    slices_cannot_work_together=([sliced("1g.10gb", "7")], ALONE, [], []),
)
def test_need(containers: list[JSON], words: str, fits: list[str], hold_weights: list[str]) -> None:
    need = model_need(view(declaring(*containers, params="7b")), RESOURCE_MAPPING)

    assert isinstance(need, ModelNeed)
    assert need.text == words
    assert [gpu_class.name for gpu_class in CLASSES if need.fits(gpu_class, CLASSES)] == fits
    assert [gpu_class.name for gpu_class in CLASSES if need.weights_fit(gpu_class, CLASSES)] == hold_weights


def test_weights_and_room_in_words() -> None:
    need = model_need(view(declaring(gpu_container("2"), params="7b")), RESOURCE_MAPPING)

    assert isinstance(need, ModelNeed)
    assert need.weights_text == "the weights of 7b bf16 serving take 13.1 GiB over 2 GPUs = 6.6 GiB each"
    assert need.usable_text(CLASSES.named({"nvidia-t4"})[0], CLASSES) == "16.0 GiB usable"


@cases(
    "containers",
    share=[gpu_container(resource="nvidia.com/gpu.shared")],
    core=[gpu_container(resource="aws.amazon.com/neuroncore")],
    two_kinds=[gpu_container(), sliced("1g.10gb", name="b")],
    device_class=[gpu_container(resource="deviceclass.resource.kubernetes.io/gpu")],
    amount_that_is_no_quantity=[gpu_container("some")],
    no_gpu=[],
)
def test_need_that_nobody_can_tell(containers: list[JSON]) -> None:
    assert model_need(view(declaring(*containers, params="7b")), RESOURCE_MAPPING) is None


@cases(
    ("params", "sizes", "want"),
    more_than_eight=("70b", (16,), ""),
    each_size=("70b", (40, 80), "8 GPUs of 40 GiB or 4 GPUs of 80 GiB"),
    smallest_of_those_that_take_as_many=("70b", (80, 94, 96), "4 GPUs of 80 GiB"),
    at_most_three=(
        "70b",
        (40, 48, 80, 141, 192),
        "8 GPUs of 40 GiB or 4 GPUs of 80 GiB or 2 GPUs of 141 GiB",
    ),
)
def test_advice(params: str, sizes: tuple[int, ...], want: str) -> None:
    need = model_need(view(declaring(gpu_container(), params=params)), RESOURCE_MAPPING)

    assert isinstance(need, ModelNeed)
    assert enough_in_words(need, [gpu_class(f"of-{size}", "some", size) for size in sizes]) == want


def test_a_larger_slice_is_advised_in_place_of_a_slice() -> None:
    need = model_need(view(declaring(sliced("1g.10gb"), params="7b")), RESOURCE_MAPPING)

    assert isinstance(need, ModelNeed)
    assert enough_in_words(need, CLASSES).startswith("a slice 3g.20gb or 2 ")
