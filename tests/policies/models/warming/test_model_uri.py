"""Model URIs: what is usable, what is refused with which advice, and that no secret is ever shown."""

from policies.models.warming.model_uri import ModelURI, parse_model_uri, redacted
from policies.pods.annotations import MODEL_URI, BadAnnotation
from tests.cases import cases

SHA256 = "0123456789abcdef" * 4
DIGEST = f"oci://ghcr.io/ml/chat:v1@sha256:{SHA256}"


@cases(
    ("text", "scheme", "host", "want"),
    s3_prefix=("s3://models/llama/8b", "s3", "models", "s3://models/llama/8b"),
    whole_bucket=("s3://models", "s3", "models", "s3://models"),
    gs=("gs://models_eu/a+b=c/", "gs", "models_eu", "gs://models_eu/a+b=c/"),
    hub=("hf://meta/Llama-3.1-8B", "hf", "meta", "hf://meta/Llama-3.1-8B"),
    hub_revision=("hf://meta/l@refs/pr/1", "hf", "meta", "hf://meta/l@refs/pr/1"),
    claim=("pvc://claim-1/a/b", "pvc", "claim-1", "pvc://claim-1/a/b"),
    version=("models:/chat/7", "models", "chat", "models:/chat/7"),
    catalog=("models:/ml.prod.chat/7", "models", "ml.prod.chat", "models:/ml.prod.chat/7"),
    alias=("models:/chat@champion", "models", "chat", "models:/chat@champion"),
    stage=("models:/chat/Production", "models", "chat", "models:/chat/Production"),
    pinned_alias=(f"models:/chat@c#sha256={SHA256}", "models", "chat", "models:/chat@c"),
    image=("oci://ghcr.io/ml/chat:v1", "oci", "ghcr.io", "oci://ghcr.io/ml/chat:v1"),
    image_without_a_tag=("oci://r:5000/a__b/c-d", "oci", "r:5000", "oci://r:5000/a__b/c-d"),
    image_by_digest=(DIGEST, "oci", "ghcr.io", DIGEST),
    local_image=("oci://localhost/chat", "oci", "localhost", "oci://localhost/chat"),
    port=("https://h:8443/a/@b/m", "https", "h:8443", "https://h:8443/a/@b/m"),
    ipv6=("https://[::1]:8443/m", "https", "[::1]:8443", "https://[::1]:8443/m"),
    checksum_is_not_shown=(f"https://h/m#sha256={SHA256}", "https", "h", "https://h/m"),
    query_is_not_shown=("https://h/m?version=2", "https", "h", "https://h/m"),
)
def test_usable(text: str, scheme: str, host: str, want: str) -> None:
    assert parse_model_uri(text) == ModelURI(scheme=scheme, host=host, text=text, redacted=want)


@cases(
    ("text", "query", "is_gated"),
    query=("https://h/m?version=2", "version=2", False),
    before_the_checksum=(f"https://h/m?version=2#sha256={SHA256}", "version=2", False),
    of_the_hub=("hf://meta-llama/Llama-3.1-8B", "", True),
    open=("hf://Qwen/Qwen2-7B", "", False),
    bucket_of_that_name=("s3://meta-llama/Llama-3.1-8B", "", False),
)
def test_queries_and_gated_models(text: str, query: str, is_gated: bool) -> None:
    uri = parse_model_uri(text)

    assert isinstance(uri, ModelURI)
    assert (uri.query, uri.needs_token) == (query, is_gated)


@cases(
    ("text", "digest", "moves"),
    version=("models:/chat/7", "", False),
    alias=("models:/chat@champion", "", True),
    stage=("models:/chat/staging", "", True),
    newest=("models:/chat/latest", "", True),
    pinned_version=(f"models:/chat/7#sha256={SHA256.upper()}", SHA256, False),
    pinned_alias=(f"models:/chat@champion#sha256={SHA256}", SHA256, True),
    file=(f"https://h/m?v=1#sha256={SHA256}", SHA256, False),
    image=(DIGEST, SHA256, False),
    tag=("oci://ghcr.io/ml/chat:v1", "", False),
    file_of_that_name=(f"https://h/m@sha256:{SHA256}", "", False),
    bucket=("s3://models/chat@champion", "", False),
)
def test_digests_and_names_that_move(text: str, digest: str, moves: bool) -> None:
    uri = parse_model_uri(text)

    assert isinstance(uri, ModelURI)
    assert (uri.digest, uri.is_mutable) == (digest, moves)


