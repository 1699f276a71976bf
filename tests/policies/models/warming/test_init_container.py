"""model-warming: the init container: arguments, volumes, and credentials of the policy and of the servers."""

from tests.builders import JSON, gpu_container, pod
from tests.cases import cases
from tests.policies.rules.warming import CLAIM, LLAMA, URI, destination, env, fetcher, options, run


def from_secret(name: str, key: str = "token", of: str = "mine") -> JSON:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": of, "key": key}}}


TOKEN = from_secret("HF_TOKEN")
TRACKING_TOKEN = from_secret("MLFLOW_TRACKING_TOKEN")
KEYS = [from_secret("AWS_ACCESS_KEY_ID", "id"), from_secret("AWS_SECRET_ACCESS_KEY", "key")]
REGION = {"name": "AWS_REGION", "value": "eu-west-1"}
MINE_ALL = {"secretRef": {"name": "mine"}}
MLFLOW = {"endpoint": "https://mlflow.example.com"}
REGISTRY = options(sources={"models": MLFLOW})
KEY_FILE = {"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": "/app/keys/sa.json"}
OURS = {"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": "/gpu-admission/credentials/sa.json"}
KEY_VOLUME = {"name": "keys", "secret": {"secretName": "google"}}
KEY_MOUNT = {"name": "keys", "mountPath": "/app/keys/"}


@cases(
    ("uri", "server", "want_env", "want_from"),
    token_from_a_secret=("hf://meta/llama", {"env": [TOKEN]}, [TOKEN], None),
    token_in_a_whole_secret=("hf://meta/llama", {"envFrom": [MINE_ALL]}, [], [MINE_ALL]),
    token_beside_a_secret=("hf://meta/llama", {"env": [TOKEN], "envFrom": [MINE_ALL]}, [TOKEN], None),
    prefix_and_optional_stay_and_config_maps_do_not_come=(
        "hf://meta/llama",
        {
            "envFrom": [
                {"prefix": "HF_", "secretRef": {"name": "mine", "optional": True}},
                {"configMapRef": {"name": "c"}},
            ]
        },
        [],
        [{"prefix": "HF_", "secretRef": {"name": "mine", "optional": True}}],
    ),
    keys_and_region=("s3://models/llama", {"env": [REGION, *KEYS]}, [REGION, *KEYS], None),
    region_as_text_and_keys_in_a_whole_secret=(
        "s3://models/llama",
        {"env": [REGION], "envFrom": [MINE_ALL]},
        [REGION],
        [MINE_ALL],
    ),
    nothing_of_another_source=("s3://models/llama", {"env": [TOKEN, REGION]}, [], None),
    never_an_endpoint=(
        "s3://models/llama",
        {"env": [*KEYS, {"name": "AWS_ENDPOINT_URL", "value": "https://evil.example"}]},
        KEYS,
        None,
    ),
    no_reference=("hf://meta/llama", {"env": [{"name": "HF_TOKEN", "value": "$(TOKEN)"}]}, [], None),
    key_file_in_a_mount=(
        "gs://models/llama",
        {"env": [KEY_FILE], "volumeMounts": [{"name": "x", "mountPath": "/app"[:3]}, KEY_MOUNT]},
        [OURS],
        None,
    ),
    key_file_of_the_servers_image=("gs://models/llama", {"env": [KEY_FILE]}, [], None),
    token_and_key_file_of_a_registry=(
        "models:/chat/3",
        {"env": [TRACKING_TOKEN, KEY_FILE], "volumeMounts": [KEY_MOUNT]},
        [TRACKING_TOKEN, OURS],
        None,
    ),
    key_file_alone_for_a_registry=(
        "models:/chat/3",
        {"env": [KEY_FILE], "volumeMounts": [KEY_MOUNT]},
        [OURS],
        None,
    ),
    nothing_over_https=("https://host/m.bin", {"env": [TOKEN], "envFrom": [MINE_ALL]}, [], None),
)
def test_the_servers_own_credentials(
    uri: str, server: JSON, want_env: list[JSON], want_from: list[JSON] | None
) -> None:
    volumes = [KEY_VOLUME, {"name": "x", "emptyDir": {}}]

    after, _ = run(pod(gpu_container(**server), annotations={URI: uri}, volumes=volumes), REGISTRY)

    assert [each for each in fetcher(after)["env"] if each["name"] != "NVIDIA_VISIBLE_DEVICES"] == want_env
    assert fetcher(after).get("envFrom") == want_from


