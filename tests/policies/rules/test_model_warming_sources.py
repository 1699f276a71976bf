"""model-warming: models of an MLflow registry, images as volumes, required digests, and URIs in a variable of the server."""

import pytest

from policies.finding import ContactEdit, Edit, Finding, Severity
from policies.placement.nodes import NodeFacts, NodeState, node_facts
from policies.pods.patch import PodPatch
from policies.rules.model_warming import ModelWarmingOptions, mutate
from tests.builders import JSON, apply, container, context, gpu_container, pod, view
from tests.cases import cases
from tests.policies.rules.warming import CLAIM, FETCHER, PATH, URI, destination, env, fetcher, options, run

SHA256 = "0123456789abcdef" * 4
MLFLOW = {"models": {"endpoint": "https://mlflow.example.com"}}
VOLUMES = options(sources={"oci": {"imageVolumes": True}})
IMAGE = "oci://ghcr.io/ml/chat:v1"
SERVER_TOKEN = {"name": "MLFLOW_TRACKING_TOKEN", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "t"}}}
FIELD = f"metadata.annotations[{URI}]"


def on_nodes(
    document: JSON, nodes: NodeFacts | None, settings: ModelWarmingOptions
) -> tuple[JSON, list[Finding]]:
    patch = PodPatch(view(document))
    findings = list(mutate(patch, settings, context(nodes=nodes)))
    return apply(document, patch), findings


def test_a_model_of_a_registry_is_fetched_from_the_server_of_the_policy() -> None:
    sources = {**MLFLOW, "s3": {"endpoint": "https://minio.example.com"}, "gs": {}}

    after, findings = run(
        pod(gpu_container(), annotations={URI: "models:/chat@champion"}), options(sources=sources)
    )

    assert findings == []
    assert fetcher(after)["args"] == [
        "models:/chat@champion",
        destination(after),
        "--endpoint=https://mlflow.example.com",
        "--artifact-endpoint=s3=https://minio.example.com",
        "--size-limit=200Gi",
    ]
    folder = after["spec"]["containers"][0]["volumeMounts"][0]["subPath"]
    assert folder.startswith("chat-champion-")
    assert destination(after) == f"/gpu-admission/models/{folder}"


@cases(
    ("server", "source", "want"),
    token=({"env": [SERVER_TOKEN]}, {}, [SERVER_TOKEN]),
    keys_of_the_artifacts=(
        {"env": [{"name": "AWS_SECRET_ACCESS_KEY", "value": "x"}, {"name": "AWS_REGION", "value": "eu-1"}]},
        {},
        [{"name": "AWS_SECRET_ACCESS_KEY", "value": "x"}, {"name": "AWS_REGION", "value": "eu-1"}],
    ),
    never_the_server=({"env": [{"name": "MLFLOW_TRACKING_URI", "value": "http://evil"}]}, {}, []),
    not_in_clear=({"env": [SERVER_TOKEN]}, {"endpoint": "http://mlflow:5000"}, []),
    not_beside_a_secret=({"env": [SERVER_TOKEN]}, {"credentialsSecret": "m"}, []),
)
def test_credentials_of_a_registry(server: JSON, source: JSON, want: list[JSON]) -> None:
    settings = options(sources={"models": {**MLFLOW["models"], **source}})

    after, _ = run(pod(gpu_container(**server), annotations={URI: "models:/chat/7"}), settings)

    assert [each for each in fetcher(after)["env"] if each["name"] != "NVIDIA_VISIBLE_DEVICES"] == want
    assert fetcher(after).get("envFrom") == (
        [{"secretRef": {"name": "m"}}] if "credentialsSecret" in source else None
    )


def test_without_a_server_of_the_policy_no_registry_is_asked() -> None:
    document = pod(gpu_container(), annotations={URI: "models:/chat/7"})

    after, (finding,) = run(document)

    assert after == document
    assert finding.severity is Severity.WARNING
    assert finding.sentence() == (
        f'{FIELD} = "models:/chat/7": has no effect: the policy names no MLflow server; ask the platform team to set '
        "endpoint of source models"
    )
    assert finding.contact_choices == (
        (ContactEdit("GPUPolicy", "spec.rules.model-warming.sources.models.endpoint"),),
    )


