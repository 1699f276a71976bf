"""A JSON client of the API server. It takes and returns bytes, and raises one type of error for each kind of failure.

Any number of threads can use one client. Every call has a connect and a read timeout, because a half-open connection would hang.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from time import monotonic
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import urllib3

from webhook.cluster import errors
from webhook.cluster.access import RELOAD_SECONDS, Access

CONNECT_SECONDS = 3.0
READ_SECONDS = 30.0
REVIEW_READ_SECONDS = 2.0
"""Longest read of a namespace, and of all claims together, in one review. Its deadline may be earlier."""
POOL_SIZE = 64
PAGE_SIZE = 500
"""Objects per page of a LIST, as in kubectl and client-go. A page of pods is some MB."""
IDENTITIES_PAGE_SIZE = 2000
"""Objects per page of identities: 6 MB before compression, if pods have 3 KB of metadata."""
MAX_RESTARTS = 3
"""How often a LIST starts again because its continue token expired. etcd is compacted every 5 minutes."""

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Accept header for metadata alone, without spec and status."""

_NAMELESS = frozenset({"", ".", ".."})

MAX_DEPTH = 100
"""Levels of JSON that are read; a deeper value reads as null. No field of an API is that deep. The API server accepts
10,000 levels (`sigs.k8s.io/json`), Python some 1,000. A user who may create a ResourceClaimTemplate can store such JSON
in the parameters of a driver, and it must not make a whole list unreadable."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)

T = TypeVar("T")
U = TypeVar("U")
Query = Mapping[str, str] | None


def api_path(prefix: str, *parts: str) -> str:
    """Return the path of an object or collection below `/api/v1` or `/apis/GROUP/VERSION`, each part quoted.

    Names come from reviews and annotations, so a name may be `../../secrets`. Raises errors.NotFound for "", "." and "..": no
    object has such a name, quoting does not change dots, and clients resolve them.
    """
    if not _NAMELESS.isdisjoint(parts):
        raise errors.NotFound(f"no object has a path of {parts}")
    return "/".join([prefix, *(quote(part, safe=":") for part in parts)])


def object_path(api_version: str, namespace: str, plural: str, name: str) -> str:
    """Return the path of an object by its apiVersion. The API server takes any text as that of an owner: `v1?watch=true&`."""
    group, _, version = api_version.rpartition("/")
    above = ("/apis", group, version) if group else ("/api", version)
    return api_path(*above, "namespaces", namespace, plural, name)


def decode_bounded(decode: Callable[[bytes], T], document: bytes) -> T:
    """Decode the JSON, without the values that are nested too deeply. Raises the errors of `decode`."""
    try:
        return decode(document)
    except RecursionError:
        return decode(without_deep_values(document))


def without_deep_values(document: bytes) -> bytes:
    """Return the JSON with null in place of each array and object inside MAX_DEPTH others."""
    parts, depth, end = [], 0, 0
    for token in _TOKEN.finditer(document):
        if token[0] in {b"[", b"{"}:
            if depth == MAX_DEPTH:
                parts += [document[end : token.start()], b"null"]
            depth += 1
        elif token[0] in {b"]", b"}"}:
            depth -= 1
            if depth == MAX_DEPTH:
                end = token.end()
    return b"".join([*parts, document[end:]])


class Listed(msgspec.Struct, Generic[T], frozen=True):
    """A collection as it was at one revision."""

    items: list[T]
    resource_version: str


class Identity(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata that identify an object and its version."""

    name: str
    uid: str
    resource_version: str
    namespace: str = ""


class Identified(msgspec.Struct, frozen=True):
    metadata: Identity


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_token: str = msgspec.field(name="continue", default="")
    """The token by which the list continues, empty on the last page."""


class Page(msgspec.Struct, Generic[T]):
    metadata: ListMeta
    items: list[T] | None = None


_OBJECTS = msgspec.json.Decoder(Page[msgspec.Raw])
_IDENTITIES = msgspec.json.Decoder(Page[Identified])


class DryRunResult(msgspec.Struct, frozen=True):
    """The result of a dry run: the object or the error, and the warnings either way."""

    body: bytes
    error: errors.ApiError | None
    warnings: tuple[str, ...]


class _Call(NamedTuple):
    method: str
    path: str
    query: Query = None
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    compressed: bool = False


