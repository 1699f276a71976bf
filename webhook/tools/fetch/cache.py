"""The directory of one model, and beside it the directory `.NAME.warming` with its state: lock, marker and partial files.

The marker is written last. A model is complete if its files have the sizes in the marker. Partial files are named by path, size
and tag, so no run resumes the file of another version.
"""

import contextlib
import fcntl
import hashlib
import shutil
import socket
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import msgspec

from policies.models.warming.model_uri import ModelURI
from webhook.tools.fetch.report import FetchReport, PermanentError
from webhook.tools.fetch.sources import RemoteFile, safe

PROGRESS_SECONDS = 10  # seconds


class _Marker(msgspec.Struct, forbid_unknown_fields=True):
    """The last complete model. `files`: size and tag by path."""

    source: str
    files: dict[str, tuple[int, str]]


class ModelCache:
    def __init__(self, directory: Path, uri: ModelURI) -> None:
        self.directory = directory
        # A query may hold a signature, so the marker has its digest only.
        query = hashlib.sha256(uri.query.encode()).hexdigest()[:16] if uri.query else ""
        self._identity = " ".join([uri.shown, query, uri.text.partition("#")[2]]).strip()
        self._state = directory.parent / f".{directory.name}.warming"
        self._marker = self._state / "marker.json"
        self.partial = self._state / "partial"

    def is_warm(self) -> bool:
        """Whether the directory holds this model, complete."""
        marker = self._read_marker()
        if marker is None or marker.source != self._identity:
            return False
        try:
            return all(
                (self.directory / path).stat().st_size == size for path, (size, _) in marker.files.items()
            )
        except (OSError, ValueError):  # missing, or no path
            return False

    def lock(self, wait: float, report: FetchReport) -> TextIO:
        """Lock the model, and return the lock file, which names the holder. The lock lasts until the file is closed.

        Raises `PermanentError` if another pod still holds the lock after `wait` seconds.
        """
        self._state.mkdir(parents=True, exist_ok=True)
        file = (self._state / "lock").open("a+", encoding="utf-8")
        began, log_at = time.monotonic(), 0.0
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            file.seek(0)
            holder, waited = file.read() or "another pod", time.monotonic() - began
            if waited > wait:
                raise PermanentError(f"{self.directory} is locked by {holder}; gave up after {waited:.0f} s")
            if waited >= log_at:
                report.log(f"waiting for {holder}, which fetches into {self.directory}")
                log_at = waited + PROGRESS_SECONDS
            time.sleep(0.5)
        file.truncate(0)
        file.write(f"{socket.gethostname()} (since {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ})")
        file.flush()
        return file

    def partial_file(self, file: RemoteFile) -> Path:
        """Return the path of a file while it is fetched. Raises `PermanentError` if the file would be outside the directory."""
        return self._partial(file.path, file.size, file.tag)

    def fetched(self, files: Iterable[RemoteFile]) -> int:
        """Return how many bytes of these files are in partial files. Other threads may delete partial files meanwhile."""
        total = 0
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                total += self.partial_file(file).stat().st_size
        return total

    def reuse(self, files: list[RemoteFile]) -> None:
        """Prepare to fetch the files: reuse what earlier runs fetched, and delete the rest.

        Partial files of other versions are deleted. Files in the marker become partial files again if they are unchanged, or else
        they are deleted, and so is the marker.
        """
        self.partial.mkdir(exist_ok=True)
        wanted = {self.partial_file(file) for file in files}
        for stale in set(self.partial.iterdir()) - wanted:
            stale.unlink()
        marker = self._read_marker()
        if marker is None:
            return
        for path, (size, tag) in marker.files.items():
            target, partial = self.directory / safe(path), self._partial(path, size, tag)
            is_same = marker.source == self._identity and tag and partial in wanted
            if target.is_file() and is_same and target.stat().st_size == size:
                target.replace(partial)
            elif target.is_file():
                target.unlink()
        self._marker.unlink()

    def install(self, files: list[RemoteFile]) -> None:
        """Move the files, which are all fetched, to their places, and write the marker."""
        sizes_and_tags = {file.path: (self.fetched([file]), file.tag) for file in files}
        for file in files:
            target = self.directory / file.path
            if self.directory.resolve() not in (target.parent / "-").resolve().parents:
                raise PermanentError(f"would have {file.path} written through a link")
            target.parent.mkdir(parents=True, exist_ok=True)
            self.partial_file(file).replace(target)
        new = self._marker.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(_Marker(self._identity, sizes_and_tags)))
        new.replace(self._marker)
        shutil.rmtree(self.partial, ignore_errors=True)

    def _partial(self, path: str, size: int | None, tag: str) -> Path:
        return self.partial / hashlib.sha256(f"{safe(path)} {size} {tag}".encode()).hexdigest()[:32]

    def _read_marker(self) -> _Marker | None:
        """Return the marker of the last run. None if there is none, or it cannot be read."""
        try:
            return msgspec.json.decode(self._marker.read_bytes(), type=_Marker)
        except (OSError, msgspec.MsgspecError):
            return None