def test_a_stage_is_fetched_with_a_warning() -> None:
    after, (finding,) = run(
        pod(gpu_container(), annotations={URI: "models:/chat/Production"}), options(sources=MLFLOW)
    )

    assert fetcher(after)["args"][0] == "models:/chat/Production"
    assert (finding.severity, finding.reason.name, finding.is_example) == (
        Severity.WARNING,
        "ModelStage",
        True,
    )
    assert finding.choices == ((Edit(FIELD, "models:/chat@production"),),)
    assert finding.sentence() == (
        f'{FIELD} = "models:/chat/Production": write models:/chat/VERSION or models:/chat@ALIAS; should name a version '
        "or an alias: MLflow has deprecated stages since 2.9"
    )


def test_the_newest_version_is_no_stage() -> None:
    _, findings = run(pod(gpu_container(), annotations={URI: "models:/chat/latest"}), options(sources=MLFLOW))

    assert findings == []


def test_an_image_is_mounted_and_nothing_is_fetched() -> None:
    uri = f"{IMAGE}@sha256:{SHA256}"
    secrets = [{"name": "pull"}]

    after, findings = run(
        pod(gpu_container(), annotations={URI: uri, PATH: "/models/chat"}, imagePullSecrets=secrets), VOLUMES
    )

    assert findings == []
    assert after["spec"]["volumes"] == [
        {"name": "gpu-admission-model", "image": {"reference": f"ghcr.io/ml/chat:v1@sha256:{SHA256}"}}
    ]
    assert after["spec"]["containers"][0]["volumeMounts"] == [
        {"name": "gpu-admission-model", "mountPath": "/models/chat", "readOnly": True}
    ]
    assert "initContainers" not in after["spec"]
    assert after["spec"]["imagePullSecrets"] == secrets


NEW = NodeState(resources=frozenset({"nvidia.com/gpu"}), mounts_images=True)
OLD = NodeState(resources=frozenset({"nvidia.com/gpu"}))
MAY_NOT_MOUNT = (
    f'{FIELD} = "{IMAGE}": has no effect: not all nodes that can take the pod are known to mount images as volumes (kubelet '
    "1.36 with containerd 2.1 or CRI-O 1.31); ask the platform team to set imageVolumes: true of source oci if they do"
)


@cases(
    ("nodes", "want"),
    all_mount_images=(node_facts((), [((), NEW)]), []),
    one_does_not=(node_facts((), [((), NEW), ((), OLD)]), [MAY_NOT_MOUNT]),
    not_known=(None, [MAY_NOT_MOUNT]),
)
def test_an_image_needs_nodes_that_mount_it_or_the_word_of_the_policy(
    nodes: NodeFacts | None, want: list[str]
) -> None:
    document = pod(gpu_container(), annotations={URI: IMAGE})

    after, findings = on_nodes(document, nodes, ModelWarmingOptions())

    assert [finding.sentence() for finding in findings] == want
    assert ("volumes" in after["spec"]) == (not want)
    with_word, findings = on_nodes(document, nodes, VOLUMES)
    assert (findings, "volumes" in with_word["spec"]) == ([], True)


def test_the_word_of_the_policy_is_asked_for() -> None:
    _, (finding,) = run(pod(gpu_container(), annotations={URI: IMAGE}))

    assert finding.contact_choices == (
        (ContactEdit("GPUPolicy", "spec.rules.model-warming.sources.oci.imageVolumes", True),),
    )
    assert finding.severity is Severity.WARNING


def test_a_claim_holds_no_image() -> None:
    document = pod(gpu_container(), annotations={URI: IMAGE, CLAIM: "models"})

    after, (finding,) = run(document, VOLUMES)

    assert after["spec"]["volumes"][0]["image"] == {"reference": "ghcr.io/ml/chat:v1"}
    assert finding.choices == ((Edit(f"metadata.annotations[{CLAIM}]"),),)
    assert finding.sentence() == (
        f'metadata.annotations[{CLAIM}] = "models": remove {CLAIM}; has no effect: an image is mounted without a copy'
    )


def test_a_volume_of_another_image_is_taken() -> None:
    volumes = [{"name": "gpu-admission-model", "image": {"reference": "ghcr.io/ml/other:v1"}}]

    document = pod(gpu_container(), annotations={URI: IMAGE}, volumes=volumes)
    after, (finding,) = run(document, VOLUMES)

    assert after == document
    assert finding.message == "the name gpu-admission-model is taken, so the model is not fetched in advance"


