"""The sources of models: the files that a URI names, and how to read the rest of a file from an offset on.

Each client library is imported where it is used: they are installed in the fetcher's image only, and one run needs one of them.
Hosts come from the arguments or are the providers' own. Variables such as AWS_ENDPOINT_URL, HF_ENDPOINT or STORAGE_EMULATOR_HOST
are not used, so that nothing in the environment can send credentials elsewhere.

MLflow's registry is read by its REST API (`model_registry.proto` and `mlflow_artifacts.proto`, 3.17). mlflow-skinny would add 22
packages of 70 MB to the 94 MB of the image, resumes no file, and reads addresses from the environment. Credentials go to the
server of the policy only: the answers of the registry name other hosts.
"""

import base64
import hashlib
import os
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from policies.finding import truncate
from policies.models.warming.model_uri import ModelURI, parse_model_uri, redacted
from policies.pods.annotations import BadAnnotation
from policies.printable import printable
from webhook.tools.fetch.report import PermanentError

HUB = "https://huggingface.co"
GOOGLE = "https://storage.googleapis.com"
BUFFER = 1 << 18


class RemoteFile(NamedTuple):
    """A file of a model, wherever it comes from."""

    path: str
    size: int | None
    tag: str
    """Changes with the content; empty where a partial file cannot be resumed."""
    pull: Callable[[int, BinaryIO], object]
    """Append everything from the offset on, or rewind the file if the source starts over."""
    hash: Any = None
    expected: str = ""
    """The hexadecimal digest that `hash` must come to, where the source has one."""


def list_files(uri: ModelURI, endpoints: Mapping[str, str], claim_mount: Path) -> list[RemoteFile]:
    """Return the files of a model. Raises `PermanentError` and whatever the client library of the source raises.

    endpoints: servers by scheme. Without one: the provider's own.
    """
    endpoint = endpoints.get(uri.scheme)
    if uri.scheme == "pvc":
        return list(_claim_files(uri, claim_mount))
    if uri.scheme == "https":
        return [_web_file(uri)]
    return list({"s3": _s3_files, "gs": _gs_files, "hf": _hub_files}[uri.scheme](uri, endpoint))


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never away from https, and with the Authorization header only on the same host."""

    def redirect_request(self, request: Any, *arguments: Any) -> Any:
        new = super().redirect_request(request, *arguments)
        if new and request.type == "https" and new.type != "https":
            raise PermanentError("redirects away from https")
        authorization = request.unredirected_hdrs.get("Authorization")
        if new and authorization and (new.type, new.host) == (request.type, request.host):
            new.add_unredirected_header("Authorization", authorization)
        return new


def open_url(url: str, authorization: str | None, headers: dict[str, str]) -> Any:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - https, or the endpoint of the policy
    if authorization:
        request.add_unredirected_header("Authorization", authorization)
    return urllib.request.build_opener(_Redirects).open(request, timeout=60)


def pull_url(url: str, authorization: str | None, validator: str, offset: int, file: BinaryIO) -> None:
    headers = {"Range": f"bytes={offset}-", "If-Range": validator} if offset else {}
    with open_url(url, authorization, {name: value for name, value in headers.items() if value}) as answer:
        if answer.status != HTTPStatus.PARTIAL_CONTENT:
            file.seek(0)
            file.truncate()
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
            raise OSError("sent another range than requested")
        shutil.copyfileobj(answer, file, BUFFER)


def _web_file(uri: ModelURI) -> RemoteFile:
    url, _, fragment = uri.text.partition("#")
    authorization = os.environ.get("MODEL_HTTP_AUTHORIZATION")
    with open_url(url, authorization, {"Range": "bytes=0-0"}) as probe:
        length = probe.headers.get("Content-Length", "")
        if probe.status == HTTPStatus.PARTIAL_CONTENT:
            length = probe.headers.get("Content-Range", "").rpartition("/")[2]
        tag = probe.headers.get("ETag", "")
        if not tag.startswith('"'):  # If-Range takes no weak ETag (RFC 9110 13.1.5)
            tag = probe.headers.get("Last-Modified", "")
    name = urllib.parse.unquote(uri.path.rpartition("/")[2])
    pull = partial(pull_url, url, authorization, tag)
    size, checksum = int(length) if length.isdigit() else None, fragment.removeprefix("sha256=").lower()
    return RemoteFile(name, size, tag, pull, hashlib.sha256(), checksum)


def _hub_files(uri: ModelURI, endpoint: str | None) -> Iterator[RemoteFile]:
    """List by the hub's library, but read by range: its downloads (2.4) delete what an earlier process began."""
    # Read when the library is imported. Its telemetry would ask the hub for a list of coding agents.
    os.environ.update(HF_ENDPOINT=(endpoint or HUB).rstrip("/"), HF_HUB_DISABLE_TELEMETRY="1")
    from huggingface_hub import HfApi, hf_hub_url  # noqa: PLC0415

    token = os.environ.get("HF_TOKEN")
    hub = HfApi(token=token or False)
    name, _, revision = f"{uri.host}/{uri.path}".partition("@")
    model = hub.model_info(name, revision=revision or "main", files_metadata=True)
    for sibling in model.siblings or ():
        url = hf_hub_url(name, sibling.rfilename, revision=model.sha)
        sha256 = sibling.lfs.sha256 if sibling.lfs else ""
        pull = partial(pull_url, url, f"Bearer {token}" if token else None, "")
        tag = sha256 or sibling.blob_id or ""
        yield RemoteFile(sibling.rfilename, sibling.size, tag, pull, hashlib.sha256(), sha256)