@cases(
    ("uri", "endpoint", "want"),
    over_tls=("hf://meta/llama", "https://hub.models", [TOKEN]),
    no_token_in_clear=("hf://meta/llama", "http://hub.models", []),
    no_access_token_in_clear=("gs://models/llama", "HTTP://gcs.models", []),
    a_signature_holds_no_key=("s3://models/llama", "http://minio.models", KEYS),
)
def test_the_servers_token_is_not_sent_over_plain_http(uri: str, endpoint: str, want: list[JSON]) -> None:
    server = gpu_container(env=[TOKEN, *KEYS, KEY_FILE], volumeMounts=[KEY_MOUNT])
    settings = options(sources={uri.partition(":")[0]: {"endpoint": endpoint}})

    after, _ = run(pod(server, annotations={URI: uri}, volumes=[KEY_VOLUME]), settings)

    assert [each for each in fetcher(after)["env"] if each["name"] != "NVIDIA_VISIBLE_DEVICES"] == want
    assert "keys" not in [mount["name"] for mount in fetcher(after)["volumeMounts"]]


def test_a_key_file_is_not_used_where_a_registry_keeps_models_behind_plain_http() -> None:
    server = gpu_container(env=[TRACKING_TOKEN, KEY_FILE], volumeMounts=[KEY_MOUNT])
    settings = options(sources={"models": MLFLOW, "gs": {"endpoint": "http://gcs.models"}})

    after, _ = run(pod(server, annotations={URI: "models:/chat/3"}, volumes=[KEY_VOLUME]), settings)

    assert fetcher(after)["env"][1:] == [TRACKING_TOKEN]
    assert "keys" not in [mount["name"] for mount in fetcher(after)["volumeMounts"]]


@cases(
    ("mount", "want", "path"),
    folder=(KEY_MOUNT, {}, "/sa.json"),
    folder_of_a_volume=({**KEY_MOUNT, "subPath": "a"}, {"subPath": "a"}, "/sa.json"),
    one_file=(
        {"name": "keys", "mountPath": "/app/keys/sa.json", "subPath": "sa.json"},
        {"subPath": "sa.json"},
        "",
    ),
)
def test_a_key_file_is_mounted_where_it_hides_nothing(mount: JSON, want: JSON, path: str) -> None:
    server = gpu_container(env=[KEY_FILE], volumeMounts=[mount])

    after, _ = run(pod(server, annotations={URI: "gs://models/llama"}, volumes=[KEY_VOLUME]))

    place = {"name": "keys", "mountPath": "/gpu-admission/credentials", **want, "readOnly": True}
    assert fetcher(after)["volumeMounts"][1:] == [place]
    assert env(after)["GOOGLE_APPLICATION_CREDENTIALS"] == f"/gpu-admission/credentials{path}"


def test_a_key_file_below_an_expanded_path_stays_with_the_server() -> None:
    server = gpu_container(env=[KEY_FILE], volumeMounts=[{**KEY_MOUNT, "subPathExpr": "$(POD_NAME)"}])

    after, _ = run(pod(server, annotations={URI: "gs://models/llama"}))

    assert "GOOGLE_APPLICATION_CREDENTIALS" not in env(after)
    assert len(fetcher(after)["volumeMounts"]) == 1


@cases("uri", s3="s3://models/llama", hub="hf://meta/llama", gs="gs://models/llama")
def test_nothing_of_the_servers_comes_where_the_policy_names_a_secret(uri: str) -> None:
    source = {uri.partition(":")[0]: {"credentialsSecret": "platform"}}
    server: JSON = {
        "env": [TOKEN, *KEYS, REGION, KEY_FILE],
        "envFrom": [MINE_ALL],
        "volumeMounts": [KEY_MOUNT],
    }

    plain, _ = run(pod(gpu_container(), annotations={URI: uri}), options(sources=source))
    after, _ = run(pod(gpu_container(**server), annotations={URI: uri}), options(sources=source))

    assert fetcher(after) == fetcher(plain)
    assert "platform" in str(after["spec"])


def test_the_first_server_with_credentials_counts_and_the_policys_variables_win() -> None:
    servers = [
        gpu_container(name="draft"),
        gpu_container(name="main", env=[REGION, *KEYS]),
        gpu_container(name="other", env=[from_secret("AWS_SECRET_ACCESS_KEY", of="theirs")]),
    ]
    source = {"s3": {"env": {"AWS_REGION": "us-east-1"}}}

    after, _ = run(pod(*servers, annotations=LLAMA), options(sources=source))

    assert fetcher(after)["env"][1:] == [{"name": "AWS_REGION", "value": "us-east-1"}, *KEYS]


