"""gpu-toleration: GPU pods, and only GPU pods, may land on tainted GPU nodes."""

from typing import Any

import pytest

from policies.pods.patch import PodPatch
from policies.pods.pod import Toleration
from policies.rules.gpu_toleration import NVIDIA_GPU, GPUTolerationOptions, mutate
from tests.builders import JSON, apply, container, context, gpu_container, pod, view

GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
TEAM = {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}
T4 = {"key": "accelerator", "operator": "Equal", "value": "t4", "effect": "NoSchedule"}
DEDICATED = {"key": "dedicated", "value": "ml-workloads", "effect": "NoSchedule"}
DEFAULTS = GPUTolerationOptions()
SEED = GPUTolerationOptions(
    tolerations=(NVIDIA_GPU, Toleration(key="dedicated", value="ml-workloads", effect="NoSchedule")),
)


def run(document: JSON, options: GPUTolerationOptions = DEFAULTS) -> JSON:
    patch = PodPatch(view(document))
    assert list(mutate(patch, options, context())) == []
    return apply(document, patch)


def gpu_pod(**spec: Any) -> JSON:
    return pod(gpu_container(), **spec)


@pytest.mark.parametrize(
    ("document", "options", "want"),
    [
        pytest.param(gpu_pod(), DEFAULTS, [GPU], id="gpu-container"),
        pytest.param(
            pod(container(), initContainers=[gpu_container(name="warm")]),
            DEFAULTS,
            [GPU],
            id="gpu-init-container",
        ),
        pytest.param(pod(annotations={"gpu-fraction": "0.5"}), DEFAULTS, [GPU], id="fraction-annotation"),
        pytest.param(
            pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]),
            DEFAULTS,
            [GPU],
            id="claim-of-the-pod",
        ),
        pytest.param(pod(), DEFAULTS, None, id="no-gpu"),
        pytest.param(pod(gpu_container("0")), DEFAULTS, None, id="zero-gpus-is-no-gpu"),
        pytest.param(gpu_pod(tolerations=None), DEFAULTS, [GPU], id="list-is-null"),
        pytest.param(gpu_pod(tolerations=[TEAM]), DEFAULTS, [TEAM, GPU], id="keeps-existing"),
        pytest.param(gpu_pod(tolerations=[GPU]), DEFAULTS, [GPU], id="tolerated-already"),
        pytest.param(
            gpu_pod(tolerations=[{"operator": "Exists"}]),
            DEFAULTS,
            [{"operator": "Exists"}],
            id="tolerates-all",
        ),
        pytest.param(gpu_pod(), SEED, [GPU, DEDICATED], id="all-of-the-policy"),
        pytest.param(gpu_pod(tolerations=[DEDICATED]), SEED, [DEDICATED, GPU], id="only-what-is-missing"),
        pytest.param(
            gpu_pod(nodeSelector={"accelerator": "nvidia-t4"}),
            DEFAULTS,
            [GPU, T4],
            id="class-to-which-the-pod-is-pinned",
        ),
        pytest.param(
            gpu_pod(nodeSelector={"accelerator": "nvidia-a100"}),
            DEFAULTS,
            [GPU],
            id="other-classes-have-other-taints",
        ),
        pytest.param(gpu_pod(), GPUTolerationOptions(tolerations=()), None, id="policy-without-any"),
    ],
)
def test_tolerations(document: JSON, options: GPUTolerationOptions, want: list[JSON] | None) -> None:
    once = run(document, options)

    assert once["spec"].get("tolerations") == want
    assert run(once, options) == once  # reinvocation changes nothing


@pytest.mark.parametrize(
    ("toleration", "want"),
    [
        pytest.param(NVIDIA_GPU, [], id="built-in"),
        pytest.param(
            Toleration(operator="Exists"),
            [
                (
                    "tolerations[0].key",
                    "is required: a toleration without a key tolerates every taint",
                )
            ],
            id="no-key",
        ),
        pytest.param(
            Toleration(key="a", operator="In", effect="Never", toleration_seconds=3),
            [
                ("tolerations[0].operator", 'must be Exists or Equal, not "In"'),
                (
                    "tolerations[0].effect",
                    'must be one of NoSchedule, PreferNoSchedule, NoExecute, not "Never"',
                ),
                ("tolerations[0].tolerationSeconds", "is allowed only with effect NoExecute"),
            ],
            id="all-at-once",
        ),
        pytest.param(
            Toleration(key="a", operator="Exists", value="x"),
            [("tolerations[0].value", "must be empty when operator is Exists")],
            id="exists-with-a-value",
        ),
        pytest.param(
            Toleration(key="gpu nodes", value="a b"),
            [
                ("tolerations[0].key", 'must be a taint key, not "gpu nodes"'),
                ("tolerations[0].value", 'must be a taint value, not "a b"'),
            ],
            id="what-no-taint-can-be",
        ),
        pytest.param(
            Toleration(value="x", operator="Exists"),
            [
                (
                    "tolerations[0].key",
                    "is required: a toleration without a key tolerates every taint",
                ),
                ("tolerations[0].value", "must be empty when operator is Exists"),
            ],
            id="no-key-and-more",
        ),
    ],
)
def test_problems(toleration: Toleration, want: list[tuple[str, str]]) -> None:
    assert list(GPUTolerationOptions(tolerations=(toleration,)).problems()) == want
