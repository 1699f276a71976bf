"""Fetch a model into a directory; runs as `python3 -c` in an init container, on Python 3.9 and newer.

MODEL_SOURCE       s3://bucket/prefix, gs://bucket/prefix, hf://org/name[@revision], pvc://claim/path or
                   https://host/file[#sha256=hex], which is one file and is not unpacked
MODEL_DESTINATION  gets the files; lock, marker and parts live beside it, in .NAME.warming
Optional           MODEL_SHA256, MODEL_HTTP_AUTHORIZATION (https: header value), MODEL_CLAIM_MOUNT (pvc: where
                   it is), MODEL_CACHE_LIMIT (bytes), MODEL_LOCK_WAIT (s), MODEL_ATTEMPTS, MODEL_PARALLEL
Exit codes         0 done or warm, 1 failed, 2 bad configuration, 143 stopped by SIGTERM; the next run resumes
"""

# ruff: noqa: BLE001, S310, PLC0415
# Whatever a client library raises becomes one line; URLs are https (check, KeepHttps) or below HF_ENDPOINT;
# client libraries are imported where they are used, as an image carries only that of its source.

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import errno
import fcntl
import functools
import hashlib
import http
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import threading
import time
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

ENV = os.environ
SOURCE = ENV.get("MODEL_SOURCE", "")
SCHEME, _, REST = SOURCE.partition("://")
PLAIN, *EXTRA = re.split("[?#]", REST)
HOST, _, PATH = PLAIN.partition("/")
SHOWN = f"{SCHEME}://{HOST.rpartition('@')[2]}/{PATH}"
SHA256 = (ENV.get("MODEL_SHA256") or REST.partition("#sha256=")[2]).lower()
QUERY = REST.partition("#")[0].partition("?")[2]
# A query may hold a signature, so the marker keeps its digest only.
IDENTITY = " ".join([SHOWN, hashlib.sha256(QUERY.encode()).hexdigest()[:16] if QUERY else "", SHA256]).strip()
DESTINATION = pathlib.Path(ENV.get("MODEL_DESTINATION", ""))
STATE = DESTINATION.parent / f".{DESTINATION.name}.warming"
PARTIAL, MARKER = STATE / "partial", STATE / "marker.json"
TERMINATION_LOG = pathlib.Path(ENV.get("MODEL_TERMINATION_LOG", "/dev/termination-log"))
CHUNK = 1 << 18
TELL_EVERY = 10  # seconds
SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTHORIZ")
LASTING = (
    "EACCES EDQUOT EEXIST EFBIG EISDIR ENAMETOOLONG ENOENT ENOLCK ENOSPC ENOSYS ENOTDIR ENOTSUP EPERM EROFS"
)


class ConfigurationError(Exception): ...


class LastingError(Exception): ...


class Entry(NamedTuple):
    path: str
    size: int | None
    tag: str  # changes with the content; "" where a part cannot be resumed
    pull: Any  # (offset, file) appends the rest, or rewinds the file if it has to start over
    hash: Any = None
    expected: str = ""  # hexadecimal digest
    part: pathlib.Path = PARTIAL


def held(entries: list[Entry]) -> int:
    """Return how many bytes of the entries' parts are there; watch() may look while they are moved away."""
    sizes = []
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):
            sizes.append(entry.part.stat().st_size)
    return sum(sizes)


def redact(text: str) -> str:
    line = re.sub(r"//[^/\s@]*@", "//", text)
    line = re.sub(r"\?[^\s'\")>]+", "?...", line)
    for word in [QUERY] + [word for name in ENV if SECRET.search(name.upper()) for word in ENV[name].split()]:
        line = line.replace(word, "***") if word[5:] else line
    return " ".join(line.split())


def say(text: str) -> None:
    os.write(1, (redact(text) + "\n").encode())  # safe in a signal handler, unlike print


def end(code: int, text: str) -> None:
    """Leave without waiting for other threads: parts are on disk and the kernel drops the lock."""
    say(text)
    os._exit(code)


