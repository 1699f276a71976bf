"""The options of a source that would fetch nothing, or would send credentials where they must not go."""

import msgspec

from policies.models.warming.options import SourceOptions
from tests.builders import JSON
from tests.cases import cases

ONLY = "has no effect on {}; it is for {}"


@cases(
    ("scheme", "source", "want"),
    {
        "key-of-the-secret": (
            "gs",
            {"credentialsKey": "a/b"},
            ['credentialsKey: "a/b" is not a valid key of a Secret'],
        ),
        "claim-login": (
            "pvc",
            {"credentialsSecret": "x"},
            [f"credentialsSecret: {ONLY.format('pvc', 's3, gs, hf, https')}"],
        ),
        "credentials-for-any-host": (
            "https",
            {"credentialsSecret": "web"},
            ["hosts: must name the hosts that get the credentials: the pod's author writes the URI"],
        ),
        "a-url-for-a-host": (
            "https",
            {"credentialsSecret": "web", "hosts": ["https://h", "h:8443"]},
            ['hosts: "https://h" is not a valid host such as models.example.com'],
        ),
        "credentials-as-a-variable-for-any-host": (
            "https",
            {"env": {"MODEL_HTTP_AUTHORIZATION": "Bearer x"}, "hosts": ["h"]},
            [
                "env[MODEL_HTTP_AUTHORIZATION]: would be sent to any host; put it into credentialsSecret and name hosts"
            ],
        ),
        "variables-of-a-bucket": (
            "s3",
            {"env": {"1": "y", "AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL_S3": "z"}},
            [
                "env[1]: is not a valid variable name",
                "env[AWS_ENDPOINT_URL_S3]: is not read; set endpoint instead",
            ],
        ),
        "hosts-of-a-bucket": ("s3", {"hosts": ["h"]}, [f"hosts: {ONLY.format('s3', 'https')}"]),
        "endpoint-of-https": (
            "https",
            {"endpoint": "https://h"},
            [f"endpoint: {ONLY.format('https', 's3, gs, hf')}"],
        ),
        "a-token-over-plain-http": (
            "hf",
            {"endpoint": "http://hub", "credentialsSecret": "hub"},
            ['endpoint: "http://hub" must begin with https://, as a token is sent there'],
        ),
        "plain-http-without-a-token": ("hf", {"endpoint": "http://hub.models:8080"}, []),
        "endpoint-with-password": (
            "s3",
            {"endpoint": "https://u:p@h"},
            ['endpoint: "https://u:p@h" is not a valid URL such as https://storage.example.com'],
        ),
    },
)
def test_what_a_source_cannot_have(scheme: str, source: JSON, want: list[str]) -> None:
    found = msgspec.convert(source, SourceOptions).problems(scheme)
    assert [f"{field}: {message}" for field, message in found] == want
