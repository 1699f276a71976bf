"""The model that a pod declares: read whole, and measured against what the pod asks for."""

import pytest

from policies.models.attention import Attention
from policies.models.estimate import ModelPhase, ModelShape, Precision
from policies.models.memory import ModelNeed, advice, model_need, model_shape
from policies.pods.annotations import BadAnnotation
from tests.builders import CLASSES, JSON, RESOURCE_MAPPING, gpu_class, gpu_container, pod, view

PREFIX = "gpu-admission.dev/model-"


def declaring(*containers: JSON, **annotations: str) -> JSON:
    return pod(*containers, annotations={PREFIX + key: value for key, value in annotations.items()})


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(pod(gpu_container()), None, id="nothing"),
        pytest.param(declaring(gpu_container(), batch="8"), None, id="no-params"),
        pytest.param(
            declaring(gpu_container(), params="7b"),
            ModelShape(
                params=7 * 10**9,
                precision=Precision.BF16,
                phase=ModelPhase.SERVING,
                batch=1,
                sequence=512,
                attention=None,
                checkpointing=False,
            ),
            id="defaults",
        ),
        pytest.param(
            declaring(
                gpu_container(),
                params="350M",
                precision="fp32",
                phase="training",
                batch="16",
                sequence="512",
                checkpointing="True",
            ),
            ModelShape(
                params=350 * 10**6,
                precision=Precision.FP32,
                phase=ModelPhase.TRAINING,
                batch=16,
                sequence=512,
                checkpointing=True,
            ),
            id="everything",
        ),
        pytest.param(
            declaring(gpu_container(), params="8b", layers="32", **{"kv-heads": "8", "head-size": "128"}),
            ModelShape(params=8 * 10**9, attention=Attention(layers=32, kv_heads=8, head_size=128)),
            id="attention",
        ),
        pytest.param(
            declaring(gpu_container(), family="DeepSeek-R1"),
            ModelShape(
                params=671 * 10**9,
                precision=Precision.FP8,
                attention=Attention(layers=61, kv_heads=1, head_size=288),
            ),
            id="family-with-its-precision",
        ),
        pytest.param(
            declaring(gpu_container(), family="llama-3.1-8b", precision="int4", params="8b"),
            ModelShape(
                params=8 * 10**9,
                precision=Precision.INT4,
                attention=Attention(layers=32, kv_heads=8, head_size=128),
            ),
            id="annotations-before-the-family",
        ),
    ],
)
def test_shape(document: JSON, want: ModelShape | None) -> None:
    assert model_shape(view(document)) == want


def test_everything_that_is_wrong_is_told_at_once() -> None:
    document = declaring(
        gpu_container(),
        params="seventy",
        precision="fp12",
        phase="dreaming",
        batch="0",
        sequence="long",
        checkpointing="1",
    )

    assert model_shape(view(document)) == (
        BadAnnotation(
            PREFIX + "params",
            "seventy",
            'must be a number of parameters such as 70b, 350M or 1.3e9, not "seventy"',
            f'set for example {PREFIX}params: "70b"',
        ),
        BadAnnotation(
            PREFIX + "precision",
            "fp12",
            'must be one of fp32, tf32, fp16, bf16, fp8, int8, fp4, int4, not "fp12"',
            f'set for example {PREFIX}precision: "bf16"',
        ),
        BadAnnotation(
            PREFIX + "phase",
            "dreaming",
            'must be training or serving, not "dreaming"',
            f'set for example {PREFIX}phase: "serving"',
        ),
        BadAnnotation(
            PREFIX + "batch",
            "0",
            'must be a batch size, a whole number from 1 to 1000000000, not "0"',
            f'set for example {PREFIX}batch: "8"',
        ),
        BadAnnotation(
            PREFIX + "sequence",
            "long",
            'must be a sequence length, a whole number from 1 to 1000000000, not "long"',
            f'set for example {PREFIX}sequence: "4096"',
        ),
        BadAnnotation(
            PREFIX + "checkpointing",
            "1",
            'must be true or false, not "1"',
            f'set for example {PREFIX}checkpointing: "true"',
        ),
    )


