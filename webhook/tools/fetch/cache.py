"""The directory of one model, and its state beside it in `.NAME.warming`: lock, marker and partial files.

The marker is written last: {"source": …, "files": {path: [size, tag]}}. A model whose marker and file sizes agree is complete.
Partial files are named by path, size and tag, so no run resumes another version.
"""

import contextlib
import fcntl
import hashlib
import json
import shutil
import socket
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from policies.models.warming.model_uri import ModelURI
from webhook.tools.fetch.report import FetchReport, LastingError
from webhook.tools.fetch.sources import RemoteFile, safe

SAY_EVERY = 10  # seconds


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
        try:
            left = self._left()
            sizes = {path: (self.directory / path).stat().st_size for path in left["files"]}
            held = {path: [sizes[path], tag] for path, (_, tag) in left["files"].items()}
            return bool(left == {"source": self._identity, "files": held})
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def lock(self, wait: float, report: FetchReport) -> TextIO:
        """Return the file whose lock lasts while it is open; it names its holder. Raises `LastingError` after `wait` seconds."""
        self._state.mkdir(parents=True, exist_ok=True)
        file = (self._state / "lock").open("a+", encoding="utf-8")
        began, say_at = time.monotonic(), 0.0
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            file.seek(0)
            holder, waited = file.read() or "another pod", time.monotonic() - began
            if waited > wait:
                raise LastingError(f"{self.directory} is locked by {holder}; gave up after {waited:.0f} s")
            if waited >= say_at:
                report.say(f"waiting for {holder}, which fetches into {self.directory}")
                say_at = waited + SAY_EVERY
            time.sleep(0.5)
        file.truncate(0)
        file.write(f"{socket.gethostname()} (since {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ})")
        file.flush()
        return file

    def partial_file(self, file: RemoteFile) -> Path:
        """Return the place of a file while it is fetched. Raises `LastingError` for a path that leads out."""
        return self._partial(file.path, file.size, file.tag)

    def fetched(self, files: Iterable[RemoteFile]) -> int:
        """Return the number of bytes in partial files of these files; other threads may delete them meanwhile."""
        found = 0
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                found += self.partial_file(file).stat().st_size
        return found

    def reuse(self, files: list[RemoteFile]) -> None:
        """Delete partial files of other versions. Files of the last run become partial files if they are still the same."""
        self.partial.mkdir(exist_ok=True)
        wanted = {self.partial_file(file) for file in files}
        for stale in set(self.partial.iterdir()) - wanted:
            stale.unlink()
        try:
            left = self._left()
        except (OSError, ValueError):
            return
        for path, (size, tag) in left["files"].items():
            target, kept = self.directory / safe(path), self._partial(path, size, tag)
            is_same = left["source"] == self._identity and tag and kept in wanted
            if target.is_file() and is_same and target.stat().st_size == size:
                target.replace(kept)
            elif target.is_file():
                target.unlink()
        self._marker.unlink()

    def install(self, files: list[RemoteFile]) -> None:
        """Move the files, all fetched, to their places and write the marker."""
        held = {file.path: (self.fetched([file]), file.tag) for file in files}
        for file in files:
            target = self.directory / file.path
            if self.directory.resolve() not in (target.parent / "-").resolve().parents:
                raise LastingError(f"would have {file.path} written through a link")
            target.parent.mkdir(parents=True, exist_ok=True)
            self.partial_file(file).replace(target)
        new = self._marker.with_suffix(".new")
        new.write_text(json.dumps({"source": self._identity, "files": held}), "utf-8")
        new.replace(self._marker)
        shutil.rmtree(self.partial, ignore_errors=True)

    def _partial(self, path: str, size: int | None, tag: str) -> Path:
        return self.partial / hashlib.sha256(f"{safe(path)} {size} {tag}".encode()).hexdigest()[:32]

    def _left(self) -> Any:
        return json.loads(self._marker.read_text("utf-8"))