def test_a_container_by_the_name_of_the_fetcher_may_mount_an_image() -> None:
    after, findings = run(pod(gpu_container(name=FETCHER), annotations={URI: IMAGE}), VOLUMES)

    assert findings == []
    assert after["spec"]["containers"][0]["volumeMounts"][0]["name"] == "gpu-admission-model"


def test_no_image_is_mounted_on_windows() -> None:
    document = pod(gpu_container(), annotations={URI: IMAGE}, os={"name": "windows"})

    after, (finding,) = run(document, VOLUMES)

    assert after == document
    assert finding.sentence() == (
        f'{FIELD} = "{IMAGE}": fetch the model in a container of your own; has no effect on a Windows pod: image volumes '
        "are Linux only"
    )


ADD = (
    "add {} and the 64 hexadecimal digits of the model; must end in a digest, which the policy requires of {}"
)


@cases(
    ("uri", "ending"),
    file=("https://host/m.bin", "#sha256="),
    version=("models:/chat/7", "#sha256="),
    alias=("models:/chat@champion", "#sha256="),
    image=(IMAGE, "@sha256:"),
)
def test_a_digest_is_required_where_the_policy_says_so(uri: str, ending: str) -> None:
    scheme = uri.partition(":")[0]
    strict = {
        "requireDigest": True,
        **({"imageVolumes": True} if scheme == "oci" else {}),
        **MLFLOW.get(scheme, {}),
    }
    settings = options(sources={scheme: strict})
    document = pod(gpu_container(), annotations={URI: uri})

    after, (finding,) = run(document, settings)

    assert after == document
    assert finding.severity is Severity.DENIAL
    assert finding.sentence() == f'{FIELD} = "{uri}": {ADD.format(ending, scheme)}'
    ((edit,),) = finding.choices
    assert (edit.path, finding.is_example) == (FIELD, True)
    assert run(pod(gpu_container(), annotations={URI: edit.value}), settings)[1] == []


def variable(value: str | None, name: str = "MODEL_URI") -> JSON:
    return (
        {"name": name, "value": value} if value is not None else {"name": name, "valueFrom": {"fieldRef": {}}}
    )


READS = options(uriVariable="MODEL_URI", sources={**MLFLOW, "https": {"requireDigest": True}})


@cases(
    ("env", "want"),
    uri=([variable("s3://models/llama")], "s3://models/llama"),
    version=([variable("x", "A"), variable("models:/chat/7")], "models:/chat/7"),
    path_of_the_server=([variable("/models/llama")], None),
    credentials=([variable("s3://key:secret@models/llama")], None),
    reference=([variable(None)], None),
    another_variable=([variable("s3://models/llama", "MODEL")], None),
)
def test_a_variable_of_the_server_may_have_the_uri(env: list[JSON], want: str | None) -> None:
    document = pod(container("proxy", env=[variable("s3://other/x")]), gpu_container(env=env))

    after, findings = run(document, READS)

    assert findings == []
    assert (fetcher(after)["args"][0] if "initContainers" in after["spec"] else None) == want
    assert run(document) == (document, []), "the built-in policy reads no variable"


def test_the_annotation_wins_over_the_variable() -> None:
    server = gpu_container(env=[variable("s3://models/llama")])

    after, _ = run(pod(server, annotations={URI: "hf://meta/llama"}), READS)

    assert fetcher(after)["args"][0] == "hf://meta/llama"
    assert "MODEL_URI" not in env(after)


def test_findings_name_the_variable() -> None:
    _, (finding,) = run(pod(gpu_container(env=[variable("https://host/m.bin")])), READS)

    assert (
        finding.sentence()
        == f'spec.containers[0].env[0].value = "https://host/m.bin": {ADD.format("#sha256=", "https")}'
    )
    assert finding.choices == ((Edit(finding.path, f"https://host/m.bin#sha256={'0' * 64}"),),)


@pytest.mark.parametrize("name", ["", "MODEL-URI"])
def test_a_variable_has_a_name(name: str) -> None:
    assert list(options(uriVariable=name).problems()) == [
        ("uriVariable", f'"{name}" is not a valid variable name')
    ]
