"""A raw JSON client of the API server: bytes in, bytes out, a typed error for every way it can fail.

Made for many threads: one client per process, its connections kept alive. Every call has a connect and a read timeout;
without one a half-open connection hangs for ever. `list` is consistent: what it returns is the collection as it was at
one revision that is not older than the call.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from time import monotonic
from typing import Generic, TypeVar
from urllib.parse import urlencode

import msgspec
import urllib3

from webhook.cluster import errors
from webhook.cluster.access import RELOAD_SECONDS, Access

CONNECT_SECONDS = 3.0
READ_SECONDS = 30.0
POOL_SIZE = 64
PAGE = 500
"""Objects per page of a LIST, as kubectl and client-go have it: some MB of pods at once, not a hundred."""
RESTARTS = 3
"""How often a LIST is begun anew because its continue token expired; etcd is compacted every 5 minutes."""

JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""What to accept where only the metadata of the object matters: the API server then encodes, and we decode, nothing else."""
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""What to accept where spec and status are of no use: the API server sends metadata alone."""

T = TypeVar("T")


class Listed(msgspec.Struct, Generic[T], frozen=True):
    """A collection as it was at one revision."""

    items: list[T]
    resource_version: str


class Attempt(msgspec.Struct, frozen=True):
    """What came of a request that was made to see what comes of it: the object or the error, and the warnings either way."""

    body: bytes
    error: errors.ApiError | None
    warnings: tuple[str, ...]


class _PageMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_token: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _PageMetadata
    items: list[msgspec.Raw] | None = None


_PAGE = msgspec.json.Decoder(_Page)

_WARNING = re.compile(r'299 \S+ "(?P<text>.*)"')
_UNQUOTED = re.compile(r"\\(.)")


class ApiClient:
    """Calls with these credentials. Paths are absolute, such as `/api/v1/namespaces/team/pods`.

    Every method raises an `errors.ApiError`.
    """

    def __init__(
        self,
        access: Access,
        *,
        pool_size: int = POOL_SIZE,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._access = access
        self._pool_size = pool_size
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds
        self._pool = access.pool(pool_size)
        self._reload_lock = threading.Lock()
        self._reloaded_at = monotonic()

    def close(self) -> None:
        self._pool.clear()

    def get(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
        accept: str = JSON,
    ) -> bytes:
        try:
            return self._call("GET", path, query=query, timeout=timeout, accept=accept)
        except errors.Unreachable:
            if timeout is not None:
                raise  # the caller counts the seconds
            # A kept-alive connection that the server closed just now; nothing changes by asking again.
            return self._call("GET", path, query=query, accept=accept)

    def dry_run(self, path: str, body: bytes, *, timeout: float | None = None) -> Attempt:
        """POST without storing anything. Raises only where no answer came."""
        seconds = timeout or self._read_seconds
        response = self._send("POST", path, {"dryRun": "All"}, body, JSON, seconds, preload=True, accept=JSON)
        refused = response.status >= HTTPStatus.MULTIPLE_CHOICES
        warnings = (_WARNING.fullmatch(text) for text in response.headers.getlist("Warning"))
        return Attempt(
            response.data,
            errors.of_response(response.status, response.data) if refused else None,
            tuple(_UNQUOTED.sub(r"\1", match["text"]) for match in warnings if match),
        )

    def post(self, path: str, body: bytes, *, timeout: float | None = None) -> bytes:
        return self._call("POST", path, body=body, timeout=timeout)

    def put(self, path: str, body: bytes, *, timeout: float | None = None, accept: str = JSON) -> bytes:
        return self._call("PUT", path, body=body, timeout=timeout, accept=accept)

    def patch(
        self, path: str, body: bytes, *, content_type: str = MERGE_PATCH, timeout: float | None = None
    ) -> bytes:
        return self._call("PATCH", path, body=body, content_type=content_type, timeout=timeout)

    def delete(self, path: str, *, body: bytes | None = None, timeout: float | None = None) -> bytes:
        return self._call("DELETE", path, body=body, timeout=timeout)

    def list(
        self,
        path: str,
        project: Callable[[msgspec.Raw], T | None],
        *,
        query: Mapping[str, str] | None = None,
        page: int = PAGE,
        accept: str = JSON,
    ) -> Listed[T]:
        """Return what `project` makes of every object, except None, at one revision not older than this call.

        `project` sees the raw JSON of one object at a time and should keep little of it: pages are dropped as
        they are read.
        """
        for _ in range(RESTARTS):
            try:
                listed = self._list_once(path, project, {**(query or {}), "limit": str(page)}, accept)
            except errors.Gone:
                # The answer offers a token that goes on at a newer revision: such a list never existed.
                continue
            if listed is not None:
                return listed
        raise errors.Gone(f"the list of {path} expired {RESTARTS} times before its end", code=410)

    def _list_once(
        self, path: str, project: Callable[[msgspec.Raw], T | None], query: dict[str, str], accept: str
    ) -> Listed[T] | None:
        items: list[T] = []
        revision = ""
        while True:
            page = self._page(path, query, accept)
            revision = revision or page.metadata.resource_version
            if page.metadata.resource_version != revision:
                return None
            items.extend(kept for raw in page.items or () if (kept := project(raw)) is not None)
            if not page.metadata.continue_token:
                return Listed(items, revision)
            query["continue"] = page.metadata.continue_token

    def _page(self, path: str, query: Mapping[str, str], accept: str) -> _Page:
        try:
            return _PAGE.decode(self.get(path, query=query, accept=accept))
        except msgspec.MsgspecError as error:
            raise errors.ApiError(f"the list of {path} cannot be read: {error}") from None

    @contextlib.contextmanager
    def stream(
        self, path: str, *, query: Mapping[str, str], read_seconds: float, accept: str = JSON
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Open a response that is read piece by piece; a silence of `read_seconds` is Unreachable."""
        response = self._open("GET", path, query, None, None, read_seconds, preload=False, accept=accept)
        try:
            yield response
        except urllib3.exceptions.HTTPError as error:
            raise errors.Unreachable(f"GET {path}: {error}") from None
        finally:
            response.close()  # not released: what is left of a watch must not meet the next request

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float | None = None,
        accept: str = JSON,
    ) -> bytes:
        seconds = timeout or self._read_seconds
        return self._open(method, path, query, body, content_type, seconds, accept=accept).data

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str | None,
        read_seconds: float,
        *,
        preload: bool = True,
        accept: str = JSON,
    ) -> urllib3.BaseHTTPResponse:
        def send() -> urllib3.BaseHTTPResponse:
            return self._send(
                method, path, query, body, content_type, read_seconds, preload=preload, accept=accept
            )

        response = send()
        if response.status == HTTPStatus.UNAUTHORIZED and self._reload():
            response.close()
            response = send()
        if response.status < HTTPStatus.MULTIPLE_CHOICES:
            return response
        try:
            told = response.data
        except urllib3.exceptions.HTTPError:
            told = b""
        finally:
            response.close()
        raise errors.of_response(response.status, told, retry_after=response.headers.get("Retry-After"))

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str | None,
        read_seconds: float,
        *,
        preload: bool,
        accept: str,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": accept, "User-Agent": "gpu-admission"}
        if body is not None and content_type is not None:
            headers["Content-Type"] = content_type
        authorization = self._access.authorization()
        if authorization:
            headers["Authorization"] = authorization
        url = self._access.url + path + (f"?{urlencode(query)}" if query else "")
        timeout = urllib3.Timeout(connect=min(self._connect_seconds, read_seconds), read=read_seconds)
        try:
            return self._pool.request(
                method,
                url,
                body=body,
                headers=headers,
                timeout=timeout,
                retries=False,
                preload_content=preload,
            )
        except urllib3.exceptions.HTTPError as error:
            raise errors.Unreachable(f"{method} {path}: {error}") from None

    def _reload(self) -> bool:
        """Read the credentials again, unless that was done a moment ago; return whether to try once more."""
        with self._reload_lock:
            if monotonic() - self._reloaded_at < RELOAD_SECONDS:
                return False
            self._reloaded_at = monotonic()
            self._access.reload()
            self._pool = self._access.pool(self._pool_size)
            return True
