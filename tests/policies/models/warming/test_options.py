"""The options of a source that would fetch nothing, or would send credentials where they must not go."""

import msgspec

from policies.models.warming.options import (
    FetchResources,
    SourceOptions,
    Sources,
    minimum_problem,
    mount_path_problem,
)
from tests.builders import JSON
from tests.cases import cases


@cases(
    ("scheme", "source", "want"),
    a_key=("gs", {"credentialsKey": "a/b"}, ['credentialsKey: "a/b" is not a valid key of a Secret']),
    an_image=("hf", {"image": "a b"}, ['image: "a b" is not a valid image name']),
    claim_login=(
        "pvc",
        {"credentialsSecret": "X"},
        [
            'credentialsSecret: "X" is not a valid Secret name',
            "credentialsSecret: has no effect on pvc; it is for s3, gs, hf, https, models",
        ],
    ),
    credentials_for_any_host=(
        "https",
        {"credentialsSecret": "web"},
        ["hosts: must name the hosts that get the credentials: the pod's author writes the URI"],
    ),
    a_url_for_a_host=(
        "https",
        {"credentialsSecret": "web", "hosts": ["https://h", "h:8443"]},
        ['hosts: "https://h" is not a valid host such as models.example.com'],
    ),
    credentials_as_a_variable_for_any_host=(
        "https",
        {"env": {"MODEL_HTTP_AUTHORIZATION": "Bearer x"}, "hosts": ["h"]},
        [
            "env[MODEL_HTTP_AUTHORIZATION]: would be sent to any host; put it into credentialsSecret and name hosts"
        ],
    ),
    variables_of_a_bucket=(
        "s3",
        {
            "env": {
                "1": "y",
                "AWS_REGION": "eu-west-1",
                "AWS_ENDPOINT_URL_S3": "z",
                "NVIDIA_VISIBLE_DEVICES": "all",
            }
        },
        [
            "env[1]: is not a valid variable name",
            "env[AWS_ENDPOINT_URL_S3]: is not read; set endpoint instead",
            "env[NVIDIA_VISIBLE_DEVICES]: is set by this rule itself",
        ],
    ),
    hosts_of_a_bucket=("s3", {"hosts": ["h"]}, ["hosts: has no effect on s3; it is for https"]),
    https=(
        "https",
        {"endpoint": "https://h"},
        ["endpoint: has no effect on https; it is for s3, gs, hf, models"],
    ),
    a_registry_without_tls=(
        "models",
        {"endpoint": "http://mlflow:5000", "credentialsSecret": "mlflow"},
        ['endpoint: "http://mlflow:5000" must begin with https://, as a token is sent there'],
    ),
    a_registry_as_a_variable=(
        "models",
        {"env": {"MLFLOW_TRACKING_URI": "http://mlflow:5000"}},
        ["env[MLFLOW_TRACKING_URI]: is not read; set endpoint instead"],
    ),
    what_an_image_volume_has_not=(
        "oci",
        {"image": "a", "credentialsSecret": "b", "env": {"A": "b"}},
        [
            "image: has no effect on oci; it is for s3, gs, hf, https, pvc, models",
            "credentialsSecret: has no effect on oci; it is for s3, gs, hf, https, models",
            "env: has no effect on oci; it is for s3, gs, hf, https, pvc, models",
        ],
    ),
    a_digest_of_a_bucket=(
        "s3",
        {"requireDigest": True, "imageVolumes": True},
        [
            "requireDigest: has no effect on s3; it is for https, models, oci",
            "imageVolumes: has no effect on s3; it is for oci",
        ],
    ),
    an_image_volume=("oci", {"requireDigest": True, "imageVolumes": True}, []),
    a_token_over_plain_http=(
        "hf",
        {"endpoint": "http://hub", "credentialsSecret": "hub"},
        ['endpoint: "http://hub" must begin with https://, as a token is sent there'],
    ),
    plain_http_without_a_token=("hf", {"endpoint": "http://hub.models:8080"}, []),
    endpoint_with_password=(
        "s3",
        {"endpoint": "https://u:p@h"},
        ['endpoint: "https://u:p@h" is not a valid URL such as https://storage.example.com'],
    ),
)
def test_what_a_source_cannot_have(scheme: str, source: JSON, want: list[str]) -> None:
    found = msgspec.convert(source, SourceOptions).problems(scheme)
    assert [f"{field}: {message}" for field, message in found] == want


@cases(
    ("name", "value", "want"),
    token=("HF_TOKEN", "hf_0123456789", True),
    access_key=("AWS_ACCESS_KEY_ID", "AKIA0123456789", True),
    path=("TOKEN_FILE", "/run/secrets/token", False),
    another_variable=("TOKEN", "$(OTHER_TOKEN_VALUE)", False),
    short=("USE_TOKEN", "true", False),
    seven_characters=("PASSWORD", "1234567", False),
    eight_characters=("PASSWORD", "12345678", True),
    password_of_a_url=("HTTPS_PROXY", "http://me:word@proxy:8080", True),
    url_without_a_password=("HTTPS_PROXY", "http://me@proxy:8080", False),
    plain=("AWS_REGION", "eu-central-1", False),
)
def test_variables_that_are_secrets_in_plain_text(name: str, value: str, want: bool) -> None:
    source = SourceOptions(env={name: value})

    assert list(source.plain_secrets()) == ([name] if want else [])
    assert Sources(hf=source).of("hf") is source


@cases(
    ("resources", "want"),
    defaults=(FetchResources(), []),
    least=(FetchResources(cpu="100m", memory="256Mi"), []),
    too_little=(
        FetchResources(cpu="99m", memory="255Mi"),
        [("cpu", '"99m" is less than 100m'), ("memory", '"255Mi" is less than 256Mi')],
    ),
)
def test_resources_of_the_fetcher(resources: FetchResources, want: list[tuple[str, str]]) -> None:
    assert list(resources.problems()) == want


@cases(
    ("path", "want"),
    usual=("/models/llama", None),
    relative=("models", "is not an absolute path below /"),
    root=("//", "is not an absolute path below /"),
    parent=("/models/../x", 'holds "..", ":" or a character that no mount path may hold'),
    colon=("/models:ro", 'holds "..", ":" or a character that no mount path may hold'),
    line_end=("/models\n", 'holds "..", ":" or a character that no mount path may hold'),
    devices=("/./dev/shm", "is below /dev, which belongs to the system"),
    nearly_devices=("/device", None),
)
def test_where_a_model_can_be_mounted(path: str, want: str | None) -> None:
    assert mount_path_problem(path) == want


MUCH = '"much" is not a Kubernetes quantity: expected a number and perhaps a suffix, such as 2, 500m or 16Gi'


@cases(
    ("text", "want"),
    as_much=("1Gi", None),
    less=("1023Mi", '"1023Mi" is less than 1Gi'),
    no_quantity=("much", MUCH),
)
def test_the_least_size(text: str, want: str | None) -> None:
    assert minimum_problem(text, "1Gi") == want
