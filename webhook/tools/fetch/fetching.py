"""One run of the fetcher: waits for other runs, lists, checks free space, fetches in parallel, retries, verifies and installs.

Beside the directory of a model is the directory `.NAME.warming` with its state: lock, marker and partial files. The marker is
written last. A model is complete if its files have the sizes in the marker. Partial files are named by path, size and tag (what
the source says of the version: an ETag, a digest), so no run resumes the file of another version.
"""

import concurrent.futures
import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

import msgspec

from policies.models.warming.model_uri import ModelURI, parse_model_uri
from policies.pods.annotations import BadAnnotation
from webhook.tools.fetch.report import EXIT_STOPPED, FetchReport, PermanentError, describe, human_size
from webhook.tools.fetch.sources import BUFFER, RemoteFile, checked_path, current_version, model_files

PROGRESS_SECONDS = 10
PERMANENT_ERRORS = frozenset({
    "EACCES", "EDQUOT", "EEXIST", "EFBIG", "EISDIR", "ENAMETOOLONG", "ENOENT", "ENOLCK", "ENOSPC", "ENOSYS", "ENOTDIR", "ENOTSUP",
    "EPERM", "EROFS",
})  # fmt: skip
TRANSIENT_STATUSES = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)


class _Marker(msgspec.Struct, forbid_unknown_fields=True):
    """The last complete model. `files`: size and tag by path."""

    source: str
    files: dict[str, tuple[int, str]]


class ModelCache:
    """The directory of one model, and `.NAME.warming` beside it. The model is *warm* if the directory has all of it."""

    def __init__(self, directory: Path, uri: ModelURI) -> None:
        self.directory = directory
        # A query may hold a signature, so the marker has its digest only.
        query = hashlib.sha256(uri.query.encode()).hexdigest()[:16] if uri.query else ""
        self._identity = " ".join([uri.redacted, query, uri.text.partition("#")[2]]).strip()
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

    def fetched_bytes(self, files: Iterable[RemoteFile]) -> int:
        """Return how many bytes of these files are in partial files. Other threads may delete partial files meanwhile."""
        total = 0
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                total += self.partial_file(file).stat().st_size
        return total

    def reuse(self, files: list[RemoteFile]) -> None:
        """Prepare to fetch the files: reuse what earlier runs fetched, and delete the rest.

        Deletes partial files of other versions. Moves unchanged files of the marker back to partial files, deletes the others,
        then deletes the marker.
        """
        self.partial.mkdir(exist_ok=True)
        wanted = {self.partial_file(file) for file in files}
        for stale in set(self.partial.iterdir()) - wanted:
            stale.unlink()
        marker = self._read_marker()
        if marker is None:
            return
        for path, (size, tag) in marker.files.items():
            target, partial = self.directory / checked_path(path), self._partial(path, size, tag)
            is_same = marker.source == self._identity and tag and partial in wanted
            if target.is_file() and is_same and target.stat().st_size == size:
                target.replace(partial)
            elif target.is_file():
                target.unlink()
        self._marker.unlink()

    def install(self, files: list[RemoteFile]) -> None:
        """Move the files, which are all fetched, to their places, and write the marker."""
        sizes_and_tags = {file.path: (self.fetched_bytes([file]), file.tag) for file in files}
        for file in files:
            target = self.directory / file.path
            if not target.parent.resolve().is_relative_to(self.directory.resolve()):
                raise PermanentError(f"would have {file.path} written through a link")
            target.parent.mkdir(parents=True, exist_ok=True)
            self.partial_file(file).replace(target)
        new = self._marker.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(_Marker(self._identity, sizes_and_tags)))
        new.replace(self._marker)
        shutil.rmtree(self.partial, ignore_errors=True)

    def _partial(self, path: str, size: int | None, tag: str) -> Path:
        return self.partial / hashlib.sha256(f"{checked_path(path)} {size} {tag}".encode()).hexdigest()[:32]

    def _read_marker(self) -> _Marker | None:
        """Return the marker of the last run. None if there is none, or it cannot be read."""
        try:
            return msgspec.json.decode(self._marker.read_bytes(), type=_Marker)
        except (OSError, msgspec.MsgspecError):
            return None


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """Options of the command. size_limit: in bytes. parallel: files at one time. attempts: failures without progress.

    endpoints: servers by scheme, that of the URI and those of the stores of a registry.
    """

    endpoints: Mapping[str, str]
    claim_mount: Path
    size_limit: int | None
    parallel: int
    attempts: int