_WARNING = re.compile(r'299 \S+ "(?P<text>.*)"')
_UNQUOTED = re.compile(r"\\(.)")


class ApiClient:
    """Paths are absolute, such as `/api/v1/namespaces/team/pods`. Every method raises `errors.ApiError`."""

    def __init__(self, access: Access, *, read_seconds: float = READ_SECONDS) -> None:
        self._access = access
        self._read_seconds = read_seconds
        self._pool = access.pool(POOL_SIZE)
        self._reload_lock = threading.Lock()
        self._reloaded_at = monotonic()

    def close(self) -> None:
        self._pool.clear()

    def get(
        self,
        path: str,
        *,
        query: Query = None,
        timeout: float | None = None,
        accept: str = JSON,
        compressed: bool = False,
    ) -> bytes:
        """Return the answer. `compressed`: accept a compressed one. The API server compresses from 128 KiB."""
        call = _Call("GET", path, query, accept=accept, compressed=compressed)
        try:
            return self._answer(call, timeout)
        except errors.Unreachable:
            if timeout is not None:
                raise  # the caller counts the seconds
            # The server may have closed the kept-alive connection just now. A GET can be repeated.
            return self._answer(call)

    def served_version(self, group: str, versions: Sequence[str]) -> str | None:
        """Return the first of `versions` that the API server serves of the group, or None."""
        try:
            api_group = msgspec.json.decode(self.get(api_path("/apis", group)))
        except errors.NotFound:
            return None
        served = {version["version"] for version in api_group["versions"]}
        return next((version for version in versions if version in served), None)

    def dry_run(self, path: str, body: bytes, *, timeout: float | None = None) -> DryRunResult:
        """POST without storing anything. Raises only if no answer came."""
        response = self._send(_Call("POST", path, {"dryRun": "All"}, body), timeout or self._read_seconds)
        refused = response.status >= HTTPStatus.MULTIPLE_CHOICES
        warnings = (_WARNING.fullmatch(text) for text in response.headers.getlist("Warning"))
        return DryRunResult(
            response.data,
            errors.of_response(response.status, response.data) if refused else None,
            tuple(_UNQUOTED.sub(r"\1", match["text"]) for match in warnings if match),
        )

    def post(self, path: str, body: bytes, *, timeout: float | None = None) -> bytes:
        return self._answer(_Call("POST", path, body=body), timeout)

    def put(self, path: str, body: bytes, *, timeout: float | None = None, accept: str = JSON) -> bytes:
        return self._answer(_Call("PUT", path, body=body, accept=accept), timeout)

    def patch(
        self, path: str, body: bytes, *, content_type: str = MERGE_PATCH, timeout: float | None = None
    ) -> bytes:
        return self._answer(_Call("PATCH", path, body=body, content_type=content_type), timeout)

    def delete(self, path: str, *, version: str, timeout: float | None = None) -> None:
        """Delete the object if it has this resourceVersion. Raises errors.Conflict otherwise."""
        options = {"preconditions": {"resourceVersion": version}}
        self._answer(_Call("DELETE", path, body=msgspec.json.encode(options)), timeout)

    def list(
        self,
        path: str,
        project: Callable[[msgspec.Raw], T | None],
        *,
        query: Query = None,
        accept: str = JSON,
    ) -> Listed[T]:
        """Return what `project` returns for each object, without None, at one revision that is not older than this call.

        `project` gets the JSON of one object. It should keep little of it, so that each page can be dropped after it was read.
        """
        limited = {**(query or {}), "limit": str(PAGE_SIZE)}
        return self._list(path, _OBJECTS.decode, project, limited, accept)

    def identities(self, path: str) -> Listed[Identity]:
        """Return the identity of each object, as `list` does.

        The API server sends all metadata, managedFields included (`AsPartialObjectMetadata` in
        `k8s.io/apimachinery/pkg/api/meta`). Its tables without objects have neither uid nor resourceVersion.
        """
        limited = {"limit": str(IDENTITIES_PAGE_SIZE)}
        return self._list(path, _IDENTITIES.decode, lambda each: each.metadata, limited, METADATA_LIST)

    def _list(
        self,
        path: str,
        read: Callable[[bytes], Page[U]],
        project: Callable[[U], T | None],
        query: Mapping[str, str],
        accept: str,
    ) -> Listed[T]:
        for _ in range(MAX_RESTARTS):
            # The answer to an expired token has a token for a newer revision. Such a list would mix two revisions.
            with contextlib.suppress(errors.Gone):
                requested, items, revision = dict(query), list[T](), ""
                while True:
                    page = self._page(path, read, requested, accept)
                    revision = revision or page.metadata.resource_version
                    if page.metadata.resource_version != revision:
                        raise errors.Gone(path)
                    items.extend(item for raw in page.items or () if (item := project(raw)) is not None)
                    if not page.metadata.continue_token:
                        return Listed(items, revision)
                    requested["continue"] = page.metadata.continue_token
        raise errors.Gone(f"the list of {path} expired {MAX_RESTARTS} times before its end")

    def _page(self, path: str, read: Callable[[bytes], Page[U]], query: Query, accept: str) -> Page[U]:
        try:
            return decode_bounded(read, self.get(path, query=query, accept=accept, compressed=True))
        except msgspec.MsgspecError as error:
            raise errors.ApiError(f"the list of {path} cannot be read: {error}") from None

    def revision(self, path: str, query: Query = None) -> int:
        """Return the present revision of a collection, from a list of one object."""
        page = self._page(path, _IDENTITIES.decode, {**(query or {}), "limit": "1"}, METADATA_LIST)
        try:
            return int(page.metadata.resource_version)
        except ValueError as error:
            raise errors.ApiError(f"the list of {path} cannot be read: {error}") from None

    @contextlib.contextmanager
    def stream(
        self, path: str, *, query: Mapping[str, str], read_seconds: float, accept: str = JSON
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Open a response to read it piece by piece. Raises Silent after `read_seconds` without a piece."""
        response = self._open(_Call("GET", path, query, accept=accept), read_seconds, preload=False)
        try:
            yield response
        except urllib3.exceptions.HTTPError as error:
            is_silent = isinstance(error, urllib3.exceptions.ReadTimeoutError)
            kind = errors.Silent if is_silent else errors.Unreachable
            raise kind(f"GET {path}: the API server {errors.failure_text(error)}") from None
        finally:
            response.close()  # not released: the next request must not read the rest of the watch

    def _answer(self, call: _Call, timeout: float | None = None) -> bytes:
        return self._open(call, self._read_seconds if timeout is None else timeout).data

    def _open(self, call: _Call, read_seconds: float, *, preload: bool = True) -> urllib3.BaseHTTPResponse:
        response = self._send(call, read_seconds, preload=preload)
        if response.status == HTTPStatus.UNAUTHORIZED and self._reload():
            response.close()
            response = self._send(call, read_seconds, preload=preload)
        if response.status < HTTPStatus.MULTIPLE_CHOICES:
            return response
        try:
            answer = response.data
        except urllib3.exceptions.HTTPError:
            answer = b""
        finally:
            response.close()
        raise errors.of_response(response.status, answer)

    def _send(self, call: _Call, read_seconds: float, *, preload: bool = True) -> urllib3.BaseHTTPResponse:
        if read_seconds <= 0:  # urllib3 takes no such timeout
            raise errors.Unreachable(f"{call.method} {call.path}: the API server did not answer in time")
        headers = {"Accept": call.accept, "User-Agent": "gpu-admission"}
        if call.compressed:
            headers["Accept-Encoding"] = "gzip"
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        if authorization := self._access.authorization():
            headers["Authorization"] = authorization
        try:
            return self._pool.request(
                call.method,
                self._access.url + call.path + (f"?{urlencode(call.query)}" if call.query else ""),
                body=call.body,
                headers=headers,
                timeout=urllib3.Timeout(connect=min(CONNECT_SECONDS, read_seconds), read=read_seconds),
                retries=False,
                preload_content=preload,
            )
        except urllib3.exceptions.HTTPError as error:
            problem = f"{call.method} {call.path}: the API server {errors.failure_text(error)}"
            raise errors.Unreachable(problem) from None

    def _reload(self) -> bool:
        """Read the credentials again, unless that was done a moment ago. Return whether they were read."""
        with self._reload_lock:
            if monotonic() - self._reloaded_at < RELOAD_SECONDS:
                return False
            self._reloaded_at = monotonic()
            self._access.reload()
            self._pool = self._access.pool(POOL_SIZE)
            return True