@cases(
    ("text", "want"),
    alias=("models:/chat@champion", "models:/chat/12"),
    with_a_digest=(f"models:/chat@c#sha256={SHA256}", f"models:/chat/12#sha256={SHA256}"),
)
def test_the_uri_of_a_version(text: str, want: str) -> None:
    uri = parse_model_uri(text)

    assert isinstance(uri, ModelURI)
    assert uri.at_version("12") == want


SECRET_REMEDY = (
    "remove the credentials, and put them into a Secret that the policy names as credentialsSecret of source "
)

IN_QUERY = "a signature or token in its query"
LONG = "s3://" + "m/" * 1100
NO_SOURCE = (
    "is not from a supported source",
    "write s3://bucket/prefix, gs://bucket/prefix, hf://owner/name, https://host/file, pvc://claim/path, models:/name/version "
    "or oci://registry.example.com/name:tag",
)
NO_VERSION = "does not name a version of a model", "write models:/name/version or models:/name@alias"
NO_REGISTRY = "does not name a valid registry", "write oci://registry/…"
NO_IMAGE = (
    "does not name an image",
    "write oci://registry.example.com/name:tag, or @sha256: and 64 hexadecimal digits at its end",
)
LETTERS = "letters, digits, . _ and -"
NO_MODEL = "does not name a model of the hub", "write hf://owner/name or hf://owner/name@revision"
NO_FILE = "does not name a file", "name one file; a folder can be fetched from s3, gs, hf or pvc"
NO_CHARACTER = (
    "holds a space, a quote, $ or another character that no URI may hold",
    "write such characters %-encoded in an https:// URI, or rename the object",
)


@cases(
    ("text", "want"),
    empty=("", NO_SOURCE),
    no_scheme=("models", NO_SOURCE),
    ftp=("ftp://h/m", NO_SOURCE),
    plain_http=(
        "http://h/m",
        ("is plain http, over which anyone on the way can replace the model", "use https://"),
    ),
    no_bucket=("s3:///m", (f"does not name a valid bucket (3 to 63 {LETTERS})", "write s3://bucket/…")),
    a_short_bucket=("s3://m/x", (f"does not name a valid bucket (3 to 63 {LETTERS})", "write s3://bucket/…")),
    no_bucket_of_google=(
        "gs:///m",
        (f"does not name a valid bucket (3 to 222 {LETTERS})", "write gs://bucket/…"),
    ),
    no_owner=("hf:///m", ("does not name a valid owner", "write hf://owner/…")),
    no_host=("https:///m", ("does not name a valid host", "write https://host/…")),
    claim_name=("pvc://Claim/m", ("does not name a valid claim", "write pvc://claim/…")),
    parent=("pvc://c/a/../b", ('holds ".." as part of its path', "write the path without it")),
    hub_owner=("hf://gpt2", NO_MODEL),
    hub_file=("hf://a/b/c", NO_MODEL),
    https_folder=("https://h/d/", NO_FILE),
    https_host_only=("https://h", NO_FILE),
    query_on_s3=(
        "s3://models/a?b",
        ("has a query (?), which no URI of s3 may have", "leave it out"),
    ),
    fragment_on_s3=("s3://models/a#b", ("has a fragment (#), which no URI of s3 may have", "leave it out")),
    query_of_a_version=(
        "models:/chat/7?b",
        ("has a query (?), which no URI of models may have", "leave it out"),
    ),
    checksum_of_an_image=(
        f"oci://ghcr.io/chat#sha256={SHA256}",
        ("has a fragment (#), which no URI of oci may have", "leave it out"),
    ),
    no_version=("models:/chat", NO_VERSION),
    version_zero=("models:/chat/0", NO_VERSION),
    unknown_stage=("models:/chat/Prod", NO_VERSION),
    file_of_a_version=("models:/chat/7/weights", NO_VERSION),
    alias_with_a_dot=("models:/chat@v1.2", NO_VERSION),
    logged_model=("models:/m-0123456789abcdef", NO_VERSION),
    image_of_a_short_name=("oci://ml/chat:v1", NO_REGISTRY),
    no_image=("oci://ghcr.io", NO_IMAGE),
    image_in_capitals=("oci://ghcr.io/ML/chat", NO_IMAGE),
    short_digest=("oci://ghcr.io/chat@sha256:12", NO_IMAGE),
    bad_checksum=(
        "https://h/m#sha256=12",
        (
            "has a fragment that is not a checksum",
            "write #sha256= and 64 hexadecimal digits, or leave it out",
        ),
    ),
    expansion=("s3://models/$(HF_TOKEN)", NO_CHARACTER),
    space=("s3://models/a b", NO_CHARACTER),
    not_ascii=("s3://models/ä", NO_CHARACTER),
    long=(LONG, ("is longer than 2048 characters", "use a shorter path")),
)
def test_unusable(text: str, want: tuple[str, str]) -> None:
    assert parse_model_uri(text) == BadAnnotation(MODEL_URI, redacted(text), *want, example="hf://owner/name")


