"""The model fetcher with a real registry of MLflow behind a proxy that asks for a token."""

import hashlib
import random
from collections.abc import Iterator

import pytest

from tests.cases import cases
from tests.webhook.tools.fetch.conftest import Identity, Warmer, lines
from tests.webhook.tools.fetch.mlflow_server import MLflow, Proxy, running
from tests.webhook.tools.fetch.servers import S3Handler, Store, serving

pytestmark = [pytest.mark.processes(sentences=True), pytest.mark.slow, pytest.mark.timeout(1200)]

WEIGHTS = random.Random(9).randbytes(1_500_000)  # noqa: S311 - any bytes will do
FIRST = {"MLmodel": b"flavors: {}\n", "data/model 1.safetensors": WEIGHTS, "data/empty": b""}
SECOND = {"MLmodel": b"flavors: {}\n", "model.bin": b"second"}
TOKEN = {"MLFLOW_TRACKING_TOKEN": "t0pS3cretToken"}


def digest(files: dict[str, bytes]) -> str:
    """Return what `sha256sum` over all files, in the order of their paths, comes to."""
    hashed = {path: hashlib.sha256(body).hexdigest() for path, body in files.items()}
    return hashlib.sha256("".join(f"{hashed[path]}  {path}\n" for path in sorted(files)).encode()).hexdigest()


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MLflow]:
    with running(tmp_path_factory.mktemp("mlflow")) as server:
        server.register("chat", FIRST)
        server.register("chat", SECOND)
        server.stage("chat", "Production", "1")
        yield server


@pytest.fixture
def endpoint(mlflow: MLflow, store: Store, authority: Identity) -> Iterator[str]:
    store.objects["mlflow"] = mlflow.url.encode()
    with serving(store, Proxy, authority.context) as url:
        yield f"--endpoint={url}"


def test_a_version_is_fetched_and_verified_and_then_warm(warmer: Warmer, endpoint: str, store: Store) -> None:
    uri = f"models:/chat/1#sha256={digest(FIRST)}"

    said = warmer.gets(FIRST, uri, endpoint, **TOKEN)
    assert lines(said, DIRECTORY=str(warmer.destination)) == [
        "models:/chat/1: 3 file(s), 1.431 MiB, of which 0 B are here already",
        "done: DIRECTORY holds 1.431 MiB after N s",
    ]
    asked = len(store.seen)
    assert warmer.run(uri, endpoint) == (0, f"warm: {warmer.destination} holds models:/chat/1\n")
    assert len(store.seen) == asked, "a version does not change"


def test_a_wrong_digest_is_refused_and_leaves_nothing(warmer: Warmer, endpoint: str) -> None:
    said = warmer.fails(f"models:/chat/1#sha256={'0' * 64}", endpoint, **TOKEN)

    assert said.splitlines()[-1] == f"failed: models:/chat/1: has digest {digest(FIRST)}, not {'0' * 64}"
    assert warmer.files() == {}
    assert not warmer.has(1)
    warmer.gets(FIRST, f"models:/chat/1#sha256={digest(FIRST)}", endpoint, **TOKEN)


def test_an_alias_is_resolved_at_each_start_and_a_link_leads_to_its_version(
    warmer: Warmer, endpoint: str, mlflow: MLflow
) -> None:
    mlflow.point("chat", "champion", "1")
    said = warmer.gets(FIRST, "models:/chat@champion", endpoint, **TOKEN)
    first = warmer.destination.resolve()
    assert lines(said, FIRST=str(first))[0] == "models:/chat@champion is models:/chat/1 now"
    assert (first / "data/model 1.safetensors").read_bytes() == WEIGHTS

    mlflow.point("chat", "champion", "2")
    warmer.gets(SECOND, "models:/chat@champion", endpoint, **TOKEN)
    assert (first / "data/model 1.safetensors").exists(), "other pods have it mounted"

    again = warmer.gets(SECOND, "models:/chat@champion", endpoint, **TOKEN)
    assert again.splitlines() == [
        "models:/chat@champion is models:/chat/2 now",
        f"warm: {warmer.destination.resolve()} holds models:/chat/2",
    ]
    said = warmer.fails(f"models:/chat@champion#sha256={digest(FIRST)}", endpoint, **TOKEN)
    want = f"failed: models:/chat@champion: has digest {digest(SECOND)}, not {digest(FIRST)}"
    assert said.splitlines()[-1] == want


