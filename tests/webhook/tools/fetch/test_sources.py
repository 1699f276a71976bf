"""The model fetcher with the real client libraries against loopback stores, and with a claim."""

import hashlib
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import pytest

from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.webhook.tools.fetch.conftest import Warmer, lines
from tests.webhook.tools.fetch.servers import GSHandler, HubHandler, S3Handler, Store, serving

pytestmark = pytest.mark.processes(sentences=True)

WEIGHTS = random.Random(7).randbytes(2_000_000)  # noqa: S311 - any bytes will do
SHARD = random.Random(8).randbytes(300_000)  # noqa: S311 - likewise
MODEL = {"config.json": b"{}", "model.safetensors": WEIGHTS, "shards/2.bin": SHARD, "empty": b""}
AWS = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "t0pS3cretKey", "AWS_REGION": "eu-west-1"}
HUB = {"HF_TOKEN": "hf_t0pS3cretKey"}
ENDPOINTS = ("AWS_ENDPOINT_URL", "HF_ENDPOINT", "STORAGE_EMULATOR_HOST", "API_ENDPOINT_OVERRIDE")


@dataclass
class Source:
    """A store that serves MODEL: its URI, the options and environment of the program, the prefix of its object names."""

    uri: str
    options: tuple[str, ...]
    environment: dict[str, str]
    prefix: str

    def fetch(self, warmer: Warmer, below: str = "", **environment: str) -> tuple[int, str]:
        return warmer.run(self.uri + below, *self.options, **self.environment, **environment)

    def gets(self, warmer: Warmer, files: dict[str, bytes], below: str = "", **environment: str) -> str:
        return warmer.gets(files, self.uri + below, *self.options, **self.environment, **environment)

    def fails(self, warmer: Warmer) -> str:
        return warmer.fails(self.uri, *self.options, **self.environment)

    def only_weights(self, store: Store) -> None:
        for name in MODEL.keys() - {"model.safetensors"}:
            del store.objects[self.prefix + name]

    def stopped(self, warmer: Warmer, store: Store, least: int, number: signal.Signals) -> int:
        """Stop a run that has so many bytes of the weights; return its exit code."""
        self.only_weights(store)
        store.pause_at = 1_200_000
        process = warmer.start(self.uri, *self.options, **self.environment)
        assert store.paused.wait(60)
        assert eventually(lambda: warmer.has(least))
        began = time.monotonic()
        code, _ = warmer.stop(process, number)
        assert time.monotonic() - began < 30  # which a kubelet gives
        store.pause_at = None
        store.resume.set()
        return code


@pytest.fixture(params=["s3", "gs", "hf"])
def source(request: pytest.FixtureRequest, store: Store) -> Iterator[Source]:
    handler = {"s3": S3Handler, "gs": GSHandler, "hf": HubHandler}[request.param]
    prefix = "" if request.param == "hf" else "models/llama/"
    with serving(store, handler) as url:
        endpoint = ("--endpoint", url)
        made = {
            "s3": Source("s3://models/llama", endpoint, AWS, prefix),
            "gs": Source("gs://models/llama", endpoint, {}, prefix),
            "hf": Source("hf://meta/llama@main", endpoint, HUB, prefix),
        }[request.param]
        store.objects.update({prefix + name: body for name, body in MODEL.items()})
        yield made


def test_a_folder_is_fetched_and_the_second_start_asks_nothing(
    warmer: Warmer, source: Source, store: Store
) -> None:
    store.objects["models/llama-2/other.bin"] = b"a neighbour whose name begins the same"
    if not source.prefix:
        del store.objects["models/llama-2/other.bin"]

    said = source.gets(warmer, MODEL)
    assert lines(said, URI=source.uri, DIRECTORY=str(warmer.destination)) == [
        "URI: 4 file(s), 2.193 MiB, of which 0 B are here already",
        "done: DIRECTORY holds 2.193 MiB after N s",
    ]
    assert sorted(file.name for file in warmer.state.iterdir()) == ["lock", "marker.json"]

    requested = len(store.seen)
    assert source.fetch(warmer) == (0, f"warm: {warmer.destination} holds {source.uri}\n")
    assert len(store.seen) == requested


def test_a_dropped_connection_is_resumed(warmer: Warmer, source: Source, store: Store) -> None:
    source.only_weights(store)
    store.cuts = [600_000]

    source.gets(warmer, {"model.safetensors": WEIGHTS})
    assert store.sent <= len(WEIGHTS) + 300_000  # at most one buffer is fetched twice
    assert any((seen.headers["Range"] or "bytes=0-") != "bytes=0-" for seen in store.bodies())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_is_resumed(
    warmer: Warmer, source: Source, store: Store, number: signal.Signals
) -> None:
    code = source.stopped(warmer, store, 900_000, number)

    assert code == (143 if number == signal.SIGTERM else -number)
    assert warmer.files() == {}
    assert eventually(lambda: not store.pouring), "what was sent to the first run is counted"
    before = store.sent

    source.gets(warmer, {"model.safetensors": WEIGHTS})
    assert store.sent - before <= len(WEIGHTS) - 900_000


