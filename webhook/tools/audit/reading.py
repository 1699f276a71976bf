"""Reads the lines of audit logs as a stream: from files, also gzipped or still growing, or from standard input."""

import gzip
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

STDIN = "-"
LONGEST_LINE = 1024 * 1024
"""Bytes; the webhook writes at most 64 KiB. A longer line counts as unreadable, and is skipped in parts."""


class Finding(msgspec.Struct, frozen=True):
    rule: str = ""
    outcome: str = ""


class AuditLine(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a line that are read; docs/audit-log.md describes them."""

    time: str
    phase: str
    kind: str
    verdict: str
    namespace: str = ""
    name: str = ""
    user: str = ""
    operation: str = ""
    dry_run: bool = False
    object_uid: str = ""
    owner: str = ""
    class_: str = msgspec.field(name="class", default="")
    demand: dict[str, str] | None = None
    since: str = ""
    findings: tuple[Finding, ...] = ()


class Counts(msgspec.Struct):
    """The number of lines, and how many of them were unreadable."""

    lines: int = 0
    unreadable: int = 0


_DECODE = msgspec.json.Decoder(AuditLine).decode


def audit_lines(
    files: Iterable[str], counts: Counts, wanted: Callable[[bytes], bool] = lambda _: True
) -> Iterator[AuditLine]:
    """Yield the lines of the files in order, if `wanted` accepts their bytes. Raises OSError, which names the file.

    Lines that are not JSON, such as the other log in `kubectl logs`, and truncated lines count as unreadable.
    """
    for name in files:
        for line in _lines(name, counts):
            counts.lines += 1
            if wanted(line):
                try:
                    yield _DECODE(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    counts.unreadable += 1
            elif not line.startswith(b"{"):
                counts.unreadable += 1


def _lines(name: str, counts: Counts) -> Iterator[bytes]:
    try:
        with _opened(name) as stream:
            while line := stream.readline(LONGEST_LINE):
                if line.isspace():
                    continue
                yield line
                while not line.endswith(b"\n") and (line := stream.readline(LONGEST_LINE)):
                    pass
    except (EOFError, zlib.error, gzip.BadGzipFile):
        counts.unreadable += 1  # a truncated gzip file: the lines before count
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), name) from None


def _opened(name: str) -> AbstractContextManager[BinaryIO]:
    if name == STDIN:
        return nullcontext(sys.stdin.buffer)
    if name.endswith(".gz"):
        return cast("BinaryIO", gzip.open(name))
    return Path(name).open("rb")
