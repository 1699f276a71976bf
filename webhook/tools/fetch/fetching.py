"""One run of the fetcher: waits for other runs, lists, checks free space, fetches in parallel, retries, verifies and installs."""

import concurrent.futures
import errno
import functools
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from policies.models.warming.model_uri import ModelURI
from webhook.tools.fetch.cache import PROGRESS_SECONDS, ModelCache
from webhook.tools.fetch.report import STOPPED, FetchReport, PermanentError, describe, human_size
from webhook.tools.fetch.sources import BUFFER, RemoteFile, list_files

PERMANENT_ERRORS = (
    "EACCES EDQUOT EEXIST EFBIG EISDIR ENAMETOOLONG ENOENT ENOLCK ENOSPC ENOSYS ENOTDIR ENOTSUP EPERM EROFS"
)
TRANSIENT_STATUSES = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)


def fetch_model(uri: ModelURI, directory: Path, lock_wait: int, **options: Any) -> NoReturn:
    """Fetch a model unless the directory has it, and end the process. `options` are fields of `_Run`."""
    report = FetchReport(uri.shown, uri.query)
    signal.signal(signal.SIGTERM, lambda *_: report.end(STOPPED, "stopped; the next run resumes"))
    os.umask(0o002)  # pods that share a claim have the same fsGroup, but may have different users
    cache = ModelCache(directory, uri)
    try:
        # The lock is held until its file is closed.
        lock = None if cache.is_warm() else cache.lock(lock_wait, report)
        if lock and not cache.is_warm():
            _Run(uri, cache, report, **options).fetch()
    except Exception as error:  # noqa: BLE001 - whatever a client library raises becomes one line
        report.fail(describe(error))
    report.end(0, f"warm: {directory} holds {uri.shown}")


class _Run(NamedTuple):
    """A model to fetch, with the options. Sizes are in bytes."""

    uri: ModelURI
    cache: ModelCache
    report: FetchReport
    endpoint: str | None
    claim_mount: Path
    size_limit: int | None
    parallel: int
    attempts: int

    def fetch(self) -> NoReturn:
        began = time.monotonic()
        files = self._retry("listing", lambda: list_files(self.uri, self.endpoint, self.claim_mount))
        if not files:
            raise PermanentError("holds no files")
        self.cache.reuse(files)
        total = sum(file.size or 0 for file in files)
        self._check_space(files, total)
        with concurrent.futures.ThreadPoolExecutor(self.parallel) as pool:
            self._wait({pool.submit(self._complete, file) for file in files}, files, total)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what follows only renames files
        self.cache.install(files)
        took = time.monotonic() - began
        self.report.end(0, f"done: {self.cache.directory} holds {human_size(total)} after {took:.1f} s")

    def _check_space(self, files: list[RemoteFile], total: int) -> None:
        had, free = self.cache.fetched(files), shutil.disk_usage(self.cache.partial).free
        if (limit := self.size_limit) and total > limit:
            raise PermanentError(
                f"has {human_size(total)}, more than the cache's size limit of {human_size(limit)}"
            )
        if total - had > free:
            raise PermanentError(
                f"needs {human_size(total - had)} more, the cache has {human_size(free)} free"
            )
        here = f"of which {human_size(min(had, total))} are here already"
        self.report.log(f"{self.uri.shown}: {len(files)} file(s), {human_size(total)}, {here}")

    def _wait(
        self, pending: set[concurrent.futures.Future[None]], files: list[RemoteFile], total: int
    ) -> None:
        """Wait for all files. Log the progress after ten seconds, or five percent."""
        first = last = self.cache.fetched(files)
        began = logged_at = time.monotonic()
        while pending:
            done, pending = concurrent.futures.wait(pending, 1, concurrent.futures.FIRST_EXCEPTION)
            if error := next(filter(None, (future.exception() for future in done)), None):
                # Not by an exception, which would wait for the other downloads.
                self.report.fail(describe(error))
            have, now = self.cache.fetched(files), time.monotonic()
            if pending and (now - logged_at >= PROGRESS_SECONDS or have - last >= (total or have) / 20):
                whole = human_size(total) if total else "unknown size"
                self.report.log(
                    f"{human_size(have)} of {whole}, {human_size(max(have - first, 0) / (now - began))}/s"
                )
                last, logged_at = have, now

    def _complete(self, file: RemoteFile) -> None:
        """Fetch the missing part of a file and compare its digest. Raises errors of the source, and `PermanentError`."""
        partial = self.cache.partial_file(file)
        size = functools.partial(self.cache.fetched, [file])

        def attempt() -> None:
            have = size() if file.tag and file.size is not None else 0
            with partial.open("ab" if 0 < have <= (file.size or 0) else "wb") as target:
                if have != file.size:
                    file.pull(target.tell(), target)
            if file.size not in (None, size()):
                raise OSError(f"got {size()} of {file.size} bytes")

        self._retry(file.path, attempt, size)
        if file.expected:
            with partial.open("rb") as content:
                while chunk := content.read(BUFFER):
                    file.hash.update(chunk)
            if (found := file.hash.digest().hex()) != file.expected:
                partial.unlink()
                raise PermanentError(f"{file.path} has checksum {found}, not {file.expected}")

    def _retry(self, what: str, action: Callable[[], Any], progress: Callable[[], int] = lambda: 0) -> Any:
        """Retry after transient errors. An attempt that made progress starts the count of attempts anew."""
        tries, best = 0, progress()
        while True:
            try:
                return action()
            except Exception as error:
                tries = 1 if progress() > best else tries + 1
                best = max(best, progress())
                if is_permanent(error) or tries >= self.attempts:
                    raise
                delay = min(2 ** (tries - 1), 30)
                self.report.log(f"{what}: {describe(error)}; trying again in {delay} s")
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
        or errno.errorcode.get(getattr(error, "errno", None) or 0, "-") in PERMANENT_ERRORS.split()
        or re.search("Credentials|InvalidOperation", type(error).__name__)
        or "CERTIFICATE_VERIFY_FAILED" in str(error)
    )