def fetch_model(uri: ModelURI, directory: Path, lock_wait: int, options: FetchOptions) -> NoReturn:
    """Fetch a model unless the directory has it, and end the process. `lock_wait`: seconds.

    An alias or a stage of a registry moves. Its directory is a link to the directory of the version, because other pods may have
    mounted that one, or name the version in their URIs.
    """
    report = FetchReport(uri.redacted, uri.query)
    signal.signal(signal.SIGTERM, lambda *_: report.end(EXIT_STOPPED, "stopped; the next run resumes"))
    os.umask(0o002)  # pods that share a claim have the same fsGroup, but may have different users
    try:
        link, uri, directory = _resolve_version(uri, directory, report, options)
        cache = ModelCache(directory, uri)
        # The lock is held until its file is closed.
        lock = None if cache.is_warm() else cache.lock(lock_wait, report)
        outcome = f"warm: {directory} holds {uri.redacted}"
        if lock and not cache.is_warm():
            outcome = _Run(uri, cache, report, options).fetch()
        if link:
            _link_to(link, directory)
    except Exception as error:  # noqa: BLE001 - whatever a client library raises becomes one line
        report.fail(describe(error))
    report.end(0, outcome)


def _resolve_version(
    uri: ModelURI, directory: Path, report: FetchReport, options: FetchOptions
) -> tuple[Path | None, ModelURI, Path]:
    """Return a link to make, and the URI and the directory of the version that an alias or a stage names now."""
    if not uri.is_mutable:
        return None, uri, directory
    endpoint = options.endpoints.get(uri.scheme)
    version = retry(report, options.attempts, "registry", lambda: current_version(uri, endpoint))
    at_version = parse_model_uri(uri.at_version(version))
    if isinstance(at_version, BadAnnotation):
        raise PermanentError(f"is version {version!r} now, which is not a number")
    report.log(f"{uri.redacted} is {at_version.redacted} now")
    return directory, at_version, directory.with_name(at_version.directory)


def _link_to(link: Path, directory: Path) -> None:
    """Make the link to a directory beside it, which a kubelet follows when it mounts a subPath (`pkg/volume/util/subpath`)."""
    new = link.with_name(f".{link.name}.{socket.gethostname()}")
    new.unlink(missing_ok=True)
    new.symlink_to(directory.name)
    new.replace(link)


