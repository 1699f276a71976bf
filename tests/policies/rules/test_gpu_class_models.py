"""gpu-class and a declared model: only weights that do not fit are a denial; what an estimate says is a warning."""

from typing import Any

from policies.finding import Severity
from policies.gpus.classes import GPUClasses
from policies.pods.patch import PodPatch
from policies.rules.gpu_class import GPUClassOptions, check, mutate
from tests.builders import CLASSES, JSON, RESOURCE_MAPPING, context, gpu_container, pod, view
from tests.cases import cases
from webhook.configuration.loader import load_directory

DOMAIN = "gpu-admission.dev/"
MODEL = DOMAIN + "model-"
PARAMS = f"metadata.annotations[{MODEL}params]"
BUILT_IN = load_directory(None).classes
T4_ONLY = GPUClassOptions(allowed=("nvidia-t4",))
ANY = GPUClassOptions()


def modelled(model: JSON, gpus: str = "1", resource: str = "nvidia.com/gpu", **tweaks: Any) -> JSON:
    """Return a GPU pod with these model annotations; `annotations` among the tweaks are added."""
    annotations = {MODEL + key: value for key, value in model.items()} | tweaks.pop("annotations", {})
    return pod(gpu_container(gpus, resource=resource), annotations=annotations, **tweaks)


def placed(
    document: JSON, options: GPUClassOptions, classes: GPUClasses = BUILT_IN
) -> tuple[list[str], list[tuple[Severity, str]]]:
    """Return what /mutate adds, and what /validate says of the pod with it."""
    known = context(classes=classes, resource_mapping=RESOURCE_MAPPING)
    patch = PodPatch(view(document))
    assert list(mutate(patch, options, known)) == []
    found = check(patch.pod, options, known)
    added = [change.what for change in patch.changes]
    return added, [(finding.severity, finding.sentence()) for finding in found]


@cases(
    ("document", "options", "classes", "want", "warned"),
    # 671e9 bytes in fp8, its own precision, and little cache: 625 GiB of 8 * 126.9 usable
    family_with_latent_attention=(
        modelled({"family": "deepseek-r1", "sequence": "131072"}, gpus="8"),
        GPUClassOptions(allowed=("nvidia-h*",)),
        BUILT_IN,
        "nodeSelector accelerator=nvidia-h100-94gb",
        0,
    ),
    every_class_that_holds_the_weights_where_the_rule_of_thumb_finds_none=(
        modelled({"params": "7b", "sequence": "131072"}),
        GPUClassOptions(allowed=("nvidia-a100",)),
        CLASSES,
        "node affinity accelerator In nvidia-a100-40gb,nvidia-a100-80gb",
        1,
    ),
)
def test_class(document: JSON, options: GPUClassOptions, classes: GPUClasses, want: str, warned: int) -> None:
    added, found = placed(document, options, classes)

    assert added == [want]
    assert [severity for severity, _ in found] == [Severity.WARNING] * warned


@cases(
    ("document", "options", "want"),
    more_gpus=(
        modelled({"params": "70b"}),
        ANY,
        f'{PARAMS} = "70b": request 8 GPUs of 40 GiB or 4 GPUs of 80 GiB; must fit on a class that the pod may use: the '
        "weights of 70b bf16 serving take 130.4 GiB",
    ),
    more_gpus_in_one_of_two_containers=(
        pod(gpu_container(name="a"), gpu_container(name="b"), annotations={MODEL + "params": "34b"}),
        T4_ONLY,
        f'{PARAMS} = "34b": must fit on a class that the pod may use: the weights of 34b bf16 serving take '
        "63.4 GiB over 2 GPUs = 31.7 GiB each; 8 GPUs of 16 GiB would do; ask the platform team for larger cards",
    ),
    more_gpus_of_what_is_allowed=(
        modelled({"params": "13b"}),
        T4_ONLY,
        f'{PARAMS} = "13b": request 4 GPUs of 16 GiB; must fit on a class that the pod may use: the weights of '
        "13b bf16 serving take 24.3 GiB",
    ),
    too_large_for_any_node=(
        modelled({"params": "1t"}, gpus="8", resource="amd.com/gpu"),
        ANY,
        f'{PARAMS} = "1t": must fit on a class that the pod may use: the weights of 1t bf16 serving take '
        "1862.7 GiB over 8 GPUs = 232.9 GiB each; ask the platform team for larger cards",
    ),
    a_larger_slice=(
        modelled({"params": "7b"}, resource="nvidia.com/mig-1g.10gb"),
        ANY,
        f'{PARAMS} = "7b": request a slice 1g.20gb or 1 GPU of 80 GiB; must fit on a class that the pod may '
        "use: the weights of 7b bf16 serving take 13.1 GiB",
    ),
)
def test_weights_that_do_not_fit_are_denied(document: JSON, options: GPUClassOptions, want: str) -> None:
    assert placed(document, options, CLASSES) == ([], [(Severity.DENIAL, want)])


