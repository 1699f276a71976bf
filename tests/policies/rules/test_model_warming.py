"""model-warming: the model is there before the server starts, and the pod stays what it was."""

from typing import Any

import msgspec
import pytest

from policies.finding import Finding, Severity
from policies.gpus.resource_mapping import ResourceMapping
from policies.models.warming import SCHEMES, fetch_script
from policies.models.warming.options import Options
from policies.pods.patch import PodPatch
from policies.rule import RuleOptions
from policies.rules.model_warming import RULE
from tests.builders import JSON, apply, container, context, gpu_container, operations, pod, view

URI = "gpu-admission.dev/model-uri"
PATH = "gpu-admission.dev/model-path"
CLAIM = "gpu-admission.dev/model-cache-claim"
LLAMA = {URI: "s3://models/llama"}
FETCHER = "gpu-admission-fetch-model"
SIDECAR = container("istio-proxy", restartPolicy="Always")
SIZED = {"cpu": "8", "memory": "64Gi"}


def options(**fields: Any) -> Options:
    return msgspec.convert(fields, Options)


def run(document: JSON, settings: Options | None = None) -> tuple[JSON, list[Finding]]:
    """Return the pod as the rule leaves it and what the rule says; a second pass must add and say the same or nothing."""
    settings = settings or Options()
    patch = PodPatch(view(document))
    findings = list(RULE.mutate(patch, settings, context()) if RULE.mutate else ())
    after = apply(document, patch)
    again = PodPatch(view(after))
    assert list(RULE.mutate(again, settings, context()) if RULE.mutate else ()) == findings
    assert again.changes == []
    return after, findings


def fetcher(document: JSON) -> JSON:
    found: list[JSON] = [one for one in document["spec"]["initContainers"] if one["name"] == FETCHER]
    assert len(found) == 1
    return found[0]


def env(document: JSON) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in fetcher(document)["env"]}


