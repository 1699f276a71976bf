"""The model fetcher with a registry that answers what a real one does not, or only of other installations (`test_mlflow.py`)."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.cases import cases
from tests.webhook.tools.fetch.conftest import Identity, Warmer
from tests.webhook.tools.fetch.servers import GSHandler, Handler, Store, serving

pytestmark = pytest.mark.processes(sentences=True)

TOKEN = {"MLFLOW_TRACKING_TOKEN": "t0pS3cretToken"}
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"


class Registry(Handler):
    """Answers with the objects of the store, by the last part of the path."""

    def route(self, path: str, _query: dict[str, list[str]]) -> None:
        self.reply(200, self.server.store.objects[path.rpartition("/")[2]])


def answers(store: Store, **objects: Any) -> None:
    store.objects.update(
        {name.replace("_", "-"): json.dumps(body).encode() for name, body in objects.items()}
    )


@pytest.fixture
def endpoint(store: Store, authority: Identity) -> Iterator[str]:
    answers(store, get={"model_version": {"status": "READY"}}, alias={"model_version": {"version": "3"}})
    with serving(store, Registry, authority.context) as url:
        yield url


def placed(store: Store, place: str) -> None:
    answers(store, get_download_uri={"artifact_uri": place})


@cases(
    ("uri", "objects", "problem"),
    not_ready=(
        "models:/chat/3",
        {"get": {"model_version": {"status": "FAILED_REGISTRATION"}}},
        "has status FAILED_REGISTRATION, not READY",
    ),
    version_that_is_no_number=(
        "models:/chat@champion",
        {"alias": {"model_version": {"version": "../3"}}},
        "is version '../3' now, which is not a number",
    ),
    no_version=("models:/chat/latest", {"get_latest_versions": {}}, "has no version"),
    no_version_in_a_stage=(
        "models:/chat/Staging",
        {"get_latest_versions": {}},
        "has no version in this stage",
    ),
    plain_http_elsewhere=(
        "models:/chat/3",
        {"get_download_uri": {"artifact_uri": f"http://127.0.0.1:9{ARTIFACTS}/chat"}},
        f"is in http://127.0.0.1:9{ARTIFACTS}/chat, but only s3, gs, https and its own server can be read",
    ),
    artifacts_of_another_server=(
        "models:/chat/3",
        {"get_download_uri": {"artifact_uri": "mlflow-artifacts://elsewhere/chat"}},
        "is in mlflow-artifacts://elsewhere/chat, but only s3, gs, https and its own server can be read",
    ),
    name_that_leads_out=(
        "models:/chat/3",
        {
            "get_download_uri": {"artifact_uri": "mlflow-artifacts:/chat"},
            "artifacts": {"files": [{"path": "../evil", "is_dir": False}]},
        },
        "has an object named '../evil', which could lead out of the destination",
    ),
    claim_of_another_pod=(
        "models:/chat/3",
        {"get_download_uri": {"artifact_uri": "pvc://models/chat"}},
        "is in pvc://models/chat, but only s3, gs, https and its own server can be read",
    ),
)
def test_answers_that_are_not_followed(
    warmer: Warmer, store: Store, endpoint: str, *, uri: str, objects: dict[str, Any], problem: str
) -> None:
    answers(store, **objects)

    assert warmer.fails(uri, f"--endpoint={endpoint}", **TOKEN) == f"failed: {uri}: {problem}\n"


@pytest.mark.parametrize(
    "place", ["mlflow-artifacts:/", "mlflow-artifacts://HOST/", f"https://HOST{ARTIFACTS}/"]
)
def test_names_of_its_own_server(warmer: Warmer, store: Store, endpoint: str, place: str) -> None:
    placed(store, f"{place.replace('HOST', endpoint.partition('://')[2])}chat")
    answers(store, artifacts={"files": [{"path": "get"}]})

    warmer.gets({"get": store.objects["get"]}, "models:/chat/3", f"--endpoint={endpoint}/", **TOKEN)
    assert {seen.headers["Authorization"] for seen in store.seen} == {"Bearer t0pS3cretToken"}
    assert store.seen[-1].path == f"{ARTIFACTS}/chat/get"


def test_a_wrong_digest_is_refused(warmer: Warmer, store: Store, endpoint: str) -> None:
    placed(store, "mlflow-artifacts:/chat")
    answers(store, artifacts={"files": [{"path": "get"}]})
    file = hashlib.sha256(store.objects["get"]).hexdigest()
    found = hashlib.sha256(f"{file}  get\n".encode()).hexdigest()

    said = warmer.fails(f"models:/chat/3#sha256={'0' * 64}", f"--endpoint={endpoint}", **TOKEN)

    assert said.splitlines()[-1] == f"failed: models:/chat/3: has digest {found}, not {'0' * 64}"
    assert warmer.files() == {}


def test_a_file_elsewhere_is_fetched_without_any_credentials(
    warmer: Warmer, store: Store, endpoint: str, authority: Identity
) -> None:
    other = Store(objects={"/chat/model.bin": b"weights"})
    with serving(other, tls=authority.context) as url:
        placed(store, f"{url}/chat/model.bin")
        header = {"MODEL_HTTP_AUTHORIZATION": "Bearer t0pS3cretToken"}
        warmer.gets({"model.bin": b"weights"}, "models:/chat/3", f"--endpoint={endpoint}", **header)

    assert {seen.headers["Authorization"] for seen in other.seen} == {None}


class Google(GSHandler):
    """A store that answers only to the token for which its own endpoint changes a signed key."""

    def do_POST(self) -> None:  # noqa: N802 - the name that the server calls
        self.reply(
            200, b'{"access_token": "g00gleToken", "expires_in": 3600}', Content_Type="application/json"
        )

    def route(self, path: str, query: dict[str, list[str]]) -> None:
        if self.headers["Authorization"] == "Bearer g00gleToken":
            super().route(path, query)
        else:
            self.reply(401, b"{}")


def key_file(at: Path, server: str) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {"type": "service_account", "client_email": "models@example.com", "private_key": pem}
    at.write_text(json.dumps({**account, "token_uri": f"{server}/token"}))
    return str(at)


def test_a_model_in_a_bucket_is_fetched_by_a_key_file(
    warmer: Warmer, store: Store, endpoint: str, authority: Identity, tmp_path: Path
) -> None:
    bucket = Store(objects={"models/chat/model.bin": b"weights"})
    with serving(bucket, Google, authority.context) as url:
        placed(store, "gs://models/chat")
        key = {"GOOGLE_APPLICATION_CREDENTIALS": key_file(tmp_path / "key.json", url)}
        key["REQUESTS_CA_BUNDLE"] = str(authority.file)
        arguments = f"--endpoint={endpoint}", f"--artifact-endpoint=gs={url}"
        warmer.gets({"model.bin": b"weights"}, "models:/chat/3", *arguments, **TOKEN, **key)

    assert {seen.headers["Authorization"] for seen in store.seen} == {"Bearer t0pS3cretToken"}


def test_nothing_in_the_environment_names_the_registry(warmer: Warmer, store: Store, endpoint: str) -> None:
    elsewhere = dict.fromkeys(("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"), endpoint)

    assert warmer.fails("models:/chat/3", **elsewhere) == (
        "failed: models:/chat/3: needs --endpoint, the MLflow server\n"
    )
    assert store.seen == []


@cases(
    ("arguments", "problem"),
    image=(("oci://ghcr.io/chat:v1",), "oci://ghcr.io/chat:v1: is mounted by the kubelet, not fetched"),
    store_of_no_source=(
        ("models:/chat/3", "--artifact-endpoint=hf=https://hub"),
        "models:/chat/3: Invalid value for '--artifact-endpoint': must be s3=URL or gs=URL",
    ),
    store_without_an_address=(
        ("models:/chat/3", "--artifact-endpoint=s3"),
        "models:/chat/3: Invalid value for '--artifact-endpoint': must be s3=URL or gs=URL",
    ),
)
def test_arguments_that_are_not_valid(warmer: Warmer, arguments: tuple[str, ...], problem: str) -> None:
    assert warmer.run(*arguments) == (2, f"failed: {problem}\n")


def test_a_folder_in_the_place_of_the_link_stays(warmer: Warmer, store: Store, endpoint: str) -> None:
    placed(store, "mlflow-artifacts:/chat")
    store.objects["artifacts"] = json.dumps({"files": [{"path": "artifacts"}]}).encode()
    warmer.destination.mkdir()
    (warmer.destination / "mine").touch()

    said = warmer.fails("models:/chat@champion", f"--endpoint={endpoint}", **TOKEN)

    assert "IsADirectoryError" in said.splitlines()[-1]
    assert [file.name for file in Path(warmer.destination).iterdir()] == ["mine"]