def test_transient_errors_pass(warmer: Warmer, source: Source, store: Store) -> None:
    store.statuses = [503]

    source.gets(warmer, MODEL)


@pytest.mark.parametrize("status", [401, 404])
def test_lasting_errors_are_said_at_once(warmer: Warmer, source: Source, store: Store, status: int) -> None:
    store.statuses = [status] * 20

    said = source.fails(warmer)

    assert said.count("\n") == 1
    assert said.startswith(f"failed: {source.uri}: ")
    assert str(status) in said or (status == 401 and "Anonymous credentials" in said)
    assert "t0pS3cretKey" not in said


def test_a_source_without_files_fails(warmer: Warmer, source: Source, store: Store) -> None:
    store.objects.clear()

    assert source.fetch(warmer) == (1, f"failed: {source.uri}: holds no files\n")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        pytest.param("s3", "../evil", id="s3-parent"),
        pytest.param("gs", "../evil", id="gs-parent"),
        pytest.param("hf", "../evil", id="hf-parent"),
        pytest.param("s3", "a/../../evil", id="parent-inside"),
        pytest.param("s3", "/evil", id="absolute"),
        pytest.param("s3", "a\\..\\evil", id="backslash"),
    ],
    indirect=["source"],
)
def test_names_that_lead_out_are_refused(warmer: Warmer, source: Source, store: Store, name: str) -> None:
    store.objects[source.prefix + name] = b"evil"

    said = source.fails(warmer)

    problem = f"has an object named {name!r}, which could lead out of the destination"
    assert said == f"failed: {source.uri}: {problem}\n"
    assert warmer.files() == {}
    assert not list(warmer.destination.parent.rglob("*evil"))