@cases(
    ("uri", "source", "volumes"),
    nothing=("s3://models/m", {}, []),
    secret_of_variables=("s3://models/m", {"s3": {"credentialsSecret": "keys"}}, []),
    google_without_a_secret=("gs://models/m", {}, []),
    key_file=(
        "gs://models/m",
        {"gs": {"credentialsSecret": "google"}},
        [{"name": "gpu-admission-model-credentials", "secret": {"secretName": "google"}}],
    ),
    key_file_for_the_artifacts_of_a_registry=(
        "models:/chat/3",
        {"models": {**MLFLOW, "credentialsSecret": "mlflow", "credentialsKey": "google.json"}},
        [{"name": "gpu-admission-model-credentials", "secret": {"secretName": "mlflow"}}],
    ),
    registry_without_a_key_file=(
        "models:/chat/3",
        {"models": {**MLFLOW, "credentialsSecret": "mlflow"}},
        [],
    ),
    claim=(
        "pvc://shared/llama",
        {},
        [
            {
                "name": "gpu-admission-model-source",
                "persistentVolumeClaim": {"claimName": "shared", "readOnly": True},
            }
        ],
    ),
)
def test_what_the_init_container_alone_mounts(uri: str, source: JSON, volumes: list[JSON]) -> None:
    after, _ = run(pod(gpu_container(), annotations={URI: uri}), options(sources=source))

    mounts = [(mount["name"], mount["readOnly"]) for mount in fetcher(after)["volumeMounts"][1:]]
    assert after["spec"]["volumes"][1:] == volumes
    assert mounts == [(volume["name"], True) for volume in volumes]
    assert len(after["spec"]["containers"][0]["volumeMounts"]) == 1


WEB = {"https": {"credentialsSecret": "web", "hosts": ["models.example.com"]}}


@cases(
    ("uri", "source", "args", "added"),
    s3=(
        "s3://models/m",
        {"s3": {"credentialsSecret": "aws", "env": {"MODEL_PARALLEL": "8", "AWS_REGION": "eu-west-1"}}},
        [],
        {"envFrom": [{"secretRef": {"name": "aws"}}], "AWS_REGION": "eu-west-1", "MODEL_PARALLEL": "8"},
    ),
    s3_of_ones_own=(
        "s3://models/m",
        {"s3": {"endpoint": "http://minio.storage:9000", "credentialsSecret": "minio"}},
        ["--endpoint=http://minio.storage:9000"],
        {"envFrom": [{"secretRef": {"name": "minio"}}]},
    ),
    hub_from_a_mirror=(
        "hf://meta/llama@main",
        {"hf": {"endpoint": "https://hub.example.com", "credentialsSecret": "hub"}},
        ["--endpoint=https://hub.example.com"],
        {"envFrom": [{"secretRef": {"name": "hub"}}]},
    ),
    https_from_a_host_of_the_policy=(
        "https://Models.example.com/m.bin",
        WEB,
        [],
        {"envFrom": [{"secretRef": {"name": "web"}}]},
    ),
    https_from_another_host_without_credentials=("https://elsewhere.example/m.bin", WEB, [], {}),
    another_port_is_another_host=("https://models.example.com:8443/m.bin", WEB, [], {}),
    gs=(
        "gs://models/m",
        {"gs": {"credentialsSecret": "google"}},
        [],
        {"GOOGLE_APPLICATION_CREDENTIALS": "/gpu-admission/credentials/key.json"},
    ),
    registry_with_artifacts_in_gs=(
        "models:/chat/3",
        {
            "models": {
                **MLFLOW,
                "credentialsSecret": "mlflow",
                "credentialsKey": "google.json",
            }
        },
        ["--endpoint=https://mlflow.example.com"],
        {
            "envFrom": [{"secretRef": {"name": "mlflow"}}],
            "GOOGLE_APPLICATION_CREDENTIALS": "/gpu-admission/credentials/google.json",
        },
    ),
    claim=("pvc://shared/llama", {}, ["--claim-mount=/gpu-admission/source"], {}),
)
def test_each_source_has_its_options(uri: str, source: JSON, args: list[str], added: JSON) -> None:
    after, _ = run(pod(gpu_container(), annotations={URI: uri}), options(sources=source))

    found: JSON = {name: value for name, value in env(after).items() if name != "NVIDIA_VISIBLE_DEVICES"}
    if "envFrom" in fetcher(after):
        found["envFrom"] = fetcher(after)["envFrom"]
    assert found == added
    assert fetcher(after)["args"] == [uri, destination(after), *args, "--size-limit=200Gi"]
    assert fetcher(after)["command"] == ["gpu-admission", "fetch-model"]

    kept, _ = run(pod(gpu_container(), annotations={URI: uri, CLAIM: "models"}), options(sources=source))
    assert kept["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "models"}
    assert fetcher(kept)["args"] == [uri, destination(kept), *args]
