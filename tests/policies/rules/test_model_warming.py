"""model-warming: the model is there before the server starts, and the pod stays what it was."""

import msgspec
import pytest

from policies.finding import Severity
from policies.models.warming.model_uri import SCHEMES
from policies.pods.patch import PodPatch
from policies.rule import RuleOptions
from policies.rules.model_warming import ModelWarmingOptions, mutate
from tests.builders import JSON, apply, container, context, gpu_container, pod, view
from tests.cases import cases
from tests.policies.rules.warming import CLAIM, FETCHER, LLAMA, PATH, URI, destination, fetcher, options, run

SIDECAR = container("istio-proxy", restartPolicy="Always")
SIZED = {"cpu": "8", "memory": "64Gi"}


def test_a_server_gets_its_model_before_it_starts() -> None:
    after, findings = run(pod(gpu_container(), annotations=LLAMA))

    directory = destination(after).rpartition("/")[2]
    assert findings == []
    assert after["spec"]["volumes"] == [{"name": "gpu-admission-model", "emptyDir": {"sizeLimit": "200Gi"}}]
    assert after["spec"]["containers"][0]["volumeMounts"] == [
        {"name": "gpu-admission-model", "mountPath": "/model-cache", "subPath": directory, "readOnly": True}
    ]
    assert fetcher(after) == {
        "name": FETCHER,
        "image": "gpu-admission-fetcher:0.1.0",
        "command": ["gpu-admission", "fetch-model"],
        "args": ["s3://models/llama", f"/gpu-admission/models/{directory}", "--size-limit=200Gi"],
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
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


@cases(
    ("containers", "want"),
    every_gpu_container=([gpu_container(name="a"), gpu_container(name="b")], ["a", "b"]),
    only_gpu_containers=([container("proxy"), gpu_container(name="server")], ["server"]),
    the_first_without_gpu=([container("server"), container("proxy")], ["server"]),
)
def test_who_gets_the_model(containers: list[JSON], want: list[str]) -> None:
    after, _ = run(pod(*containers, annotations=LLAMA))

    assert [one["name"] for one in after["spec"]["containers"] if "volumeMounts" in one] == want


def test_a_gpu_of_a_sidecar_does_not_make_it_the_server() -> None:
    sidecar = gpu_container(name="warm", restartPolicy="Always")

    after, _ = run(pod(container("server"), annotations=LLAMA, initContainers=[sidecar]))

    assert after["spec"]["initContainers"][0] == sidecar
    assert after["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/model-cache"


@cases(
    ("existing", "want"),
    none=([], [FETCHER]),
    before_what_may_need_the_model=([container("convert")], [FETCHER, "convert"]),
    after_the_mesh=([SIDECAR], ["istio-proxy", FETCHER]),
    right_after_the_last_sidecar=(
        [container("migrate"), SIDECAR, container("convert")],
        ["migrate", "istio-proxy", FETCHER, "convert"],
    ),
)
def test_where_the_init_container_stands(existing: list[JSON], want: list[str]) -> None:
    after, _ = run(pod(gpu_container(), annotations=LLAMA, initContainers=existing))

    assert [one["name"] for one in after["spec"]["initContainers"]] == want


SMALL = {"cpu": "1", "memory": "1Gi"}


@cases(
    ("resources", "of_pod", "is_small"),
    guaranteed_stays_guaranteed=({"limits": {"nvidia.com/gpu": "1", **SIZED}}, {}, True),
    burstable_stays_burstable=({"requests": {"cpu": "1"}}, {}, True),
    best_effort_stays_best_effort=({"limits": {"nvidia.com/gpu": "1"}}, {}, False),
    zero_is_nothing=({"requests": {"cpu": "0", "memory": 0}}, {}, False),
    the_pod_as_a_whole=({"limits": {"nvidia.com/gpu": "1"}}, {"resources": {"limits": SIZED}}, False),
    an_init_container_counts=(
        {"limits": {"nvidia.com/gpu": "1"}},
        {"initContainers": [container("i", resources={"limits": SIZED})]},
        True,
    ),
)
def test_the_qos_class_stays(resources: JSON, of_pod: JSON, is_small: bool) -> None:
    after, _ = run(pod(gpu_container(resources=resources), annotations=LLAMA, **of_pod))

    want = {"limits": SMALL, "requests": SMALL} if is_small else None
    assert fetcher(after).get("resources") == want


@cases(
    ("security_context", "setting", "want"),
    nothing_said=(None, 65532, 65532),
    only_a_group=({"fsGroup": 2000}, 65532, 65532),
    the_pods_user_is_inherited=({"runAsUser": 1234}, 65532, None),
    but_not_root=({"runAsUser": 0}, 65532, 65532),
    left_to_the_platform=(None, None, None),
)
def test_user_of_the_fetcher(security_context: JSON | None, setting: int | None, want: int | None) -> None:
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
    assert fetcher(after)["args"] == ["s3://models/llama", f"/gpu-admission/models/{mount['subPath']}"]

    other, _ = run(pod(gpu_container(), annotations={URI: "s3://models/mistral", CLAIM: "models"}))
    assert other["spec"]["containers"][0]["volumeMounts"][0]["subPath"] != mount["subPath"]


def test_a_claim_without_a_group_may_not_be_writable() -> None:
    _, findings = run(pod(gpu_container(), annotations={**LLAMA, CLAIM: "models"}))

    assert [(finding.severity, finding.sentence()) for finding in findings] == [
        (
            Severity.WARNING,
            "spec.securityContext.fsGroup: set it, unless everyone may write to the claim; is not set, and claim "
            "models is written by a user who is not root",
        )
    ]


@cases(
    ("source", "want"),
    of_the_installation=({}, "registry.example/fetcher:1"),
    of_the_policy=({"hf": {"image": "mirror.example/f:2"}}, "mirror.example/f:2"),
    of_another_source=({"s3": {"image": "mirror.example/f:2"}}, "registry.example/fetcher:1"),
)
def test_which_image_fetches(source: JSON, want: str) -> None:
    document = pod(gpu_container(), annotations={URI: "hf://meta/llama"})
    patch = PodPatch(view(document))

    list(mutate(patch, options(sources=source), context(fetcher_image="registry.example/fetcher:1")))

    assert fetcher(apply(document, patch))["image"] == want


def test_an_init_container_by_our_name_is_kept() -> None:
    own = container(FETCHER, command=["fetch"])

    after, _ = run(pod(gpu_container(), annotations=LLAMA, initContainers=[own]))

    assert after["spec"]["initContainers"] == [own]
    assert after["spec"]["containers"][0]["volumeMounts"][0]["name"] == "gpu-admission-model"


def test_what_a_later_webhook_took_out_is_missed() -> None:
    after, _ = run(pod(gpu_container(), annotations=LLAMA))
    del after["spec"]["initContainers"], after["spec"]["containers"][0]["volumeMounts"]

    patch = PodPatch(view(after))
    list(mutate(patch, ModelWarmingOptions(), context()))

    changes = [change.what for change in patch.changes]
    assert changes == [f"initContainer {FETCHER}", "main: volumeMount /model-cache"]


NO_USER = "is not from 1 to 2147483647; root is rejected where pods are restricted"
BROKEN = {"image": "", "endpoint": "ftp://host", "credentialsSecret": "My Secret"}


@cases(
    ("fields", "want"),
    relative_path=({"mountPath": "models"}, ['mountPath: "models" is not an absolute path below /']),
    no_quantity=(
        {"cacheSizeLimit": "many"},
        [
            'cacheSizeLimit: "many" is not a Kubernetes quantity: expected a number and perhaps a suffix, such as 2, 500m or 16Gi'
        ],
    ),
    nothing_fits=({"cacheSizeLimit": "0"}, ['cacheSizeLimit: "0" is less than 1Mi']),
    resources=(
        {"resources": {"cpu": "1m", "memory": "-1Gi"}},
        ['resources.cpu: "1m" is less than 100m', 'resources.memory: "-1Gi" is less than 256Mi'],
    ),
    root=({"runAsUser": 0}, [f"runAsUser: 0 {NO_USER}"]),
    no_user=({"runAsUser": 2**31}, [f"runAsUser: 2147483648 {NO_USER}"]),
    the_last_user=({"runAsUser": 2**31 - 1}, []),
    source=(
        {"sources": {"s3": BROKEN | {"env": {"NVIDIA_VISIBLE_DEVICES": "x", "1": "y"}}}},
        [
            'sources.s3.image: "" is not a valid image name',
            'sources.s3.endpoint: "ftp://host" is not a valid URL such as https://storage.example.com',
            'sources.s3.credentialsSecret: "My Secret" is not a valid Secret name',
            "sources.s3.env[NVIDIA_VISIBLE_DEVICES]: is set by this rule itself",
            "sources.s3.env[1]: is not a valid variable name",
        ],
    ),
    built_in=({}, []),
    a_key_file_for_a_bucket_without_tls=(
        {
            "sources": {
                "models": {"endpoint": "https://mlflow", "credentialsSecret": "m", "credentialsKey": "k"},
                "gs": {"endpoint": "http://gcs"},
            }
        },
        ['sources.gs.endpoint: "http://gcs" must begin with https://, as a token is sent there'],
    ),
)
def test_options_are_checked_whole(fields: JSON, want: list[str]) -> None:
    assert [f"{path}: {problem}" for path, problem in options(**fields).problems()] == want


def test_a_secret_in_plain_text_is_advised_against() -> None:
    source = {"s3": {"env": {"AWS_SECRET_ACCESS_KEY": "hunter2hunter2", "AWS_REGION": "eu-1"}}}

    assert list(options(sources=source).advice()) == [
        (
            "sources.s3.env[AWS_SECRET_ACCESS_KEY]",
            "holds a secret in plain text, which all users who may read the policy or pods can see; name credentialsSecret "
            "instead",
        )
    ]


@pytest.mark.parametrize(
    "fields", [{"sources": {"ftp": {}}}, {"sources": {"s3": {"images": "x"}}}, {"mountpath": "/x"}]
)
def test_unknown_options_are_refused(fields: JSON) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        options(**fields)


def test_every_source_has_options() -> None:
    assert sorted(ModelWarmingOptions().sources.__struct_fields__) == sorted(SCHEMES)
    assert issubclass(ModelWarmingOptions, RuleOptions)