def test_a_link_in_the_destination_is_not_written_through(
    warmer: Warmer, source: Source, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    warmer.destination.mkdir()
    (warmer.destination / "shards").symlink_to(outside)

    said = source.fails(warmer)

    problem = "would have shards/2.bin written through a link"
    assert said.splitlines()[-1] == f"failed: {source.uri}: {problem}"
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("source", ["s3", "gs"], indirect=True)
@cases(
    ("below", "want"),
    folder=("/shards", {"2.bin": SHARD}),
    folder_with_slash=("/shards/", {"2.bin": SHARD}),
    one_object=("/shards/2.bin", {"2.bin": SHARD}),
)
def test_what_a_prefix_names(
    warmer: Warmer, source: Source, store: Store, below: str, want: dict[str, bytes]
) -> None:
    store.objects["models/llama/shards/"] = b""  # the placeholder that consoles create for a folder

    source.gets(warmer, want, below)


def checksum(source: Source, body: bytes) -> str:
    """Return the checksum that the store has of a body, in hexadecimal digits."""
    is_hub = source.uri.startswith("hf://")
    return hashlib.sha256(body).hexdigest() if is_hub else f"{google_crc32c.value(body):08x}"


@pytest.mark.parametrize("source", ["gs", "hf"], indirect=True)
def test_content_that_does_not_match_its_checksum_is_refused(
    warmer: Warmer, source: Source, store: Store
) -> None:
    source.stopped(warmer, store, 500_001, signal.SIGKILL)
    (part,) = (
        file
        for file in (warmer.state / "partial").rglob("*")
        if file.is_file() and file.stat().st_size > 500_000
    )
    with part.open("r+b") as file:
        file.write(b"rotten")

    said = source.fails(warmer)

    found, want = (checksum(source, body) for body in (b"rotten" + WEIGHTS[6:], WEIGHTS))
    assert said.splitlines()[-1] == (
        f"failed: {source.uri}: model.safetensors has checksum {found}, not {want}"
    )
    assert warmer.files() == {}
    assert source.fetch(warmer)[0] == 0
    assert warmer.files() == {"model.safetensors": WEIGHTS}


def test_the_hub_is_asked_for_the_revision_with_the_token(warmer: Warmer, store: Store) -> None:
    store.objects.update(MODEL)
    with serving(store, HubHandler) as url:
        code, _ = warmer.run("hf://meta/llama@refs/pr/1", "--endpoint", url, HF_TOKEN="hf_example")

    assert code == 0
    assert store.seen[0].path == "/api/models/meta/llama/revision/refs%2Fpr%2F1?blobs=true"
    assert {seen.headers["Authorization"] for seen in store.seen} == {"Bearer hf_example"}


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    root = tmp_path / "claim"
    for name, body in MODEL.items():
        (root / "llama" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "llama" / name).write_bytes(body)
    return root


def test_a_claim_is_copied_and_the_second_start_is_warm_without_it(warmer: Warmer, claim: Path) -> None:
    said = warmer.gets(MODEL, "pvc://models/llama", "--claim-mount", str(claim))
    assert lines(said, DIRECTORY=str(warmer.destination)) == [
        "pvc://models/llama: 4 file(s), 2.193 MiB, of which 0 B are here already",
        "done: DIRECTORY holds 2.193 MiB after N s",
    ]
    code, said = warmer.run("pvc://models/llama", "--claim-mount", "/nonexistent")
    assert (code, said) == (0, f"warm: {warmer.destination} holds pvc://models/llama\n")


def test_one_file_of_a_claim(warmer: Warmer, claim: Path) -> None:
    warmer.gets({"2.bin": SHARD}, "pvc://models/llama/shards/2.bin", "--claim-mount", str(claim))


def test_links_inside_a_claim_are_followed(warmer: Warmer, claim: Path) -> None:
    snapshot = claim / "snapshots" / "c0ffee"  # as the hub's cache lays it out
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../llama/model.safetensors")

    warmer.gets({"model.safetensors": WEIGHTS}, "pvc://models/snapshots/c0ffee", "--claim-mount", str(claim))


@cases(
    ("closed", "code", "last"),
    of_the_file_system=("lost+found", 0, "done: DIRECTORY holds 1 B after N s"),
    of_the_model=(
        "shards",
        1,
        f"failed: pvc://models: has folders that user {os.getuid()} may not read: 'shards'",
    ),
)
def test_a_folder_that_may_not_be_read_is_not_passed_over(
    warmer: Warmer, tmp_path: Path, *, closed: str, code: int, last: str
) -> None:
    if os.geteuid() == 0:  # root without the right to read everything
        warmer.before = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    for name in ("a", closed):
        (tmp_path / "claim" / name).mkdir(parents=True)
    (tmp_path / "claim" / "a" / "b").write_text("c")
    (tmp_path / "claim" / closed).chmod(0)

    got, said = warmer.run("pvc://models", "--claim-mount", str(tmp_path / "claim"))

    assert (got, lines(said, DIRECTORY=str(warmer.destination))[-1]) == (code, last)
    assert warmer.files() == ({} if code else {"a/b": b"c"})


@cases(
    ("uri", "problem"),
    link_out=("pvc://models/leak", "has 'passwd', which leads out of claim models"),
    path_out=("pvc://models/out", "has 'key', which leads out of claim models"),
    linked_folder=(
        "pvc://models/looped",
        "has 'MOUNT/looped/again', a link to no file, which is not followed",
    ),
    missing=("pvc://models/nothing", "holds no files"),
)
def test_a_claim_is_not_left(warmer: Warmer, claim: Path, uri: str, problem: str) -> None:
    (claim.parent / "secret").mkdir()
    (claim.parent / "secret" / "key").write_text("secret")
    (claim / "out").symlink_to("../secret")
    (claim / "leak").mkdir()
    (claim / "leak" / "passwd").symlink_to("/etc/passwd")
    (claim / "looped").mkdir()
    (claim / "looped" / "again").symlink_to(".")

    code, said = warmer.run(uri, "--claim-mount", str(claim))

    assert (code, lines(said, MOUNT=str(claim.resolve()))) == (1, [f"failed: {uri}: {problem}"])
    assert warmer.files() == {}


@pytest.fixture
def stranger() -> Iterator[tuple[Store, str]]:
    """Yield a server that somebody other than the policy names."""
    elsewhere = Store()
    with serving(elsewhere) as url:
        yield elsewhere, url


def test_nothing_in_the_environment_leads_credentials_elsewhere(
    warmer: Warmer, source: Source, store: Store, stranger: tuple[Store, str]
) -> None:
    elsewhere, url = stranger

    source.gets(warmer, MODEL, **dict.fromkeys(ENDPOINTS, url), AWS_ENDPOINT_URL_S3=url)
    assert elsewhere.seen == []
    assert store.seen


PROVIDERS = {
    "s3": ("s3://models/llama", "https://models.s3.amazonaws.com"),
    "gs": ("gs://models/llama", "https://storage.googleapis.com"),
    "hf": ("hf://meta/llama", "https://huggingface.co"),
}


@pytest.mark.parametrize("scheme", PROVIDERS)
def test_without_an_endpoint_only_the_provider_is_asked(
    warmer: Warmer, scheme: str, stranger: tuple[Store, str]
) -> None:
    """A proxy shows which host a client would reach; it refuses all."""
    elsewhere, url = stranger
    uri, host = PROVIDERS[scheme]
    endpoints = dict.fromkeys(ENDPOINTS, "http://127.0.0.1:9")

    code, said = warmer.run(uri, "--attempts=1", **AWS, **HUB, **endpoints, HTTPS_PROXY=url)

    assert code == 1, said
    assert {(seen.method, f"https://{seen.path.removesuffix(':443')}") for seen in elsewhere.seen} == {
        ("CONNECT", host)
    }
    assert "t0pS3cretKey" not in "".join(str(seen.headers) for seen in elsewhere.seen)
