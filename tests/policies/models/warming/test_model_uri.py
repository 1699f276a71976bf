"""Model URIs: what is usable, what is refused with which advice, and that no secret is ever shown."""

import pytest

from policies.models.warming.model_uri import ModelURI, parse_model_uri, shown
from policies.pods.annotations import BadAnnotation

SHA256 = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "scheme", "host", "want"),
    [
        pytest.param("s3://models/llama/8b", "s3", "models", "s3://models/llama/8b", id="s3-prefix"),
        pytest.param("s3://models", "s3", "models", "s3://models", id="whole-bucket"),
        pytest.param("gs://models_eu/a+b=c/", "gs", "models_eu", "gs://models_eu/a+b=c/", id="gs"),
        pytest.param("hf://meta/Llama-3.1-8B", "hf", "meta", "hf://meta/Llama-3.1-8B", id="hub"),
        pytest.param("hf://meta/l@refs/pr/1", "hf", "meta", "hf://meta/l@refs/pr/1", id="hub-revision"),
        pytest.param("pvc://claim-1/a/b", "pvc", "claim-1", "pvc://claim-1/a/b", id="claim"),
        pytest.param("https://h:8443/a/@b/m", "https", "h:8443", "https://h:8443/a/@b/m", id="port"),
        pytest.param("https://[::1]:8443/m", "https", "[::1]:8443", "https://[::1]:8443/m", id="ipv6"),
        pytest.param(f"https://h/m#sha256={SHA256}", "https", "h", "https://h/m", id="checksum-is-not-shown"),
        pytest.param("https://h/m?version=2", "https", "h", "https://h/m", id="query-is-not-shown"),
    ],
)
def test_usable(text: str, scheme: str, host: str, want: str) -> None:
    assert parse_model_uri(text) == ModelURI(scheme=scheme, host=host, text=text, shown=want)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("https://h/m?version=2", "version=2", id="query"),
        pytest.param(f"https://h/m?version=2#sha256={SHA256}", "version=2", id="before-the-checksum"),
        pytest.param("https://h/m", "", id="none"),
    ],
)
def test_query(text: str, want: str) -> None:
    uri = parse_model_uri(text)
    assert isinstance(uri, ModelURI)
    assert uri.query == want


SECRET_REMEDY = (
    "remove the credentials, and put them into a Secret that the policy names as credentialsSecret of source "
)


NO_SOURCE, NO_MODEL = "is not from a supported source", "does not name a model of the hub"
NO_FILE, NO_CHARACTER = "does not name a file", "holds a space"
LONG = "s3://" + "m/" * 1100


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        pytest.param("", NO_SOURCE, "write s3://bucket/prefix", id="empty"),
        pytest.param("models/llama", NO_SOURCE, "write s3://", id="no-scheme"),
        pytest.param("ftp://h/m", NO_SOURCE, "hf://owner/name", id="ftp"),
        pytest.param("S3://models/m", NO_SOURCE, "s3://", id="upper-case"),
        pytest.param("http://h/m", "is plain http", "use https://", id="plain-http"),
        pytest.param("s3:///m", "does not name a valid bucket", "write s3://bucket/…", id="no-bucket"),
        pytest.param("pvc://Claim/m", "does not name a valid claim", "pvc://claim/…", id="claim-name"),
        pytest.param("pvc://c/a/../b", 'holds ".."', "without it", id="parent"),
        pytest.param("hf://gpt2", NO_MODEL, "hf://owner/name", id="hub-owner"),
        pytest.param("hf://a/b/c", NO_MODEL, "hf://owner/name", id="hub-file"),
        pytest.param("https://h/d/", NO_FILE, "fetched from s3", id="https-folder"),
        pytest.param("https://h", NO_FILE, "name one file", id="https-host-only"),
        pytest.param("s3://models/a?b", "only https:// may have", "leave it out", id="query-on-s3"),
        pytest.param("https://h/m#sha256=12", "not a checksum", "64 hexadecimal", id="bad-checksum"),
        pytest.param("s3://models/$(HF_TOKEN)", NO_CHARACTER, "rename", id="expansion"),
        pytest.param("s3://models/a b", NO_CHARACTER, "%-encoded", id="space"),
        pytest.param("s3://models/a\nb", NO_CHARACTER, "%-encoded", id="newline"),
        pytest.param("s3://models/ä", NO_CHARACTER, "%-encoded", id="not-ascii"),
        pytest.param(LONG, "is longer than 2048", "shorter", id="long"),
    ],
)
def test_unusable(text: str, message: str, remedy: str) -> None:
    found = parse_model_uri(text)

    assert isinstance(found, BadAnnotation)
    assert found.value == shown(text)
    assert message in found.message
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("https://bob:hunter2hunter2@h/m", "https://h/m", id="user-and-password"),
        pytest.param("https://hunter2hunter2@h/m", "https://h/m", id="token-as-user"),
        pytest.param("s3://AKIA:hunter2/hun@ter2@models/m", "s3://models/m", id="key-with-slash-and-at"),
        pytest.param("s3://AKIA:hunter2/hunter2@models/m", "s3://models/m", id="key-with-slash"),
        pytest.param("https://h/m?X-Amz-Signature=hunter2", "https://h/m", id="presigned-s3"),
        pytest.param("https://h/m?a=1&sig=hunter2#x", "https://h/m", id="shared-access-signature"),
        pytest.param("https://h/m?private_token=hunter2", "https://h/m", id="token"),
    ],
)
def test_credentials_are_refused_and_not_repeated(text: str, want: str) -> None:
    found = parse_model_uri(text)

    assert isinstance(found, BadAnnotation)
    assert found.value == want
    assert found.message.startswith("holds ")
    assert found.remedy == f"{SECRET_REMEDY}{text.partition(':')[0]}"
    assert "hunter2" not in found.value + found.message + found.remedy


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("bob:hunter2@h/m?x", "h/m", id="no-scheme"),
        pytest.param("weird://bob:hunter2@h/m", "weird://h/m", id="unknown-scheme"),
        pytest.param("?hunter2", "", id="only-a-query"),
        pytest.param("s3://models/$(HF_TOKEN) a?b", "s3://models/$(HF_TOKEN) a", id="what-no-uri-may-hold"),
        pytest.param("https://h/m#sha256=12", "https://h/m", id="checksum"),
        pytest.param("s3://models/a\nb", "s3://models/a�b", id="newline"),
        pytest.param(LONG, LONG[:2048] + "…", id="long"),
    ],
)
def test_what_is_shown_of_anything(text: str, want: str) -> None:
    assert shown(text) == want


def test_each_uri_has_a_directory_of_its_own() -> None:
    texts = [
        "s3://models/llama",
        "s3://other/llama",
        "https://h/llama?version=1",
        "https://h/llama?version=2",
        f"https://h/llama#sha256={SHA256}",
        "hf://meta/" + "l" * 300,
        "s3://models/../x",
        "gs://models/a b/%2e%2e",
    ]
    found = [ModelURI(scheme="", host="", text=text, shown=shown(text)).directory for text in texts]

    assert len(set(found)) == len(texts)
    assert found[0].startswith("llama-")
    for directory in found:
        assert len(directory) <= 53
        assert not directory.startswith(".")
        assert "/" not in directory