@cases(
    ("uri", "version"),
    stage=("models:/chat/production", "1"),
    newest=("models:/chat/latest", "2"),
)
def test_other_names_of_a_version(warmer: Warmer, endpoint: str, uri: str, version: str) -> None:
    said = warmer.gets(SECOND if version == "2" else FIRST, uri, endpoint, **TOKEN)

    assert said.splitlines()[0] == f"{uri} is models:/chat/{version} now"


def test_a_busy_registry_is_asked_again(warmer: Warmer, endpoint: str, store: Store) -> None:
    store.statuses = [503]

    said = warmer.gets(FIRST, "models:/chat/1", endpoint, **TOKEN)
    assert said.splitlines()[0] == (
        "listing: HTTPError: HTTP Error 503: Service Unavailable; trying again in 1 s"
    )


@cases(
    ("uri", "environment", "problem"),
    no_such_version=(
        "models:/chat/9",
        TOKEN,
        "HTTPError: HTTP Error 404: Model Version (name=chat, version=9) not found",
    ),
    no_such_alias=(
        "models:/chat@nope",
        TOKEN,
        "HTTPError: HTTP Error 400: Registered model alias nope not found.",
    ),
    no_version_in_the_stage=("models:/chat/Staging", TOKEN, "has no version in this stage"),
    no_credentials=("models:/chat/1", {}, "HTTPError: HTTP Error 401: no\N{REPLACEMENT CHARACTER} entry"),
    wrong_credentials=(
        "models:/chat/1",
        {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "wr0ngPassword"},
        "HTTPError: HTTP Error 401: no\N{REPLACEMENT CHARACTER} entry",
    ),
)
def test_what_the_registry_refuses_is_said_at_once(
    warmer: Warmer, endpoint: str, uri: str, environment: dict[str, str], problem: str
) -> None:
    assert warmer.fails(uri, endpoint, **environment) == f"failed: {uri}: {problem}\n"
    assert warmer.termination_log.read_text() == f"failed: {uri}: {problem}"


def test_the_credentials_are_sent_to_the_registry_and_in_no_log(
    warmer: Warmer, endpoint: str, store: Store, mlflow: MLflow
) -> None:
    mlflow.point("chat", "champion", "1")

    said = warmer.gets(FIRST, "models:/chat@champion", endpoint, **TOKEN)
    said += warmer.fails("models:/chat/9", endpoint, **TOKEN)
    said += warmer.fails(
        "models:/chat/1", endpoint, MLFLOW_TRACKING_USERNAME="me", MLFLOW_TRACKING_PASSWORD="pa55w0rd"
    )

    sent = {seen.headers["Authorization"] for seen in store.seen}
    assert sent == {"Bearer t0pS3cretToken", "Basic bWU6cGE1NXcwcmQ="}
    for secret in ("t0pS3cretToken", "pa55w0rd", "bWU6cGE1NXcwcmQ="):
        assert secret not in said + warmer.termination_log.read_text()
        assert secret not in "".join(map(str, warmer.destination.parent.rglob("*")))


def test_artifacts_in_a_bucket_are_read_by_its_client(warmer: Warmer, endpoint: str, mlflow: MLflow) -> None:
    version = mlflow.register("kept-in-s3", {}, "s3://models/chat")
    bucket = Store(objects={"models/chat/model.bin": WEIGHTS})
    keys = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "t0pS3cretKey", "AWS_REGION": "eu-1"}

    with serving(bucket, S3Handler) as url:
        said = warmer.gets(
            {"model.bin": WEIGHTS},
            f"models:/kept-in-s3/{version}",
            endpoint,
            f"--artifact-endpoint=s3={url}",
            **TOKEN,
            **keys,
        )
    assert "t0pS3cret" not in said
    assert "t0pS3cretToken" not in "".join(str(seen.headers) for seen in bucket.seen)


@cases(
    ("source", "problem"),
    databricks=(
        "dbfs:/databricks/model",
        "is in dbfs:/databricks/model, but only s3, gs, https and its own server can be read",
    ),
    azure=(
        "wasbs://models@account.blob.core.windows.net/chat",
        "is in wasbs://account.blob.core.windows.net/chat, but only s3, gs, https and its own server can be read",
    ),
)
def test_places_that_are_not_read(
    warmer: Warmer, endpoint: str, mlflow: MLflow, source: str, problem: str
) -> None:
    version = mlflow.register("elsewhere", {}, source)

    said = warmer.fails(f"models:/elsewhere/{version}", endpoint, **TOKEN)
    assert said == f"failed: models:/elsewhere/{version}: {problem}\n"