def test_a_server_gets_its_model_before_it_starts() -> None:
    after, findings = run(pod(gpu_container(), annotations=LLAMA))

    directory = env(after)["MODEL_DESTINATION"].rpartition("/")[2]
    assert findings == []
    assert after["spec"]["volumes"] == [{"name": "gpu-admission-model", "emptyDir": {"sizeLimit": "200Gi"}}]
    assert after["spec"]["containers"][0]["volumeMounts"] == [
        {
            "name": "gpu-admission-model",
            "mountPath": "/model-cache",
            "subPath": directory,
            "readOnly": True,
        }
    ]
    assert fetcher(after) == {
        "name": FETCHER,
        "image": "docker.io/kserve/storage-initializer:v0.20.0",
        "command": ["python3", "-I", "-c", fetch_script("s3")],
        "env": [
            {"name": "MODEL_SOURCE", "value": "s3://models/llama"},
            {"name": "MODEL_DESTINATION", "value": f"/gpu-admission/models/{directory}"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
            {"name": "MODEL_CACHE_LIMIT", "value": str(200 * 2**30)},
        ],
        "volumeMounts": [{"name": "gpu-admission-model", "mountPath": "/gpu-admission/models"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def test_nothing_happens_without_a_model_uri() -> None:
    document = pod(gpu_container(), annotations={PATH: "no path", CLAIM: "No Claim"})

    assert run(document) == (document, [])


@pytest.mark.parametrize(
    ("containers", "want"),
    [
        pytest.param(
            [gpu_container(name="a"), gpu_container(name="b")], ["a", "b"], id="every-gpu-container"
        ),
        pytest.param(
            [container("proxy"), gpu_container(name="server")], ["server"], id="only-gpu-containers"
        ),
        pytest.param([container("server"), container("proxy")], ["server"], id="the-first-without-gpu"),
    ],
)
def test_who_gets_the_model(containers: list[JSON], want: list[str]) -> None:
    after, _ = run(pod(*containers, annotations=LLAMA))

    assert [one["name"] for one in after["spec"]["containers"] if "volumeMounts" in one] == want


def test_a_gpu_of_a_sidecar_does_not_make_it_the_server() -> None:
    sidecar = gpu_container(name="warm", restartPolicy="Always")

    after, _ = run(pod(container("server"), annotations=LLAMA, initContainers=[sidecar]))

    assert after["spec"]["initContainers"][0] == sidecar
    assert after["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/model-cache"


@pytest.mark.parametrize(
    ("existing", "want"),
    [
        pytest.param([], [FETCHER], id="none"),
        pytest.param([container("convert")], [FETCHER, "convert"], id="before-what-may-need-the-model"),
        pytest.param([SIDECAR], ["istio-proxy", FETCHER], id="after-the-mesh"),
        pytest.param(
            [container("migrate"), SIDECAR, container("convert")],
            ["migrate", "istio-proxy", FETCHER, "convert"],
            id="right-after-the-last-sidecar",
        ),
    ],
)
def test_where_the_init_container_stands(existing: list[JSON], want: list[str]) -> None:
    after, _ = run(pod(gpu_container(), annotations=LLAMA, initContainers=existing))

    assert [one["name"] for one in after["spec"]["initContainers"]] == want


def test_the_init_container_asks_for_no_gpu() -> None:
    document = pod(gpu_container(resources={"limits": {"nvidia.com/gpu": "1", **SIZED}}), annotations=LLAMA)
    after, _ = run(document)
    resource_mapping: ResourceMapping = context().resource_mapping

    asks = [
        place.container.name
        for place in view(after).places
        if resource_mapping.container_asks(place.container)
    ]
    assert asks == ["main"]


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(
            pod(gpu_container(resources={"limits": {"nvidia.com/gpu": "1", **SIZED}}), annotations=LLAMA),
            {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}},
            id="guaranteed-stays-guaranteed",
        ),
        pytest.param(
            pod(gpu_container(resources={"requests": {"cpu": "1"}}), annotations=LLAMA),
            {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}},
            id="burstable-stays-burstable",
        ),
        pytest.param(pod(gpu_container(), annotations=LLAMA), None, id="best-effort-stays-best-effort"),
        pytest.param(
            pod(gpu_container(resources={"requests": {"cpu": "0", "memory": 0}}), annotations=LLAMA),
            None,
            id="zero-is-nothing",
        ),
        pytest.param(
            pod(gpu_container(), annotations=LLAMA, resources={"limits": SIZED}),
            None,
            id="the-pod-as-a-whole",
        ),
        pytest.param(
            pod(
                gpu_container(),
                annotations=LLAMA,
                initContainers=[container("i", resources={"limits": SIZED})],
            ),
            {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}},
            id="an-init-container-counts",
        ),
    ],
)
def test_the_qos_class_stays(document: JSON, want: JSON | None) -> None:
    after, _ = run(document)

    assert fetcher(after).get("resources") == want


@pytest.mark.parametrize(
    ("security_context", "setting", "want"),
    [
        pytest.param(None, 65532, 65532, id="nothing-said"),
        pytest.param({"fsGroup": 2000}, 65532, 65532, id="only-a-group"),
        pytest.param({"runAsUser": 1234}, 65532, None, id="the-pods-user-is-inherited"),
        pytest.param({"runAsUser": 0}, 65532, 65532, id="but-not-root"),
        pytest.param(None, None, None, id="left-to-the-platform"),
    ],
)
def test_as_whom_it_runs(security_context: JSON | None, setting: int | None, want: int | None) -> None:
    spec = {"securityContext": security_context} if security_context else {}

    after, _ = run(pod(gpu_container(), annotations=LLAMA, **spec), options(runAsUser=setting))

    assert fetcher(after)["securityContext"].get("runAsUser") == want
    assert after["spec"].get("securityContext") == security_context