def _objects_below(prefix: str, objects: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return (path, object) of all objects in the folder `prefix`, or else of the object of that name."""
    folder = prefix.rstrip("/") + "/" if prefix else ""
    within = [(key, found) for key, found in objects if key.startswith(folder) and key[-1] != "/"]
    inside = [(key.removeprefix(folder), found) for key, found in within]
    return inside or [(prefix.rpartition("/")[2], found) for key, found in objects if key == prefix]


def _s3_files(uri: ModelURI, endpoint: str | None) -> Iterator[RemoteFile]:
    import boto3  # noqa: PLC0415
    import botocore.config  # noqa: PLC0415

    style = os.environ.get("S3_ADDRESSING_STYLE", "path" if endpoint else "auto")
    session = boto3.Session()
    config = botocore.config.Config(
        ignore_configured_endpoint_urls=True,
        retries={"total_max_attempts": 1},
        s3={"addressing_style": style},
        signature_version=None if session.get_credentials() else botocore.UNSIGNED,
    )
    client = session.client("s3", config=config, endpoint_url=endpoint)

    def pull(found: Any, offset: int, file: BinaryIO) -> None:
        part = {"Range": f"bytes={offset}-"} if offset else {}
        answer = client.get_object(Bucket=uri.host, Key=found["Key"], IfMatch=found["ETag"], **part)
        shutil.copyfileobj(answer["Body"], file, BUFFER)

    pages = client.get_paginator("list_objects_v2").paginate(Bucket=uri.host, Prefix=uri.path)
    objects = [(found["Key"], found) for page in pages for found in page.get("Contents", ())]
    for path, found in _objects_below(uri.path, objects):
        yield RemoteFile(path, found["Size"], found["ETag"], partial(pull, found))


def _gs_files(uri: ModelURI, endpoint: str | None) -> Iterator[RemoteFile]:
    import google.auth.exceptions  # noqa: PLC0415
    import google_crc32c  # noqa: PLC0415
    from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415
    from google.cloud import storage  # noqa: PLC0415

    host = {"client_options": {"api_endpoint": endpoint or GOOGLE}}
    try:
        client = storage.Client(project="-", **host)  # reading needs none, the constructor does
    except google.auth.exceptions.DefaultCredentialsError:
        client = storage.Client(project="-", credentials=AnonymousCredentials(), **host)  # type: ignore[no-untyped-call]

    def pull(blob: Any, offset: int, file: BinaryIO) -> None:
        options = {"if_generation_match": blob.generation, "checksum": None, "retry": None}
        blob.download_to_file(file, start=offset or None, raw_download=True, **options)

    objects = [(blob.name, blob) for blob in client.list_blobs(uri.host, prefix=uri.path, retry=None)]
    for path, blob in _objects_below(uri.path, objects):
        crc32c, checksum = base64.b64decode(blob.crc32c or "").hex(), google_crc32c.Checksum()  # type: ignore[no-untyped-call]
        yield RemoteFile(path, blob.size, str(blob.generation), partial(pull, blob), checksum, crc32c)


def _claim_files(uri: ModelURI, mount: Path) -> Iterator[RemoteFile]:
    root = mount.resolve()
    top = root / uri.path.strip("/")
    files = [top] if top.is_file() else sorted(top.rglob("*"))
    if linked := [file for file in files if file.is_symlink() and not file.is_file()]:
        raise PermanentError(f"has {str(linked[0])!r}, a link to no file, which is not followed")
    unreadable = [file for file in files if file.is_dir() and not os.access(file, os.R_OK | os.X_OK)]
    if any(file.name != "lost+found" for file in unreadable):  # which every ext4 volume has
        raise PermanentError(f"has folders that user {os.getuid()} may not read: {unreadable[0].name!r}")

    def pull(source: Path, offset: int, file: BinaryIO) -> None:
        with source.open("rb") as stream:
            stream.seek(offset)
            shutil.copyfileobj(stream, file, BUFFER)

    for file in filter(Path.is_file, files):
        source, path = file.resolve(), str(file.relative_to(top.parent if file == top else top))
        if root not in source.parents:
            raise PermanentError(f"has {path!r}, which leads out of claim {uri.host}")
        stat = source.stat()
        yield RemoteFile(path, stat.st_size, str(stat.st_mtime_ns), partial(pull, source))


def checked_path(path: str) -> str:
    """Return a path that stays in the directory it is appended to. Raises `PermanentError`."""
    if {"", ".", ".."} & set(path.split("/")) or re.search(r"[\\\x00-\x1f]", path):
        raise PermanentError(f"has an object named {path!r}, which could lead out of the destination")
    return path


# ---- models of an MLflow registry: the version that an alias or a stage names now, and the files of a version

_REGISTRY = "/api/2.0/mlflow"
_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
_READABLE_SCHEMES = ("s3", "gs", "https")


class _Version(msgspec.Struct):
    version: str = ""
    status: str = ""


class _File(msgspec.Struct):
    path: str
    is_dir: bool = False
    file_size: int | None = None


class _Answer(msgspec.Struct):
    """What is read of the answers. A registry answers with one version, or for a stage with some."""

    model_version: _Version = msgspec.field(default_factory=_Version)
    model_versions: tuple[_Version, ...] = ()
    artifact_uri: str = ""
    files: tuple[_File, ...] = ()
    message: str = ""


def current_version(uri: ModelURI, endpoint: str | None) -> str:
    """Return the version that an alias or a stage names now. Raises `PermanentError`, and errors of the server."""
    name, alias, stage = uri.host, uri.registered["alias"], uri.registered["stage"]
    if alias:
        return _call(endpoint, "registered-models/alias", name=name, alias=alias).model_version.version
    stages = {"stages": stage.capitalize()} if stage else {}
    versions = _call(endpoint, "registered-models/get-latest-versions", name=name, **stages).model_versions
    newest = max((int(version.version) for version in versions), default=None)
    if newest is None:
        raise PermanentError("has no version in this stage" if stage else "has no version")
    return str(newest)


def model_files(uri: ModelURI, endpoints: Mapping[str, str], claim_mount: Path) -> list[RemoteFile]:
    """Return the files of a model of any source, as `list_files` does. Of a registry: those of a version."""
    if uri.scheme != "models":
        return list_files(uri, endpoints, claim_mount)
    endpoint = endpoints.get(uri.scheme)
    version = {"name": uri.host, "version": uri.registered["version"] or ""}
    status = _call(endpoint, "model-versions/get", **version).model_version.status
    if status != "READY":
        raise PermanentError(f"has status {status}, not READY")
    place = _call(endpoint, "model-versions/get-download-uri", **version).artifact_uri
    own = f"{(endpoint or '').rstrip('/')}{_ARTIFACTS}"
    host = re.escape(urlsplit(own).netloc)
    if served := re.fullmatch(rf"(?:mlflow-artifacts:(?://{host})?|{re.escape(own)})/(?!/)(.*)", place):
        return list(_served_files(own, served[1].strip("/")))
    stored_at = parse_model_uri(place)
    if isinstance(stored_at, BadAnnotation) or stored_at.scheme not in _READABLE_SCHEMES:
        readable = ", ".join(_READABLE_SCHEMES)
        raise PermanentError(f"is in {redacted(place)}, but only {readable} and its own server can be read")
    os.environ.pop("MODEL_HTTP_AUTHORIZATION", None)
    return list_files(stored_at, endpoints, claim_mount)


def _served_files(root: str, path: str) -> Iterator[RemoteFile]:
    """List a folder that the server of the registry serves. It says sizes, except of empty files, and no digests."""
    authorization, folders = _authorization(), [""]
    while folders:
        folder = folders.pop()
        listing = f"{root}?{urlencode({'path': f'{path}/{folder}'.strip('/')})}"
        for file in _read(listing, authorization).files:
            inside = checked_path(f"{folder}/{file.path}".strip("/"))
            if file.is_dir:
                folders.append(inside)
                continue
            url = f"{root}/{quote(f'{path}/{inside}'.strip('/'))}"
            yield RemoteFile(inside, file.file_size, url, partial(pull_url, url, authorization, ""))


def _call(endpoint: str | None, call: str, **parameters: str) -> _Answer:
    if not endpoint:
        raise PermanentError("needs --endpoint, the MLflow server")
    return _read(f"{endpoint.rstrip('/')}{_REGISTRY}/{call}?{urlencode(parameters)}", _authorization())


def _read(url: str, authorization: str | None) -> _Answer:
    try:
        with open_url(url, authorization, {}) as answer:
            return msgspec.json.decode(answer.read(), type=_Answer, strict=False)
    except urllib.error.HTTPError as error:
        try:
            message = msgspec.json.decode(error.read(), type=_Answer).message
        except msgspec.MsgspecError:
            message = ""
        error.msg = truncate(printable(message or error.msg), 300)
        raise


def _authorization() -> str | None:
    """Return the header as MLflow's client makes it: a user and a password win over a token."""
    user, password, token = (
        os.environ.get(f"MLFLOW_TRACKING_{name}") for name in ("USERNAME", "PASSWORD", "TOKEN")
    )
    if user and password:
        return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
    return f"Bearer {token}" if token else None
