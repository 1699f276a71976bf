"""The model fetcher over real TLS: it arrives whole, resumes, shares, and says why it fails."""

import fcntl
import hashlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.webhook.tools.fetch.conftest import MODEL, WHOLE, Warmer, lines
from tests.webhook.tools.fetch.servers import Store

pytestmark = [pytest.mark.processes(sentences=True), pytest.mark.usefixtures("url")]

SHA256 = hashlib.sha256(MODEL).hexdigest()


def until_it_says(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout
    said = ""
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(said)


def test_a_file_is_fetched_and_the_second_start_is_warm(warmer: Warmer, url: str, store: Store) -> None:
    said = warmer.gets(WHOLE, f"{url}#sha256={SHA256}")
    assert lines(said, URL=url, DIRECTORY=str(warmer.destination)) == [
        "URL: 1 file(s), 1.907 MiB, of which 0 B are here already",
        "done: DIRECTORY holds 1.907 MiB after N s",
    ]
    assert sorted(file.name for file in warmer.state.iterdir()) == ["lock", "marker.json"]

    requested = len(store.seen)
    code, said = warmer.run(f"{url}#sha256={SHA256}")

    assert (code, said) == (0, f"warm: {warmer.destination} holds {url}\n")
    assert len(store.seen) == requested


def test_a_dropped_connection_is_resumed_where_it_broke(warmer: Warmer, url: str, store: Store) -> None:
    store.cuts = [300_000, 200_000]

    said = warmer.gets(WHOLE, f"{url}#sha256={SHA256}")
    assert [seen.headers["Range"] for seen in store.bodies()] == [None, "bytes=300000-", "bytes=500000-"]
    assert store.sent == len(MODEL) + 1  # one byte for the probe
    assert "model.bin: OSError: got 300000 of 2000000 bytes; trying again in 1 s" in said.splitlines()


def test_another_range_than_requested_is_not_taken(warmer: Warmer, url: str, store: Store) -> None:
    store.cuts, store.claimed_start = [300_000], 7

    said = warmer.fails(url, MODEL_ATTEMPTS="2")

    assert said.splitlines()[-1] == f"failed: {url}: OSError: sent another range than requested"


@cases(
    ("number", "want"),
    terminated=(signal.SIGTERM, (143, "stopped; the next run resumes\n")),
    killed=(signal.SIGKILL, (-9, "")),
)
def test_a_stopped_run_is_resumed(
    warmer: Warmer, url: str, store: Store, number: signal.Signals, want: tuple[int, str]
) -> None:
    store.pause_at = 1_200_000
    process = warmer.start(url)
    assert store.paused.wait(60)
    until_it_says(process, "1 file(s)")
    part = next(iter((warmer.state / "partial").iterdir()))
    assert eventually(lambda: warmer.has(1_000_000))
    began = time.monotonic()
    code, said = warmer.stop(process, number)
    assert time.monotonic() - began < 30  # which a kubelet gives
    assert (code, said) == want
    assert warmer.files() == {}

    store.pause_at = None
    store.resume.set()
    kept = part.stat().st_size
    assert kept >= 1_000_000
    said = warmer.gets(WHOLE, f"{url}#sha256={SHA256}")
    assert store.bodies()[-1].headers["Range"] == f"bytes={kept}-"


@cases(
    ("ranges", "validator", "last"),
    resumed_by_its_time=(True, "Last-Modified", "bytes=300000-"),
    server_without_ranges=(False, "ETag", "bytes=300000-"),
    no_validator_to_resume_with=(True, None, None),
    validator_of_an_unknown_kind=(True, "X-Weak", None),
)
def test_what_cannot_be_resumed_starts_over(
    warmer: Warmer, url: str, store: Store, *, ranges: bool, validator: str | None, last: str | None
) -> None:
    store.ranges, store.validator, store.cuts = ranges, validator, [300_000]

    warmer.gets(WHOLE, f"{url}#sha256={SHA256}")
    assert store.bodies()[-1].headers["Range"] == last
    assert (store.sent >= 300_000 + len(MODEL)) is not (ranges and bool(last))


def test_a_new_version_is_never_mixed_with_the_old_part(warmer: Warmer, url: str, store: Store) -> None:
    store.cuts = [300_000] * 2
    warmer.fails(url, MODEL_ATTEMPTS="1")
    newer = MODEL[::-1]
    store.objects["/llama/model.bin"], store.cuts = newer, []

    warmer.gets({"model.bin": newer}, url)
    assert store.bodies()[-1].headers["Range"] is None


def test_a_wrong_checksum_installs_nothing_and_keeps_nothing(warmer: Warmer, url: str, store: Store) -> None:
    store.objects["/llama/model.bin"] = b"tampered"

    code, said = warmer.run(f"{url}#sha256={SHA256}")

    found = hashlib.sha256(b"tampered").hexdigest()
    assert code == 1
    assert said.splitlines()[-1] == f"failed: {url}: model.bin has checksum {found}, not {SHA256}"
    assert warmer.files() == {}
    assert list((warmer.state / "partial").iterdir()) == []


@cases(
    ("statuses", "code", "requested", "want"),
    transient_errors_pass=(
        [503, 429],
        0,
        4,
        [
            "listing: HTTPError: HTTP Error 503: Service Unavailable; trying again in N s",
            "listing: HTTPError: HTTP Error 429: Too Many Requests; trying again in N s",
            "URL: 1 file(s), 1.907 MiB, of which 0 B are here already",
            "done: DIRECTORY holds 1.907 MiB after N s",
        ],
    ),
    missing=([404], 1, 1, ["failed: URL: HTTPError: HTTP Error 404: Not Found"]),
    forbidden=([403], 1, 1, ["failed: URL: HTTPError: HTTP Error 403: Forbidden"]),
    bounded_attempts=(
        [500] * 9,
        1,
        3,
        [
            "listing: HTTPError: HTTP Error 500: Internal Server Error; trying again in N s",
            "listing: HTTPError: HTTP Error 500: Internal Server Error; trying again in N s",
            "failed: URL: HTTPError: HTTP Error 500: Internal Server Error",
        ],
    ),
)
def test_only_transient_errors_are_tried_again(
    warmer: Warmer, url: str, store: Store, *, statuses: list[int], code: int, requested: int, want: list[str]
) -> None:
    store.statuses = statuses

    got, said = warmer.run(url, MODEL_ATTEMPTS="3")

    assert (got, len(store.seen)) == (code, requested)
    assert lines(said, URL=url, DIRECTORY=str(warmer.destination)) == want
    assert warmer.termination_log.read_text() == (said.splitlines()[-1] if code else "")


def test_an_untrusted_certificate_is_said_at_once(warmer: Warmer, url: str, store: Store) -> None:
    code, said = warmer.run(url, SSL_CERT_FILE="/nonexistent")

    assert (code, store.seen) == (1, [])
    assert "CERTIFICATE_VERIFY_FAILED" in said
    assert "trying again" not in said


def test_of_two_at_once_one_downloads_and_the_other_waits(warmer: Warmer, url: str, store: Store) -> None:
    store.pause_at = 1_200_000
    first = warmer.start(url)
    assert store.paused.wait(60)
    second = warmer.start(url)
    said = until_it_says(second, warmer.destination.name)
    holder = re.sub(r"[\d-]+T[\d:]+Z", "TIME", (warmer.state / "lock").read_text())
    assert holder == f"{socket.gethostname()} (since TIME)"
    assert re.sub(r"[\d-]+T[\d:]+Z", "TIME", said) == (
        f"waiting for {holder}, which fetches into {warmer.destination}\n"
    )

    store.resume.set()

    last = lines(first.communicate(timeout=60)[0], DIRECTORY=str(warmer.destination))[-1]
    assert last == "done: DIRECTORY holds 1.907 MiB after N s"
    assert second.communicate(timeout=60)[0] == f"warm: {warmer.destination} holds {url}\n"
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(store.bodies()) == 1


def test_waiting_is_bounded_and_a_dead_holder_is_not_waited_for(
    warmer: Warmer, url: str, store: Store
) -> None:
    store.pause_at = 1_200_000
    first = warmer.start(url)
    assert store.paused.wait(60)

    said = warmer.fails(url, MODEL_LOCK_WAIT="1")

    holder = (warmer.state / "lock").read_text()
    assert lines(said, URL=url, DIRECTORY=str(warmer.destination), HOLDER=holder) == [
        "waiting for HOLDER, which fetches into DIRECTORY",
        "failed: URL: DIRECTORY is locked by HOLDER; gave up after N s",
    ]

    warmer.stop(first, signal.SIGKILL)
    store.pause_at = None
    store.resume.set()
    assert warmer.run(url, MODEL_LOCK_WAIT="1")[0] == 0


def test_a_holder_that_has_not_written_its_name_yet(warmer: Warmer, url: str) -> None:
    warmer.state.mkdir(parents=True)
    with (warmer.state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        said = warmer.fails(url, MODEL_LOCK_WAIT="1")

    assert lines(said, URL=url, DIRECTORY=str(warmer.destination)) == [
        "waiting for another pod, which fetches into DIRECTORY",
        "failed: URL: DIRECTORY is locked by another pod; gave up after N s",
    ]


def test_another_source_replaces_the_files_of_the_first_but_no_others(
    warmer: Warmer, web: str, url: str, store: Store
) -> None:
    store.objects["/mistral/other.bin"] = b"another model"
    assert warmer.run(url)[0] == 0
    (warmer.destination / "notes.txt").write_bytes(b"by hand")

    assert warmer.run(f"{web}/mistral/other.bin")[0] == 0

    assert warmer.files() == {"other.bin": b"another model", "notes.txt": b"by hand"}


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_damage_is_noticed_and_repaired(warmer: Warmer, url: str, damage: str) -> None:
    assert warmer.run(url)[0] == 0
    file = warmer.destination / "model.bin"
    file.unlink() if damage == "missing" else file.write_bytes(b"short")

    said = warmer.gets(WHOLE, url)
    last = lines(said, DIRECTORY=str(warmer.destination))[-1]
    assert last == "done: DIRECTORY holds 1.907 MiB after N s"


def test_a_new_checksum_counts(warmer: Warmer, url: str) -> None:
    assert warmer.run(url)[0] == 0

    code, said = warmer.run(f"{url}#sha256={0:064}")

    assert (code, warmer.files()) == (1, {})
    assert said.splitlines()[-1] == f"failed: {url}: model.bin has checksum {SHA256}, not {0:064}"


def test_a_query_is_part_of_the_source_but_its_text_is_kept_nowhere(
    warmer: Warmer, url: str, store: Store
) -> None:
    secret = "version=5fa91c0de5fa91c0de"
    assert warmer.run(f"{url}?{secret}")[0] == 0
    assert warmer.run(f"{url}?{secret}")[1].startswith("warm: ")
    marker = (warmer.state / "marker.json").read_text()
    assert "5fa91c0de" not in marker
    assert json.loads(marker)["source"].startswith(f"{url} ")

    store.objects["/llama/model.bin"] = b"version two"
    assert warmer.run(f"{url}?version=2")[0] == 0

    assert warmer.files() == {"model.bin": b"version two"}


@pytest.mark.parametrize("marker", ["no JSON", "[]", "{}", '{"source": "", "files": {"model.bin": 7}}'])
def test_a_marker_that_cannot_be_read_is_replaced(warmer: Warmer, url: str, marker: str) -> None:
    warmer.state.mkdir(parents=True)
    (warmer.state / "marker.json").write_text(marker)

    assert warmer.run(url)[0] == 0
    assert warmer.files() == {"model.bin": MODEL}
    assert warmer.run(url)[1].startswith("warm: ")


def test_a_full_disk_is_one_clear_line(warmer: Warmer, url: str) -> None:
    warmer.before = (shutil.which("prlimit") or "prlimit", "--fsize=300000")

    said = warmer.fails(url)

    assert said == (
        f"{url}: 1 file(s), 1.907 MiB, of which 0 B are here already\n"
        f"failed: {url}: OSError: [Errno 27] File too large\n"
    )


@cases(
    ("claimed", "limit", "problem"),
    disk=(1 << 60, "0", "needs 1.049e+06 TiB more, the cache has SIZE free"),
    limit=(None, "500000", "has 1.907 MiB, more than the cache's size limit of 488.3 KiB"),
)
def test_too_little_space_is_said_before_anything_is_fetched(
    warmer: Warmer, url: str, store: Store, *, claimed: int | None, limit: str, problem: str
) -> None:
    store.claimed_size = claimed

    code, said = warmer.run(url, "--size-limit", limit)

    assert (code, store.bodies()) == (1, [])
    assert re.sub(r"[\d.]+ [KMGT]iB(?= \w+\n)", "SIZE", said) == f"failed: {url}: {problem}\n"


@cases(
    ("claimed", "total", "whole"),
    known=(None, "1.907 MiB", "1.907 MiB"),
    unknown=("*", "0 B", "unknown size"),
)
def test_progress_names_bytes_total_and_rate(
    warmer: Warmer, url: str, store: Store, *, claimed: str | None, total: str, whole: str
) -> None:
    store.claimed_size, store.pause_at = claimed, 1_200_000

    first, progress = until_it_says(warmer.start(url), "/s").splitlines()

    assert first == f"{url}: 1 file(s), {total}, of which 0 B are here already"
    assert re.sub(r"^[\d.]+ \w+|[\d.]+ \w+(?=/s$)", "SIZE", progress) == f"SIZE of {whole}, SIZE/s"


def test_the_program_starts_with_what_its_image_has() -> None:
    """The clients come when they are needed, the webhook's libraries never: `--target fetcher` installs none of them."""
    elsewhere = {"flask", "gunicorn", "kubernetes", "prometheus_client", "rich", "jsonpatch", "boto3"}
    program = "import sys, webhook.commands.fetch_model as _; print(*{name.partition('.')[0] for name in sys.modules})"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert {"click", "msgspec"} <= set(done.stdout.split())
    assert not (elsewhere | {"huggingface_hub"}) & set(done.stdout.split())