def test_an_existing_claim_is_the_cache_and_the_model_has_a_folder_of_its_own() -> None:
    document = pod(
        gpu_container(),
        annotations={**LLAMA, CLAIM: "models", PATH: "/models/llama"},
        securityContext={"fsGroup": 2000},
    )
    after, findings = run(document)

    mount = after["spec"]["containers"][0]["volumeMounts"][0]
    assert findings == []
    assert after["spec"]["volumes"] == [
        {"name": "gpu-admission-model", "persistentVolumeClaim": {"claimName": "models"}}
    ]
    assert (mount["mountPath"], mount["readOnly"]) == ("/models/llama", True)
    assert env(after)["MODEL_DESTINATION"] == f"/gpu-admission/models/{mount['subPath']}"
    assert "MODEL_CACHE_LIMIT" not in env(after)

    other, _ = run(pod(gpu_container(), annotations={URI: "s3://models/mistral", CLAIM: "models"}))
    assert other["spec"]["containers"][0]["volumeMounts"][0]["subPath"] != mount["subPath"]


def test_a_claim_without_a_group_may_not_be_writable() -> None:
    _, findings = run(pod(gpu_container(), annotations={**LLAMA, CLAIM: "models"}))

    assert [(finding.severity, finding.sentence()) for finding in findings] == [
        (
            Severity.WARNING,
            "spec.securityContext.fsGroup: is not set, and claim models is written by a user who is not root; "
            "set it, unless everyone may write to the claim [model-warming]",
        )
    ]


@pytest.mark.parametrize(
    ("uri", "source", "image", "added"),
    [
        pytest.param(
            "s3://models/m",
            {"s3": {"credentialsSecret": "aws", "env": {"MODEL_PARALLEL": "8", "AWS_REGION": "eu-west-1"}}},
            "docker.io/kserve/storage-initializer:v0.20.0",
            {"envFrom": [{"secretRef": {"name": "aws"}}], "AWS_REGION": "eu-west-1", "MODEL_PARALLEL": "8"},
            id="s3",
        ),
        pytest.param(
            "hf://meta/llama@main",
            {"hf": {"image": "mirror.example/python:3", "credentialsSecret": "hub"}},
            "mirror.example/python:3",
            {"envFrom": [{"secretRef": {"name": "hub"}}]},
            id="hub-from-a-mirror",
        ),
        pytest.param(
            "https://host/m.bin",
            {"https": {"credentialsSecret": "web"}},
            "docker.io/library/python:3.12.12-slim-bookworm",
            {"envFrom": [{"secretRef": {"name": "web"}}]},
            id="https",
        ),
        pytest.param(
            "gs://models/m",
            {"gs": {"credentialsSecret": "google"}},
            "docker.io/kserve/storage-initializer:v0.20.0",
            {"GOOGLE_APPLICATION_CREDENTIALS": "/gpu-admission/credentials/key.json"},
            id="gs",
        ),
        pytest.param(
            "gs://models/m", {}, "docker.io/kserve/storage-initializer:v0.20.0", {}, id="workload-identity"
        ),
        pytest.param(
            "pvc://shared/llama",
            {},
            "docker.io/library/python:3.12.12-slim-bookworm",
            {"MODEL_CLAIM_MOUNT": "/gpu-admission/source"},
            id="claim",
        ),
    ],
)
def test_each_source_has_its_image_and_credentials(uri: str, source: JSON, image: str, added: JSON) -> None:
    after, _ = run(pod(gpu_container(), annotations={URI: uri}), options(sources=source))

    common = {"MODEL_SOURCE", "MODEL_DESTINATION", "NVIDIA_VISIBLE_DEVICES", "MODEL_CACHE_LIMIT"}
    found = {name: value for name, value in env(after).items() if name not in common}
    if "envFrom" in fetcher(after):
        found["envFrom"] = fetcher(after)["envFrom"]
    assert found == added
    assert fetcher(after)["image"] == image
    assert fetcher(after)["command"][-1] == fetch_script(uri.partition(":")[0])