def fail(error: BaseException) -> None:
    kind = "" if isinstance(error, (ConfigurationError, LastingError)) else f"{type(error).__name__}: "
    text = redact(f"failed: {SHOWN}: {kind}{error}")
    with contextlib.suppress(OSError), TERMINATION_LOG.open("r+", encoding="utf-8") as file:
        file.write(text)  # `kubectl describe pod` shows it
    end(2 if isinstance(error, ConfigurationError) else 1, text)


def human(size: float) -> str:
    power = min(max(int(size).bit_length() - 1, 0) // 10, 4)
    return f"{size / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def number(name: str, default: int) -> int:
    value = ENV.get(name) or str(default)
    if not value.isdigit():
        raise ConfigurationError(f"{name} is {value!r}, not a whole number")
    return int(value)


def check() -> None:
    for name in ("MODEL_PARALLEL", "MODEL_ATTEMPTS", "MODEL_CACHE_LIMIT", "MODEL_LOCK_WAIT"):
        number(name, 1)
    if SCHEME not in {"s3", "gs", "hf", "https", "pvc"}:
        raise ConfigurationError("MODEL_SOURCE must begin with s3://, gs://, hf://, https:// or pvc://")
    if "@" in HOST:
        raise ConfigurationError("MODEL_SOURCE holds credentials; give them in the environment instead")
    if EXTRA and SCHEME != "https":
        raise ConfigurationError("only an https:// MODEL_SOURCE may have a query or a fragment")
    if not HOST or (SCHEME in {"https", "hf"} and PATH[-1:] in {"", "/"}):
        raise ConfigurationError("MODEL_SOURCE names no model")
    if SHA256 and not (SCHEME == "https" and re.fullmatch("[0-9a-f]{64}", SHA256)):
        raise ConfigurationError("a checksum has 64 hexadecimal digits and needs an https:// MODEL_SOURCE")
    if not DESTINATION.is_absolute() or not DESTINATION.name:
        raise ConfigurationError("MODEL_DESTINATION must be an absolute directory other than /")


def lasting(error: Any) -> bool:
    """Would the same happen again? Each client library keeps the HTTP status somewhere else."""
    response = getattr(error, "response", None)
    code = getattr(error, "code", None) or getattr(response, "status_code", None)
    if isinstance(response, dict):
        code = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if isinstance(code, int):
        return code < http.HTTPStatus.INTERNAL_SERVER_ERROR and code not in (408, 425, 429)
    return bool(
        isinstance(error, (ConfigurationError, LastingError, ImportError))
        or errno.errorcode.get(getattr(error, "errno", None) or 0, "-") in LASTING.split()
        or re.search("Credentials|InvalidOperation", type(error).__name__)
        or "CERTIFICATE_VERIFY_FAILED" in str(error)
    )


def persist(what: str, action: Any, progress: Any = lambda: 0) -> Any:
    """Try again after transient errors; an attempt that got further than those before counts as the first."""
    tries, best = 0, progress()
    while True:
        try:
            return action()
        except Exception as error:
            tries = 1 if progress() > best else tries + 1
            best = max(best, progress())
            if lasting(error) or tries >= number("MODEL_ATTEMPTS", 6):
                raise
            delay = min(2 ** (tries - 1), 30)
            say(f"{what}: {type(error).__name__}: {error}; trying again in {delay} s")
            time.sleep(delay)


def safe(path: str) -> str:
    if {"", ".", ".."} & set(path.split("/")) or re.search(r"[\\\x00-\x1f]", path):
        raise LastingError(f"has an object named {path!r}, which could lead out of the destination")
    return path


class KeepHttps(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, request: Any, *args: Any) -> Any:
        if request.type == "https" and not args[-1].lower().startswith("https://"):
            raise LastingError("redirects away from https")
        return super().redirect_request(request, *args)


def get(url: str, **headers: str) -> Any:
    request = urllib.request.Request(url, headers={name.replace("_", "-"): headers[name] for name in headers})
    bearer = "Bearer " + ENV["HF_TOKEN"] if "HF_TOKEN" in ENV else ""
    if authorization := bearer if SCHEME == "hf" else ENV.get("MODEL_HTTP_AUTHORIZATION"):
        # Unredirected: the storage behind a redirect must not see it.
        request.add_unredirected_header("Authorization", authorization)
    return urllib.request.build_opener(KeepHttps).open(request, timeout=60)


def pull_url(url: str, validator: str, offset: int, file: Any) -> None:
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    if offset and validator:
        headers["If_Range"] = validator
    with get(url, **headers) as answer:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            file.seek(0)
            file.truncate()
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
            raise OSError("sent another range than asked for")
        shutil.copyfileobj(answer, file, CHUNK)


def https(_host: str, path: str) -> list[Entry]:
    url = SOURCE.partition("#")[0]
    with get(url, Range="bytes=0-0") as probe:
        length = probe.headers.get("Content-Length", "")
        if probe.status == http.HTTPStatus.PARTIAL_CONTENT:
            length = probe.headers.get("Content-Range", "").rpartition("/")[2]
        tag = probe.headers.get("ETag", "")
        if not tag.startswith('"'):  # If-Range takes no weak ETag (RFC 9110 13.1.5)
            tag = probe.headers.get("Last-Modified", "")
    name, size = urllib.parse.unquote(path.rpartition("/")[2]), int(length) if length.isdigit() else None
    return [Entry(name, size, tag, functools.partial(pull_url, url, tag), hashlib.sha256, SHA256)]


def hf(owner: str, path: str) -> list[Entry]:
    """Speak the hub's HTTP interface: its client library (2.4) resumes nothing that another process began."""
    hub = ENV.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    name, _, revision = f"{owner}/{path}".partition("@")
    revision = urllib.parse.quote(revision or "main", "")
    with get(f"{hub}/api/models/{name}/revision/{revision}?blobs=true") as answer:
        model = json.load(answer)
    listed = []
    for file in model["siblings"]:
        sha256, quoted = (file.get("lfs") or {}).get("sha256", ""), urllib.parse.quote(file["rfilename"])
        pull = functools.partial(pull_url, f"{hub}/{name}/resolve/{model['sha']}/{quoted}", "")
        tag = sha256 or file.get("blobId", "")
        listed.append(Entry(file["rfilename"], file.get("size"), tag, pull, hashlib.sha256, sha256))
    return listed


def below(prefix: str, objects: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """(path, object) of what lies in the folder `prefix`, or else of the object of that name."""
    folder = prefix.rstrip("/") + "/" if prefix else ""
    inside = [
        (key[len(folder) :], found) for key, found in objects if key.startswith(folder) and key[-1] != "/"
    ]
    return inside or [(prefix.rpartition("/")[2], found) for key, found in objects if key == prefix]


def s3(bucket: str, prefix: str) -> list[Entry]:
    import boto3
    import botocore.config

    session = boto3.Session()
    own = {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} & set(ENV)
    options: Any = {"s3": {"addressing_style": ENV.get("S3_ADDRESSING_STYLE", "path" if own else "auto")}}
    if not session.get_credentials():
        options["signature_version"] = botocore.UNSIGNED
    config = botocore.config.Config(retries={"total_max_attempts": 1}, **options)
    client = session.client("s3", config=config)

    def pull(found: Any, offset: int, file: Any) -> None:
        part = {"Range": f"bytes={offset}-"} if offset else {}
        answer = client.get_object(Bucket=bucket, Key=found["Key"], IfMatch=found["ETag"], **part)
        shutil.copyfileobj(answer["Body"], file, CHUNK)

    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    objects = [(found["Key"], found) for page in pages for found in page.get("Contents", ())]
    return [
        Entry(path, o["Size"], o["ETag"], functools.partial(pull, o)) for path, o in below(prefix, objects)
    ]


def gs(bucket: str, prefix: str) -> list[Entry]:
    import google.auth.exceptions
    import google_crc32c
    from google.cloud import storage

    try:
        client = storage.Client(project="-")  # reading needs none, the constructor does
    except google.auth.exceptions.DefaultCredentialsError:
        client = storage.Client.create_anonymous_client()

    def pull(blob: Any, offset: int, file: Any) -> None:
        options = {"if_generation_match": blob.generation, "checksum": None, "retry": None}
        blob.download_to_file(file, start=offset or None, raw_download=True, **options)

    def entry(path: str, blob: Any) -> Entry:
        expected = base64.b64decode(blob.crc32c or "").hex()
        pulled = functools.partial(pull, blob)
        return Entry(path, blob.size, str(blob.generation), pulled, google_crc32c.Checksum, expected)

    objects = [(blob.name, blob) for blob in client.list_blobs(bucket, prefix=prefix)]
    return [entry(path, blob) for path, blob in below(prefix, objects)]


def pvc(claim: str, path: str) -> list[Entry]:
    root = pathlib.Path(ENV.get("MODEL_CLAIM_MOUNT", "/model-source")).resolve()
    top = root / path.strip("/")
    files = [top] if top.is_file() else sorted(top.rglob("*"))
    if linked := [file for file in files if file.is_symlink() and not file.is_file()]:
        raise LastingError(f"has {str(linked[0])!r}, a link to no file, which is not followed")

    closed = [file for file in files if file.is_dir() and not os.access(file, os.R_OK | os.X_OK)]
    if any(file.name != "lost+found" for file in closed):  # which every ext4 volume has
        raise LastingError(f"has folders that user {os.getuid()} may not read: {closed[0].name!r}")

    def pull(source: pathlib.Path, offset: int, file: Any) -> None:
        with source.open("rb") as stream:
            stream.seek(offset)
            shutil.copyfileobj(stream, file, CHUNK)

    listed = []
    for file in (file for file in files if file.is_file()):
        source, shown = file.resolve(), str(file.relative_to(top.parent if file == top else top))
        if root not in source.parents:
            raise LastingError(f"has {shown!r}, which leads out of claim {claim}")
        about = source.stat()
        listed.append(Entry(shown, about.st_size, str(about.st_mtime_ns), functools.partial(pull, source)))
    return listed


def marker() -> Any:
    """Return what the last run to finish left: {source, files: {path: [size, tag]}}."""
    return json.loads(MARKER.read_text("utf-8"))


def warm() -> bool:
    try:
        left = marker()
        sizes = {path: (DESTINATION / path).stat().st_size for path in left["files"]}
        return bool(
            left["source"] == IDENTITY and sizes == {path: old[0] for path, old in left["files"].items()}
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def lock() -> Any:
    """Lock until the process ends; the file names its holder and is never removed."""
    file = (STATE / "lock").open("a+", encoding="utf-8")
    began, tell_at = time.monotonic(), 0.0
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            file.seek(0)
            holder, now = file.read() or "another pod", time.monotonic()
        if now - began > number("MODEL_LOCK_WAIT", 3600):
            raise LastingError(f"{DESTINATION} is locked by {holder}; gave up after {now - began:.0f} s")
        if now >= tell_at:
            say(f"waiting for {holder}, which fetches into {DESTINATION}")
            tell_at = now + TELL_EVERY
        time.sleep(0.5)
    file.truncate(0)
    file.write(f"{socket.gethostname()} (since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())})")
    file.flush()
    return file


def tidy(entries: list[Entry]) -> None:
    """Delete parts of other versions and the files of the last run; those that still hold become parts."""
    for stale in set(PARTIAL.iterdir()) - {entry.part for entry in entries}:
        stale.unlink()
    try:
        left = marker()
    except (OSError, ValueError):
        return
    parts = {(e.path, e.size, e.tag): e.part for e in entries if e.tag and left["source"] == IDENTITY}
    for path, (size, tag) in left["files"].items():
        target = DESTINATION / safe(path)
        if not target.is_file():
            continue
        part = parts.get((path, size, tag))
        if part and target.stat().st_size == size:
            target.replace(part)
        else:
            target.unlink()
    MARKER.unlink()


def watch(entries: list[Entry], total: int) -> None:
    """Tell every ten seconds or five percent."""
    first = last = held(entries)
    began = told = time.monotonic()
    while True:
        time.sleep(1)
        have, now = held(entries), time.monotonic()
        if now - told >= TELL_EVERY or have - last >= (total or have) / 20:
            whole = human(total) if total else "unknown size"
            say(f"{human(have)} of {whole}, {human(max(have - first, 0) / (now - began))}/s")
            last, told = have, now


def complete(entry: Entry) -> None:
    def once() -> None:
        have = held([entry]) if entry.tag and entry.size is not None else 0
        with entry.part.open("ab" if 0 < have <= (entry.size or 0) else "wb") as file:
            if have != entry.size:
                entry.pull(file.tell(), file)
        if entry.size not in (None, held([entry])):
            raise OSError(f"got {held([entry])} of {entry.size} bytes")

    persist(entry.path, once, lambda: held([entry]))
    if entry.expected:
        digest = entry.hash()
        with entry.part.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        if digest.digest().hex() != entry.expected:
            entry.part.unlink()
            raise LastingError(f"{entry.path} has checksum {digest.digest().hex()}, not {entry.expected}")


def install(entries: list[Entry]) -> None:
    files = {}
    for entry in entries:
        target = DESTINATION / entry.path
        files[entry.path] = (held([entry]), entry.tag)
        if DESTINATION.resolve() not in (target.parent / "-").resolve().parents:
            raise LastingError(f"would have {entry.path} written through a link")
        target.parent.mkdir(parents=True, exist_ok=True)
        entry.part.replace(target)
    new = MARKER.with_suffix(".new")
    new.write_text(json.dumps({"source": IDENTITY, "files": files}), "utf-8")
    new.replace(MARKER)
    shutil.rmtree(PARTIAL, ignore_errors=True)


def fetch() -> None:
    found = persist("listing", lambda: globals()[SCHEME](HOST, PATH))
    if not found:
        raise LastingError("holds no files")
    entries = []
    for entry in found:
        name = hashlib.sha256(f"{safe(entry.path)} {entry.size} {entry.tag}".encode()).hexdigest()[:32]
        entries.append(entry._replace(part=PARTIAL / name))
    tidy(entries)
    total, had, began = sum(entry.size or 0 for entry in entries), held(entries), time.monotonic()
    limit, free = number("MODEL_CACHE_LIMIT", 0), shutil.disk_usage(PARTIAL).free
    if limit and total > limit:
        raise LastingError(f"has {human(total)}, more than the cache's size limit of {human(limit)}")
    if total - had > free:
        raise LastingError(f"needs {human(total - had)} more, the cache has {human(free)} free")
    say(
        f"{SHOWN}: {len(entries)} file(s), {human(total)}, of which {human(min(had, total))} are here already"
    )
    threading.Thread(target=watch, args=(entries, total), daemon=True).start()
    with concurrent.futures.ThreadPoolExecutor(number("MODEL_PARALLEL", 4)) as pool:
        for future in concurrent.futures.as_completed([pool.submit(complete, entry) for entry in entries]):
            if error := future.exception():
                fail(error)  # at once: leaving the block would wait for the other downloads
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only renames are left
    install(entries)
    end(0, f"done: {DESTINATION} holds {human(total)} after {time.monotonic() - began:.1f} s")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: end(143, "stopped; the next run resumes"))
    try:
        check()
        os.umask(0o002)  # pods that share a claim share its fsGroup, not their user
        held = None
        if not warm():
            STATE.mkdir(parents=True, exist_ok=True)
            held = lock()
        if held and not warm():
            PARTIAL.mkdir(exist_ok=True)
            fetch()
        end(0, f"warm: {DESTINATION} holds {SHOWN}")
    except Exception as error:
        fail(error)


if __name__ == "__main__":
    main()
