"""The audit log: whole lines from many threads, and a disk that is full changes no decision."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import cases
from webhook.serving.audit import AuditLog


def ignored(_lines: int) -> None:
    """Take note of no loss."""


def test_lines_of_many_threads_stay_whole(tmp_path: Path) -> None:
    lost: list[int] = []
    log = AuditLog.to(str(tmp_path / "audit.jsonl"), lost.append)
    log.start()

    def write(writer: int) -> None:
        for number in range(500):
            log.write({"writer": writer, "number": number, "padding": "x" * 200})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    log.stop()

    records = [msgspec.json.decode(line) for line in (tmp_path / "audit.jsonl").read_bytes().splitlines()]
    assert sorted((record["writer"], record["number"]) for record in records) == [
        (writer, number) for writer in range(8) for number in range(500)
    ]
    assert lost == []


def test_an_existing_log_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text("before\n")
    log = AuditLog.to(str(path), ignored)
    log.write({"after": True})
    log.stop()

    assert path.read_text() == 'before\n{"after":true}\n'


def test_a_full_disk_loses_lines_and_counts_them() -> None:
    lost: list[int] = []
    log = AuditLog.to("/dev/full", lost.append)
    for number in range(3):
        log.write({"number": number})
    log.stop()

    assert sum(lost) == 3


def test_a_line_cut_short_does_not_spoil_the_next(tmp_path: Path) -> None:
    script = """
import resource, signal, sys
from webhook.serving.audit import AuditLog
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
lost = []
log = AuditLog.to(sys.argv[1], lost.append)
resource.setrlimit(resource.RLIMIT_FSIZE, (30, resource.RLIM_INFINITY))
log.write({"first": "x" * 10})
log.write({"cut": "y" * 50})
log._flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.write({"next": "z"})
log.stop()
print(sum(lost))
"""
    path = tmp_path / "audit.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},  # noqa: PTH109 - the checkout under test
    )

    first, cut, following = path.read_text().splitlines()
    assert msgspec.json.decode(first) == {"first": "x" * 10}
    assert not cut.endswith("}")
    assert msgspec.json.decode(following) == {"next": "z"}
    assert done.stdout == "1\n"


@cases(("text", "lines"), of_short_lines=("", 10_000), of_long_lines=("x" * (16_384 - 15), 1_024))
def test_a_stuck_reader_holds_nobody_up_and_memory_is_bounded(text: str, lines: int) -> None:
    read_end, write_end = os.pipe()
    lost: list[int] = []
    log = AuditLog(write_end, lost.append)
    for _ in range(lines + 5):
        log.write({"message": text})

    assert sum(lost) == 5
    os.close(read_end)
    os.close(write_end)


def test_what_is_written_makes_room(tmp_path: Path) -> None:
    path, lost = tmp_path / "audit.jsonl", list[int]()
    log = AuditLog.to(str(path), lost.append)
    for _ in range(2):
        for _ in range(256):
            log.write({"message": "x" * (65_536 - 15)})
        log._flush()
    log.stop()

    assert (lost, path.stat().st_size) == ([], 2 * 256 * 65_536)


def test_a_long_line_goes_without_its_longest_fields(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog.to(str(path), ignored)
    patch = [{"op": "add", "path": "/spec/containers/0/startupProbe", "value": "x" * 3_000_000}]
    findings, owner = [{"message": "\x9b" * 40_000}], "Strange/" + "\N{BUG}" * 20_000
    log.write({"uid": "u", "operations": patch, "injected": [], "findings": findings, "owner": owner})
    log.stop()

    omitted = ["operations", "findings", "owner"]
    assert msgspec.json.decode(path.read_bytes()) == {"uid": "u", "injected": [], "omitted": omitted}


@given(
    st.dictionaries(
        st.sampled_from(["uid", "owner", "demand", "findings", "name", "quota"]),
        st.tuples(st.characters(codec="utf-8"), st.integers(0, 65_536)).map(lambda said: said[0] * said[1]),
    )
)
def test_no_line_is_longer_than_it_may_be_or_obeyed_by_a_terminal(record: dict[str, str]) -> None:
    read_end, write_end = os.pipe()
    log = AuditLog(write_end, ignored)
    log.write(record)

    (line,) = log._queued
    assert len(line) <= 65_536
    assert line.endswith(b"}\n")
    assert line[:-1].decode().isprintable()
    os.close(read_end)
    os.close(write_end)