@cases(
    ("text", "meant"),
    without_slashes=("hf:meta-llama/Llama-3.1-8B", "hf://meta-llama/Llama-3.1-8B"),
    with_one_slash=("pvc:/models/llama", "pvc://models/llama"),
    in_capitals=("S3://models/m", "s3://models/m"),
    with_two_slashes=("models://chat/7", "models:/chat/7"),
    without_a_slash=("Models:chat/7", "models:/chat/7"),
    image=("oci:ghcr.io/ml/chat:v1", "oci://ghcr.io/ml/chat:v1"),
)
def test_what_a_slip_in_the_scheme_means(text: str, meant: str) -> None:
    what = NO_VERSION if text.startswith("models:/") else NO_SOURCE

    assert parse_model_uri(text) == BadAnnotation(MODEL_URI, text, *what, meant=meant)


def test_a_name_of_the_hub_is_an_example() -> None:
    message, remedy = NO_SOURCE
    remedy = remedy.replace("hf://owner/name", "hf://meta-llama/Llama")
    bad = BadAnnotation(MODEL_URI, "meta-llama/Llama", message, remedy, example="hf://meta-llama/Llama")

    assert parse_model_uri("meta-llama/Llama") == bad


@cases(
    ("text", "want", "what"),
    user_and_password=("https://bob:hunter2hunter2@h/m", "https://h/m", "credentials"),
    token_as_user=("https://hunter2hunter2@h/m", "https://h/m", "credentials"),
    key_with_slash_and_at=("s3://AKIA:hunter2/hun@ter2@models/m", "s3://models/m", "credentials"),
    key_with_slash=("s3://AKIA:hunter2/hunter2@models/m", "s3://models/m", "credentials"),
    user_of_a_registry=("models:/bob:hunter2@chat/7", "models:/chat/7", "credentials"),
    user_of_a_server_of_models=("models://bob:hunter2@h/chat/7", "models:/h/chat/7", "credentials"),
    token_of_a_server_of_models=("models:///hunter2@h/chat/7", "models:/h/chat/7", "credentials"),
    user_before_an_alias=("models:/bob@hunter2@chat/7", "models:/chat/7", "credentials"),
    presigned_s3=("https://h/m?X-Amz-Signature=hunter2", "https://h/m", IN_QUERY),
    shared_access_signature=("https://h/m?a=1&sig=hunter2#x", "https://h/m", IN_QUERY),
    token=("https://h/m?private_token=hunter2", "https://h/m", IN_QUERY),
)
def test_credentials_are_refused_and_not_repeated(text: str, want: str, what: str) -> None:
    found = parse_model_uri(text)

    assert isinstance(found, BadAnnotation)
    assert found.value == want
    assert found.message == f"holds {what}, which everyone who may see the pod can read"
    assert found.remedy == f"{SECRET_REMEDY}{text.partition(':')[0]}"
    assert "hunter2" not in found.value + found.message + found.remedy


@cases(
    ("text", "want"),
    no_scheme=("bob:hunter2@h/m?x", "h/m"),
    unknown_scheme=("weird://bob:hunter2@h/m", "weird://h/m"),
    only_a_query=("?hunter2", ""),
    what_no_uri_may_hold=("s3://models/$(HF_TOKEN) a?b", "s3://models/$(HF_TOKEN) a"),
    checksum=("https://h/m#sha256=12", "https://h/m"),
    newline=("s3://models/a\nb", "s3://models/a�b"),
    long=(LONG, LONG[:2048] + "…"),
)
def test_what_is_shown_of_anything(text: str, want: str) -> None:
    assert redacted(text) == want


def test_each_uri_has_a_directory_of_its_own() -> None:
    texts = ["s3://models/llama", "s3://other/llama", "s3://models/../x", "gs://models/a b/%2e%2e"]
    texts += [f"https://h/llama{end}" for end in ("?version=1", "?version=2", f"#sha256={SHA256}")]
    texts += ["hf://meta/" + "l" * 300, "models:/chat/7", "models:/chat/8", "models:/chat@7"]
    found = [
        ModelURI(scheme=text.partition(":")[0], host="", text=text, redacted=redacted(text)).directory
        for text in texts
    ]

    assert len(set(found)) == len(texts)
    assert [found[at].rpartition("-")[0] for at in (0, -3, -1)] == ["llama", "chat-7", "chat-7"]
    for directory in found:
        assert len(directory) <= 53
        assert not directory.startswith(".")
        assert "/" not in directory