@pytest.mark.parametrize(
    ("uri", "source", "volume"),
    [
        pytest.param(
            "gs://models/m",
            {"gs": {"credentialsSecret": "google"}},
            {"name": "gpu-admission-model-credentials", "secret": {"secretName": "google"}},
            id="key-file",
        ),
        pytest.param(
            "pvc://shared/llama",
            {},
            {
                "name": "gpu-admission-model-source",
                "persistentVolumeClaim": {"claimName": "shared", "readOnly": True},
            },
            id="claim",
        ),
    ],
)
def test_what_else_is_mounted_is_read_only_and_for_the_init_container_alone(
    uri: str, source: JSON, volume: JSON
) -> None:
    after, _ = run(pod(gpu_container(), annotations={URI: uri}), options(sources=source))

    assert after["spec"]["volumes"][1:] == [volume]
    assert fetcher(after)["volumeMounts"][1]["name"] == volume["name"]
    assert fetcher(after)["volumeMounts"][1]["readOnly"] is True
    assert len(after["spec"]["containers"][0]["volumeMounts"]) == 1


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        pytest.param(
            {URI: "ftp://host/m"},
            [
                'metadata.annotations[gpu-admission.dev/model-uri] = "ftp://host/m": is from no known source; write '
                "s3://bucket/prefix, gs://bucket/prefix, hf://owner/name, https://host/file or pvc://claim/path "
                "[model-warming]"
            ],
            id="unknown-source",
        ),
        pytest.param(
            {URI: "https://bob:hunter2@host/m?sig=hunter2"},
            [
                'metadata.annotations[gpu-admission.dev/model-uri] = "https://host/m": holds credentials, which '
                "everyone who may see the pod can read; put the credentials into a Secret and have the platform team "
                "name it as credentialsSecret of the source https in the policy [model-warming]"
            ],
            id="credentials",
        ),
        pytest.param(
            {URI: "s3://models/$(AWS_SECRET_ACCESS_KEY)", PATH: "models", CLAIM: "My Claim"},
            [
                'metadata.annotations[gpu-admission.dev/model-uri] = "s3://models/$(AWS_SECRET_ACCESS_KEY)": holds a '
                "space, a quote, $ or another character that no URI may hold; write such characters %-encoded in an "
                "https:// URI; rename the object otherwise [model-warming]",
                'metadata.annotations[gpu-admission.dev/model-path] = "models": is not an absolute path below /; '
                "write an absolute path such as /models/llama [model-warming]",
                'metadata.annotations[gpu-admission.dev/model-cache-claim] = "My Claim": is not the name of a '
                "PersistentVolumeClaim; name a claim of the pod's namespace [model-warming]",
            ],
            id="everything-at-once",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(annotations: dict[str, str], want: list[str]) -> None:
    document = pod(gpu_container(), annotations=annotations)

    after, findings = run(document)

    assert after == document
    assert [finding.sentence() for finding in findings] == want
    assert {finding.severity for finding in findings} == {Severity.DENIAL}


@pytest.mark.parametrize(
    "path", ["/", "", "relative", "/a/../b", "/proc/1", "/sys", "/dev/x", "/a:b", "/a\tb"]
)
def test_paths_that_cannot_be_mounted(path: str) -> None:
    _, findings = run(pod(gpu_container(), annotations={**LLAMA, PATH: path}))

    assert [finding.path for finding in findings] == [f"metadata.annotations[{PATH}]"]
    assert [where for where, _ in options(mountPath=path).problems()] == ["mountPath"]


MINE = {"name": "mine", "mountPath": "/model-cache/"}


@pytest.mark.parametrize(
    ("document", "path", "message"),
    [
        pytest.param(
            pod(
                gpu_container(volumeMounts=[MINE]),
                annotations=LLAMA,
                volumes=[{"name": "mine", "emptyDir": {}}],
            ),
            "spec.containers[0].volumeMounts[0].mountPath",
            "volume mine is mounted at /model-cache already",
            id="mount-path",
        ),
        pytest.param(
            pod(
                gpu_container(),
                annotations=LLAMA,
                volumes=[{"name": "gpu-admission-model", "hostPath": {"path": "/"}}],
            ),
            "spec.volumes",
            "the name gpu-admission-model is taken",
            id="volume-name",
        ),
        pytest.param(
            pod(
                gpu_container(),
                annotations={**LLAMA, CLAIM: "b"},
                volumes=[{"name": "gpu-admission-model", "persistentVolumeClaim": {"claimName": "a"}}],
            ),
            "spec.volumes",
            "the name gpu-admission-model is taken",
            id="another-claim",
        ),
        pytest.param(
            pod(gpu_container(name=FETCHER), annotations=LLAMA),
            "spec.containers[0].name",
            f"the name {FETCHER} is taken",
            id="container-name",
        ),
    ],
)
def test_what_is_taken_stays(document: JSON, path: str, message: str) -> None:
    after, findings = run(document)

    assert after == document
    assert [(finding.severity, finding.path) for finding in findings] == [(Severity.WARNING, path)]
    assert findings[0].message == f"{message}, so the model is not fetched in advance"


def test_an_init_container_by_our_name_is_kept() -> None:
    own = container(FETCHER, command=["fetch"])

    after, _ = run(pod(gpu_container(), annotations=LLAMA, initContainers=[own]))

    assert after["spec"]["initContainers"] == [own]
    assert after["spec"]["containers"][0]["volumeMounts"][0]["name"] == "gpu-admission-model"


def test_what_a_later_webhook_took_out_is_missed() -> None:
    after, _ = run(pod(gpu_container(), annotations=LLAMA))
    del after["spec"]["initContainers"], after["spec"]["containers"][0]["volumeMounts"]

    patch = PodPatch(view(after))
    list(RULE.mutate(patch, Options(), context()) if RULE.mutate else ())

    assert [change.what for change in patch.changes] == [
        f"initContainer {FETCHER}",
        "main: volumeMount /model-cache",
    ]


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        pytest.param({"mountPath": "models"}, ["mountPath"], id="relative-path"),
        pytest.param({"cacheSizeLimit": "many"}, ["cacheSizeLimit"], id="no-quantity"),
        pytest.param({"cacheSizeLimit": "0"}, ["cacheSizeLimit"], id="nothing-fits"),
        pytest.param(
            {"resources": {"cpu": "1m", "memory": "-1Gi"}},
            ["resources.cpu", "resources.memory"],
            id="resources",
        ),
        pytest.param({"runAsUser": 0}, ["runAsUser"], id="root"),
        pytest.param(
            {
                "sources": {
                    "s3": {
                        "image": "",
                        "credentialsSecret": "My Secret",
                        "env": {"MODEL_SOURCE": "x", "1": "y"},
                    }
                }
            },
            [
                "sources.s3.image",
                "sources.s3.credentialsSecret",
                "sources.s3.env[MODEL_SOURCE]",
                "sources.s3.env[1]",
            ],
            id="source",
        ),
        pytest.param(
            {"sources": {"gs": {"credentialsKey": "a/b"}}},
            ["sources.gs.credentialsKey"],
            id="key-of-the-secret",
        ),
        pytest.param(
            {"sources": {"pvc": {"credentialsSecret": "x"}}},
            ["sources.pvc.credentialsSecret"],
            id="claim-login",
        ),
        pytest.param({}, [], id="built-in"),
    ],
)
def test_options_are_checked_whole(fields: JSON, want: list[str]) -> None:
    assert [path for path, _ in options(**fields).problems()] == want


@pytest.mark.parametrize(
    "fields", [{"sources": {"ftp": {}}}, {"sources": {"s3": {"images": "x"}}}, {"mountpath": "/x"}]
)
def test_unknown_options_are_refused(fields: JSON) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        options(**fields)


def test_every_source_has_options_and_a_script() -> None:
    assert sorted(Options().sources.__struct_fields__) == sorted(SCHEMES)
    assert issubclass(Options, RuleOptions)


def test_the_patch_is_the_smallest() -> None:
    patch = PodPatch(
        view(pod(gpu_container(volumeMounts=[]), annotations=LLAMA, volumes=[], initContainers=[SIDECAR]))
    )
    list(RULE.mutate(patch, Options(), context()) if RULE.mutate else ())

    assert [operation["path"] for operation in operations(patch)] == [
        "/spec/volumes/-",
        "/spec/initContainers/-",
        "/spec/containers/0/volumeMounts/-",
    ]