class _Run(NamedTuple):
    """A model to fetch. Sizes are in bytes."""

    uri: ModelURI
    cache: ModelCache
    report: FetchReport
    options: FetchOptions

    def fetch(self) -> str:
        """Fetch all files, and return what to say of it."""
        began = time.monotonic()
        endpoints, claim_mount = self.options.endpoints, self.options.claim_mount
        attempts = self.options.attempts
        files = retry(self.report, attempts, "listing", lambda: model_files(self.uri, endpoints, claim_mount))
        if not files:
            raise PermanentError("holds no files")
        self.cache.reuse(files)
        total = sum(file.size or 0 for file in files)
        self._check_space(files, total)
        with concurrent.futures.ThreadPoolExecutor(self.options.parallel) as pool:
            self._wait({pool.submit(self._fetch_file, file) for file in files}, files, total)
        self._check_digest(files)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what follows only renames files
        self.cache.install(files)
        took = time.monotonic() - began
        return f"done: {self.cache.directory} holds {human_size(total)} after {took:.1f} s"

    def _check_digest(self, files: list[RemoteFile]) -> None:
        """Compare the digest of a model of a registry: of what `sha256sum` prints of its files, in the order of their paths."""
        if self.uri.scheme != "models" or not self.uri.digest:
            return
        of_all_files = hashlib.sha256()
        for file in sorted(files, key=lambda file: file.path.encode()):
            with self.cache.partial_file(file).open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            of_all_files.update(f"{digest}  {file.path}\n".encode())
        if (found := of_all_files.hexdigest()) != self.uri.digest:
            shutil.rmtree(self.cache.partial)
            raise PermanentError(f"has digest {found}, not {self.uri.digest}")

    def _check_space(self, files: list[RemoteFile], total: int) -> None:
        fetched, free = self.cache.fetched_bytes(files), shutil.disk_usage(self.cache.partial).free
        if (limit := self.options.size_limit) and total > limit:
            raise PermanentError(
                f"has {human_size(total)}, more than the cache's size limit of {human_size(limit)}"
            )
        if total - fetched > free:
            raise PermanentError(
                f"needs {human_size(total - fetched)} more, the cache has {human_size(free)} free"
            )
        already_fetched = f"of which {human_size(min(fetched, total))} are here already"
        self.report.log(f"{self.uri.redacted}: {len(files)} file(s), {human_size(total)}, {already_fetched}")

    def _wait(
        self, pending: set[concurrent.futures.Future[None]], files: list[RemoteFile], total: int
    ) -> None:
        """Wait for all files. Log the progress every 10 s, and every 5 %."""
        first = last = self.cache.fetched_bytes(files)
        began = logged_at = time.monotonic()
        while pending:
            done, pending = concurrent.futures.wait(pending, 1, concurrent.futures.FIRST_EXCEPTION)
            if error := next(filter(None, (future.exception() for future in done)), None):
                # `fail` ends the process at once. An exception would wait for the pool.
                self.report.fail(describe(error))
            fetched, now = self.cache.fetched_bytes(files), time.monotonic()
            if pending and (now - logged_at >= PROGRESS_SECONDS or fetched - last >= (total or fetched) / 20):
                total_text = human_size(total) if total else "unknown size"
                self.report.log(
                    f"{human_size(fetched)} of {total_text}, {human_size(max(fetched - first, 0) / (now - began))}/s"
                )
                last, logged_at = fetched, now

    def _fetch_file(self, file: RemoteFile) -> None:
        """Fetch the missing part of a file and compare its digest. Raises errors of the source, and `PermanentError`."""
        partial = self.cache.partial_file(file)
        size = functools.partial(self.cache.fetched_bytes, [file])

        def attempt() -> None:
            fetched = size() if file.tag and file.size is not None else 0
            with partial.open("ab" if 0 < fetched <= (file.size or 0) else "wb") as target:
                if fetched != file.size:
                    file.pull(target.tell(), target)
            if file.size not in (None, size()):
                raise OSError(f"got {size()} of {file.size} bytes")

        retry(self.report, self.options.attempts, file.path, attempt, size)
        if file.expected:
            with partial.open("rb") as content:
                while chunk := content.read(BUFFER):
                    file.hash.update(chunk)
            if (digest := file.hash.digest().hex()) != file.expected:
                partial.unlink()
                raise PermanentError(f"{file.path} has checksum {digest}, not {file.expected}")


def retry(
    report: FetchReport,
    attempts: int,
    subject: str,
    action: Callable[[], Any],
    progress: Callable[[], int] = lambda: 0,
) -> Any:
    """Retry after transient errors. An attempt that made progress resets the count."""
    tries, best = 0, progress()
    while True:
        try:
            return action()
        except Exception as error:
            tries = 1 if progress() > best else tries + 1
            best = max(best, progress())
            if is_permanent(error) or tries >= attempts:
                raise
            delay = min(2 ** (tries - 1), 30)
            report.log(f"{subject}: {describe(error)}; trying again in {delay} s")
            time.sleep(delay)


def is_permanent(error: Any) -> bool:
    """Whether a retry would fail again. Client libraries have the HTTP status in different attributes."""
    response = getattr(error, "response", None)
    code = getattr(error, "code", None) or getattr(response, "status_code", None)
    if isinstance(response, dict):
        code = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if isinstance(code, int):
        return code < HTTPStatus.INTERNAL_SERVER_ERROR and code not in TRANSIENT_STATUSES
    return bool(
        isinstance(error, (PermanentError, ImportError))
        or errno.errorcode.get(getattr(error, "errno", None) or 0, "-") in PERMANENT_ERRORS
        or re.search("Credentials|InvalidOperation", type(error).__name__)
        or "CERTIFICATE_VERIFY_FAILED" in str(error)
    )
