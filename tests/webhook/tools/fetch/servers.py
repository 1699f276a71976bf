"""A small web server that misbehaves on request, and the stores that speak through it."""

import base64
import contextlib
import hashlib
import http.server
import json
import socketserver
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import google_crc32c

PIECE = 16 * 1024


@dataclass
class Seen:
    method: str
    path: str
    headers: Message


@dataclass
class Store:
    """What is served, how it misbehaves, and what was asked of it."""

    objects: dict[str, bytes] = field(default_factory=dict)
    version: str = "v1"
    statuses: list[int] = field(default_factory=list)  # answered first, one per request
    cuts: list[int] = field(default_factory=list)  # whole bodies end after so many bytes, one per request
    pause_at: int | None = None  # bodies stop there until `resume` is set
    resume: threading.Event = field(default_factory=threading.Event)
    paused: threading.Event = field(default_factory=threading.Event)
    ranges: bool = True
    validator: str | None = "ETag"
    redirect: str | None = None
    claimed_size: int | str | None = None
    claimed_start: int | None = None  # of every range
    seen: list[Seen] = field(default_factory=list)
    sent: int = 0
    pouring: int = 0  # bodies under way
    lock: threading.Lock = field(default_factory=threading.Lock)

    def etag(self, body: bytes) -> str:
        return f'"{hashlib.sha256(self.version.encode() + body).hexdigest()[:16]}"'

    def bodies(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.method == "GET" and seen.headers["Range"] != "bytes=0-0"]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body waits 40 ms until the client has acknowledged the head
    server: "Server"

    def log_message(self, *_: object) -> None:
        """Say nothing: the store keeps what was asked."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_CONNECT(self) -> None:
        self.server.store.seen.append(Seen(self.command, self.path, self.headers))
        self.reply(403, b"")

    def do_GET(self) -> None:
        store = self.server.store
        with store.lock:
            store.seen.append(Seen(self.command, self.path, self.headers))
            status = store.statuses.pop(0) if store.statuses else 0
        if status:
            self.reply(status, b"as the test says")
        elif store.redirect and self.path != urlsplit(store.redirect).path:
            self.reply(302, b"", Location=store.redirect)
        else:
            self.route(unquote(urlsplit(self.path).path), parse_qs(urlsplit(self.path).query))

    def route(self, path: str, _query: dict[str, list[str]]) -> None:
        body = self.server.store.objects.get(path)
        if body is None:
            self.reply(404, b"no such file")
        else:
            self.content(body)

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def content(self, body: bytes, **headers: str) -> None:
        """Serve bytes as a web server does, with ranges and validators, and with the requested faults."""
        store = self.server.store
        etag, span = store.etag(body), self.headers["Range"]
        fresh = self.headers["If-Range"] in (None, etag) and self.headers["If-Match"] in (None, etag)
        first, _, last = (span or "bytes=0-").removeprefix("bytes=").partition("-")
        partial = bool(span) and store.ranges and fresh
        start, stop = (int(first), int(last) + 1 if last else len(body)) if partial else (0, len(body))
        self.send_response(206 if partial else 200)
        if partial:
            total = store.claimed_size or len(body)
            said = start if store.claimed_start is None else store.claimed_start
            self.send_header("Content-Range", f"bytes {said}-{min(stop, len(body)) - 1}/{total}")
        if store.validator:
            self.send_header(store.validator, etag)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body[start:stop])))
        self.end_headers()
        if self.command != "HEAD":
            self.pour(body[start:stop], probe=span == "bytes=0-0")

    def pour(self, body: bytes, *, probe: bool) -> None:
        store = self.server.store
        with store.lock:
            store.pouring += 1
        at, end = 0, len(body) if probe or not store.cuts else min(store.cuts.pop(0), len(body))
        try:
            while at < end:
                until = min(at + PIECE, end)
                if not probe and store.pause_at is not None and at >= store.pause_at:
                    store.paused.set()
                    store.resume.wait(120)
                self.wfile.write(body[at:until])
                with store.lock:
                    store.sent += until - at
                at = until
            self.close_connection = self.close_connection or at < len(body)
        finally:
            with store.lock:
                store.pouring -= 1


class S3Handler(Handler):
    """ListObjectsV2 in pages of two, and GetObject, path style."""

    def route(self, path: str, query: dict[str, list[str]]) -> None:
        bucket, _, key = path.lstrip("/").partition("/")
        if key or "list-type" not in query:
            super().route(f"{bucket}/{key}", query)
            return
        store, prefix = self.server.store, query.get("prefix", [""])[0]
        keys = sorted(
            name.partition("/")[2] for name in store.objects if name.startswith(f"{bucket}/{prefix}")
        )
        first = int(query.get("continuation-token", ["0"])[0])
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(store.objects[f'{bucket}/{key}'])}</Size>"
            f"<ETag>{escape(store.etag(store.objects[f'{bucket}/{key}']))}</ETag></Contents>"
            for key in keys[first : first + 2]
        )
        more = first + 2 < len(keys)
        token = f"<NextContinuationToken>{first + 2}</NextContinuationToken>" if more else ""
        truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}"
        page = f"<ListBucketResult>{truncated}{rows}</ListBucketResult>"
        self.reply(200, page.encode(), Content_Type="application/xml")


class GSHandler(Handler):
    """objects.list, and media download."""

    def route(self, path: str, query: dict[str, list[str]]) -> None:
        store = self.server.store
        if path.startswith("/download/"):
            super().route("/".join((path.split("/")[5], path.split("/o/", 1)[1])), query)
            return
        bucket, prefix = path.split("/")[4], query.get("prefix", [""])[0]
        items = [
            {
                "name": name.partition("/")[2],
                "bucket": bucket,
                "size": str(len(body)),
                "generation": "17",
                "crc32c": base64.b64encode(google_crc32c.value(body).to_bytes(4, "big")).decode(),
            }
            for name, body in sorted(store.objects.items())
            if name.startswith(f"{bucket}/{prefix}")
        ]
        self.reply(200, json.dumps({"items": items}).encode(), Content_Type="application/json")


class HubHandler(Handler):
    """Model info, and file downloads; files ending in .safetensors are LFS files."""

    commit = "c0ffee" + "0" * 34

    def described(self, name: str, body: bytes) -> dict[str, Any]:
        blob = hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
        entry: dict[str, Any] = {"rfilename": name, "size": len(body), "blobId": blob}
        if name.endswith(".safetensors"):
            sha256 = hashlib.sha256(body).hexdigest()
            entry["lfs"] = {"sha256": sha256, "oid": sha256, "size": len(body), "pointerSize": 134}
        return entry

    def route(self, path: str, _query: dict[str, list[str]]) -> None:
        objects = self.server.store.objects
        repository, _, rest = path.removeprefix("/api/models/").partition("/revision/")
        if path.startswith("/api/models/"):
            files = [self.described(name, body) for name, body in objects.items()]
            info = {"id": repository, "sha": self.commit, "siblings": files, "tags": [rest]}
            self.reply(200, json.dumps(info).encode(), Content_Type="application/json")
        else:
            self.server.store.validator = None
            self.content(objects[path.partition(f"/resolve/{self.commit}/")[2]])


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    store: Store

    def handle_error(self, *_: object) -> None:
        """Clients that are killed break their connections; that is what the tests are about."""


@contextlib.contextmanager
def serving(
    store: Store, handler: type[Handler] = Handler, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve the store on a free port; yields scheme://host:port."""
    server = Server(("127.0.0.1", 0), handler)
    server.store = store
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    finally:
        store.resume.set()
        server.shutdown()
        server.server_close()
        thread.join()