@cases(
    ("document", "options", "want"),
    rule_of_thumb_on_what_is_allowed=(
        modelled({"params": "7b"}),
        T4_ONLY,
        f'{PARAMS} = "7b": request 2 GPUs of 16 GiB; should fit on nvidia-t4 (16.0 GiB usable): 7b bf16 serving '
        "needs 19.6 GiB by rule of thumb; gpu-admission.dev/model-family or gpu-admission.dev/model-layers states it exactly",
    ),
    rule_of_thumb_of_a_long_sequence=(
        modelled({"params": "70b", "sequence": "8192"}, gpus="2"),
        ANY,
        f'{PARAMS} = "70b": should fit on nvidia-a100-80gb (80.0 GiB usable): 70b bf16 serving needs 782.4 GiB over 2 GPUs '
        "= 391.2 GiB each by rule of thumb; gpu-admission.dev/model-family or gpu-admission.dev/model-layers states it "
        "exactly; ask the platform team for larger cards",
    ),
    pinned_to_what_is_too_small=(
        modelled({"params": "7b"}, nodeSelector={"accelerator": "nvidia-t4"}),
        ANY,
        f'{PARAMS} = "7b": request 2 GPUs of 16 GiB, or set nodeSelector accelerator: nvidia-a100-40gb or '
        f"nvidia-a100-80gb; should fit on nvidia-t4 (16.0 GiB usable): 7b bf16 serving "
        "needs 19.6 GiB by rule of thumb; gpu-admission.dev/model-family or gpu-admission.dev/model-layers states it exactly",
    ),
    pinned_by_two_containers=(
        pod(
            gpu_container(name="a"),
            gpu_container(name="b"),
            annotations={MODEL + "params": "34b"},
            nodeSelector={"accelerator": "nvidia-t4"},
        ),
        GPUClassOptions(allowed=("nvidia-t4", "nvidia-a100")),
        f'{PARAMS} = "34b": set nodeSelector accelerator: nvidia-a100-80gb; should fit on nvidia-t4 (16.0 GiB usable): '
        "the weights of 34b bf16 serving take 63.4 GiB over 2 GPUs = 31.7 GiB each; 8 GPUs of 16 GiB would do",
    ),
    requested_what_cannot_hold_the_weights=(
        modelled({"params": "70b"}, annotations={DOMAIN + "gpu-class": "nvidia-t4"}),
        ANY,
        f'{PARAMS} = "70b": set gpu-admission.dev/gpu-class: nvidia-a100-80gb and set nvidia.com/gpu: 4; should fit on '
        "nvidia-t4 (16.0 GiB usable): the weights of 70b bf16 serving take 130.4 GiB",
    ),
    known_cache_leaves_a_tenth_to_the_server=(
        modelled({"family": "llama-3.1-8b"}),
        T4_ONLY,
        f'metadata.annotations[{MODEL}family] = "llama-3.1-8b": request 2 GPUs of 16 GiB; should fit on '
        "nvidia-t4 (14.4 GiB usable): llama-3.1-8b bf16 serving needs 15.1 GiB",
    ),
)
def test_what_only_an_estimate_says_is_a_warning(document: JSON, options: GPUClassOptions, want: str) -> None:
    assert placed(document, options, CLASSES)[1] == [(Severity.WARNING, want)]


@cases(
    ("model", "want"),
    misspelt_family=(
        {"family": "lama-3.1-8b"},
        f'metadata.annotations[{MODEL}family] = "lama-3.1-8b": set for example {MODEL}family: '
        '"llama-3.1-8b"; must be a built-in family such as llama-3.1-8b, llama-3-8b, llama-3.1-70b '
        '(of others, state the number of parameters), not "lama-3.1-8b"',
    ),
    the_nearest_family_is_the_example=(
        {"family": "Llama-3.1-70B-Instruct"},
        f'metadata.annotations[{MODEL}family] = "Llama-3.1-70B-Instruct": set for example {MODEL}family: '
        '"llama-3.1-70b"; must be a built-in family such as llama-3.1-70b, llama-3.3-70b, llama-3.1-405b '
        '(of others, state the number of parameters), not "Llama-3.1-70B-Instruct"',
    ),
    a_number_without_its_unit=(
        {"params": "70"},
        f'{PARAMS} = "70": set for example {MODEL}params: "70b"; must be a number of parameters with its unit, '
        'such as 70b, not "70"',
    ),
    bits_of_a_precision=(
        {"params": "7b", "precision": "4bit"},
        f'metadata.annotations[{MODEL}precision] = "4bit": set {MODEL}precision: "int4"; must be one of '
        'fp32, tf32, fp16, bf16, fp8, int8, fp4, int4, not "4bit"',
    ),
    unknown_family=(
        {"family": "clip"},
        f'metadata.annotations[{MODEL}family] = "clip": set for example {MODEL}family: "llama-3.1-8b"; '
        "must be a built-in family such as deepseek-r1, llama-3.1-405b, mixtral-8x22b, qwen3-235b-a22b "
        '(of others, state the number of parameters), not "clip"',
    ),
)
def test_invalid_annotation(model: JSON, want: str) -> None:
    assert placed(modelled(model), ANY, CLASSES) == ([], [(Severity.DENIAL, want)])