@pytest.mark.parametrize(
    ("document", "words", "fits"),
    [
        # 7e9 * 2 bytes of weights, a quarter of KV cache, times 1.2: 21e9 bytes
        pytest.param(
            declaring(gpu_container(), params="7b"),
            "7b bf16 serving needs 19.6 GiB by rule of thumb",
            ["amd-mi300x", "nvidia-a100-40gb", "nvidia-a100-80gb"],
            id="one-gpu",
        ),
        pytest.param(
            declaring(gpu_container("2"), params="7b"),
            "7b bf16 serving needs 19.6 GiB over 2 GPUs = 9.8 GiB each by rule of thumb",
            ["amd-mi300x", "nvidia-a100-40gb", "nvidia-a100-80gb", "nvidia-t4"],
            id="two-gpus-share-it",
        ),
        pytest.param(
            declaring(gpu_container("1", "a"), gpu_container("1", "b"), params="7b"),
            "7b bf16 serving needs 19.6 GiB over 2 GPUs = 9.8 GiB each by rule of thumb",
            ["amd-mi300x", "nvidia-a100-40gb", "nvidia-a100-80gb", "nvidia-t4"],
            id="gpus-of-the-whole-pod",
        ),
        pytest.param(
            declaring(gpu_container(resource="nvidia.com/mig-3g.40gb"), params="7b"),
            "7b bf16 serving needs 19.6 GiB by rule of thumb",
            ["nvidia-a100-80gb"],
            id="slice",
        ),
        pytest.param(
            declaring(gpu_container("7", resource="nvidia.com/mig-1g.10gb"), params="7b"),
            "7b bf16 serving needs 19.6 GiB by rule of thumb",
            [],
            id="slices-cannot-work-together",
        ),
    ],
)
def test_need(document: JSON, words: str, fits: list[str]) -> None:
    need = model_need(view(document), RESOURCE_MAPPING)

    assert isinstance(need, ModelNeed)
    assert need.words == words
    assert [gpu_class.name for gpu_class in CLASSES if need.fits(gpu_class, CLASSES)] == fits


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(pod(gpu_container()), id="no-model"),
        pytest.param(declaring(gpu_container(resource="nvidia.com/gpu.shared"), params="7b"), id="share"),
        pytest.param(declaring(gpu_container(resource="aws.amazon.com/neuroncore"), params="7b"), id="core"),
        pytest.param(
            declaring(
                gpu_container(), gpu_container(name="b", resource="nvidia.com/mig-1g.10gb"), params="7b"
            ),
            id="two-kinds",
        ),
        pytest.param(
            declaring(gpu_container(resource="deviceclass.resource.kubernetes.io/gpu"), params="7b"),
            id="device-class",
        ),
        pytest.param(declaring(gpu_container("some"), params="7b"), id="amount-that-is-no-quantity"),
        pytest.param(declaring(params="7b"), id="no-gpu"),
    ],
)
def test_need_that_nobody_can_tell(document: JSON) -> None:
    assert model_need(view(document), RESOURCE_MAPPING) is None


@pytest.mark.parametrize(
    ("params", "sizes", "want"),
    [
        pytest.param("70b", (16,), "", id="more-than-eight"),
        pytest.param("70b", (40, 80), "request 5 × 40 GB or 3 × 80 GB", id="each-size"),
        pytest.param("70b", (80, 94, 96), "request 3 × 80 GB", id="smallest-of-those-that-take-as-many"),
        pytest.param(
            "70b",
            (40, 48, 80, 141, 192),
            "request 5 × 40 GB or 3 × 80 GB or 2 × 141 GB",
            id="no-more-than-three-and-the-fewest-cards",
        ),
    ],
)
def test_advice(params: str, sizes: tuple[int, ...], want: str) -> None:
    need = model_need(view(declaring(gpu_container(), params=params)), RESOURCE_MAPPING)

    assert isinstance(need, ModelNeed)
    assert advice(need, [gpu_class(f"of-{size}", "some", size) for size in sizes]) == want
