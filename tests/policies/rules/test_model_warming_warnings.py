"""model-warming: a warning where it can be known in advance that the model will not come."""

import pytest

from policies.finding import Severity
from tests.builders import JSON, gpu_container, pod
from tests.cases import cases
from tests.policies.rules.warming import CLAIM, FETCHER, LLAMA, PATH, URI, options, run

HUB_TOKEN = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
SECRET = {"envFrom": [{"secretRef": {"name": "hub"}}]}


@cases(
    "spec", os={"os": {"name": "windows"}}, node_selector={"nodeSelector": {"kubernetes.io/os": "windows"}}
)
def test_a_windows_pod_gets_no_linux_container(spec: JSON) -> None:
    document = pod(gpu_container(resource="microsoft.com/directx"), annotations=LLAMA, **spec)

    after, (finding,) = run(document)

    assert after == document
    assert finding.severity is Severity.WARNING
    assert finding.sentence() == (
        'metadata.annotations[gpu-admission.dev/model-uri] = "s3://models/llama": fetch the model in a container '
        "of your own; has no effect on a Windows pod: the fetcher is a Linux image"
    )


def gated(model: str) -> str:
    return (
        f'metadata.annotations[gpu-admission.dev/model-uri] = "hf://{model}": set HF_TOKEN of the container '
        "from a Secret; should have a token: this model is gated, so fetching it fails, and the pod stays in "
        "Init"
    )


GATED = """
meta-llama/Llama-3.1-8B-Instruct meta-llama/Llama-2-7b-hf@main
google/gemma-2b google/gemma-2-9b-it google/gemma-3n-E2B google/codegemma-1.1-2b
"""


@pytest.mark.parametrize("model", GATED.split())
def test_a_gated_model_without_a_token_is_warned_of(model: str) -> None:
    _, findings = run(pod(gpu_container(), annotations={URI: f"hf://{model}"}))

    assert [(each.severity, each.sentence()) for each in findings] == [(Severity.WARNING, gated(model))]


@cases(
    ("model", "server", "source"),
    open_model=("Qwen/Qwen3-8B", {}, {}),
    open_model_of_the_same_owner=("google/flan-t5-base", {}, {}),
    owner_of_a_similar_name=("meta-llama-3/copy", {}, {}),
    token_of_the_server=("meta-llama/Llama-3.1-8B", {"env": [HUB_TOKEN]}, {}),
    secret_of_the_server_may_have_it=("meta-llama/Llama-3.1-8B", SECRET, {}),
    secret_of_the_policy=("meta-llama/Llama-3.1-8B", {}, {"credentialsSecret": "hub"}),
    variable_of_the_policy=("meta-llama/Llama-3.1-8B", {}, {"env": {"HF_TOKEN": "x"}}),
    mirror_of_one_s_own=("meta-llama/Llama-3.1-8B", {}, {"endpoint": "https://hub.example.com"}),
    image_of_one_s_own=("meta-llama/Llama-3.1-8B", {}, {"image": "fetcher:with-token"}),
)
def test_a_model_that_may_be_fetched_is_not_warned_of(model: str, server: JSON, source: JSON) -> None:
    document = pod(gpu_container(**server), annotations={URI: f"hf://{model}"})

    _, findings = run(document, options(sources={"hf": source}))

    assert findings == []


def test_a_gated_model_that_a_claim_may_hold_already_is_not_warned_of() -> None:
    annotations = {URI: "hf://meta-llama/Llama-3.1-8B", CLAIM: "models"}

    _, findings = run(pod(gpu_container(), annotations=annotations, securityContext={"fsGroup": 1000}))

    assert findings == []


def test_all_that_cannot_be_used_is_refused_at_once() -> None:
    uri = "s3://models/$(AWS_SECRET_ACCESS_KEY)"
    document = pod(gpu_container(), annotations={URI: uri, PATH: "models", CLAIM: "My Claim"})

    after, findings = run(document)

    assert after == document
    assert [finding.sentence() for finding in findings] == [
        f'metadata.annotations[gpu-admission.dev/model-uri] = "{uri}": write such characters %-encoded in an https:// URI, '
        "or rename the object; holds a space, a quote, $ or another character that no URI may hold",
        'metadata.annotations[gpu-admission.dev/model-path] = "models": write an absolute path such as '
        "/models/llama; is not an absolute path below /",
        'metadata.annotations[gpu-admission.dev/model-cache-claim] = "My Claim": name a claim of the pod\'s '
        "namespace; is not the name of a PersistentVolumeClaim",
    ]
    assert {finding.severity for finding in findings} == {Severity.DENIAL}


ANOTHER_PATH = f"name another path in annotation {PATH}"


def mounting(annotations: dict[str, str]) -> JSON:
    mine = gpu_container(volumeMounts=[{"name": "mine", "mountPath": "/model-cache/"}])
    return pod(mine, annotations=annotations, volumes=[{"name": "mine", "emptyDir": {}}])


@cases(
    ("document", "path", "message", "remedy"),
    mount_path=(
        mounting(LLAMA),
        "spec.containers[0].volumeMounts[0].mountPath",
        "volume mine is mounted at /model-cache already",
        ANOTHER_PATH,
    ),
    mount_path_written_otherwise=(
        mounting({**LLAMA, PATH: "/.//model-cache"}),
        "spec.containers[0].volumeMounts[0].mountPath",
        "volume mine is mounted at /.//model-cache already",
        ANOTHER_PATH,
    ),
    volume_name=(
        pod(
            gpu_container(),
            annotations=LLAMA,
            volumes=[{"name": "gpu-admission-model", "hostPath": {"path": "/"}}],
        ),
        "spec.volumes",
        "the name gpu-admission-model is taken",
        "give that volume another name",
    ),
    another_claim=(
        pod(
            gpu_container(),
            annotations={**LLAMA, CLAIM: "b"},
            volumes=[{"name": "gpu-admission-model", "persistentVolumeClaim": {"claimName": "a"}}],
        ),
        "spec.volumes",
        "the name gpu-admission-model is taken",
        "give that volume another name",
    ),
    container_name=(
        pod(gpu_container(name=FETCHER), annotations=LLAMA),
        "spec.containers[0].name",
        f"the name {FETCHER} is taken",
        "give that container another name",
    ),
)
def test_what_is_taken_stays(document: JSON, path: str, message: str, remedy: str) -> None:
    after, findings = run(document)

    assert after == document
    assert [(finding.severity, finding.path) for finding in findings] == [(Severity.WARNING, path)]
    assert findings[0].message == f"{message}, so the model is not fetched in advance"
    assert findings[0].remedy == remedy
