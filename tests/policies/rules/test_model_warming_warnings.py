"""model-warming: a warning where it can be known in advance that the model will not come."""

import pytest

from policies.finding import Severity
from tests.builders import JSON, gpu_container, pod
from tests.cases import cases
from tests.policies.rules.test_model_warming import CLAIM, LLAMA, URI, options, run

HUB_TOKEN = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
SECRET = {"envFrom": [{"secretRef": {"name": "hub"}}]}


@cases(
    "spec",
    {"os": {"os": {"name": "windows"}}, "node-selector": {"nodeSelector": {"kubernetes.io/os": "windows"}}},
)
def test_a_windows_pod_gets_no_linux_container(spec: JSON) -> None:
    document = pod(gpu_container(resource="microsoft.com/directx"), annotations=LLAMA, **spec)

    after, (finding,) = run(document)

    assert after == document
    assert finding.severity is Severity.WARNING
    assert finding.sentence() == (
        'metadata.annotations[gpu-admission.dev/model-uri] = "s3://models/llama": fetch the model in a container '
        "of your own; has no effect on a Windows pod: the fetcher is a Linux image [model-warming]"
    )


def gated(model: str) -> str:
    return (
        f'metadata.annotations[gpu-admission.dev/model-uri] = "hf://{model}": set HF_TOKEN of the container '
        "from a Secret; should have a token: this model is gated, so fetching it fails, and the pod stays in "
        "Init [model-warming]"
    )


@pytest.mark.parametrize(
    "model",
    [
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Llama-2-7b-hf@main",
        "google/gemma-2b",
        "google/gemma-2-9b-it",
        "google/gemma-3n-E2B",
        "google/codegemma-1.1-2b",
    ],
)
def test_a_gated_model_without_a_token_is_warned_of(model: str) -> None:
    _, findings = run(pod(gpu_container(), annotations={URI: f"hf://{model}"}))

    assert [(each.severity, each.sentence()) for each in findings] == [(Severity.WARNING, gated(model))]


@cases(
    ("model", "server", "source"),
    {
        "open-model": ("Qwen/Qwen3-8B", {}, {}),
        "open-model-of-the-same-owner": ("google/flan-t5-base", {}, {}),
        "owner-of-a-similar-name": ("meta-llama-3/copy", {}, {}),
        "token-of-the-server": ("meta-llama/Llama-3.1-8B", {"env": [HUB_TOKEN]}, {}),
        "secret-of-the-server-may-have-it": ("meta-llama/Llama-3.1-8B", SECRET, {}),
        "secret-of-the-policy": ("meta-llama/Llama-3.1-8B", {}, {"credentialsSecret": "hub"}),
        "variable-of-the-policy": ("meta-llama/Llama-3.1-8B", {}, {"env": {"HF_TOKEN": "x"}}),
        "mirror-of-one-s-own": ("meta-llama/Llama-3.1-8B", {}, {"endpoint": "https://hub.example.com"}),
        "image-of-one-s-own": ("meta-llama/Llama-3.1-8B", {}, {"image": "fetcher:with-token"}),
    },
)
def test_a_model_that_may_be_fetched_is_not_warned_of(model: str, server: JSON, source: JSON) -> None:
    document = pod(gpu_container(**server), annotations={URI: f"hf://{model}"})

    _, findings = run(document, options(sources={"hf": source}))

    assert findings == []


def test_a_gated_model_that_a_claim_may_hold_already_is_not_warned_of() -> None:
    annotations = {URI: "hf://meta-llama/Llama-3.1-8B", CLAIM: "models"}

    _, findings = run(pod(gpu_container(), annotations=annotations, securityContext={"fsGroup": 1000}))

    assert findings == []
