"""Models of an MLflow registry: the version that an alias or a stage names now, and the files of a version.

By MLflow's REST API (`model_registry.proto` and `mlflow_artifacts.proto`, 3.17). mlflow-skinny would add 22 packages of 70 MB to
the 94 MB of the image, resumes no file, and reads addresses from the environment. Credentials go to the server of the policy
only: the answers of the registry name other hosts.
"""

import base64
import os
import re
import urllib.error
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from policies.finding import truncate
from policies.models.warming.model_uri import ModelURI, parse_model_uri, shown
from policies.pods.annotations import BadAnnotation
from policies.printable import printable
from webhook.tools.fetch.report import PermanentError
from webhook.tools.fetch.sources import RemoteFile, list_files, open_url, pull_url, safe

_REGISTRY = "/api/2.0/mlflow"
_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
_READABLE = ("s3", "gs", "https")


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
    newest = max((int(each.version) for each in versions), default=None)
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
    if isinstance(stored_at, BadAnnotation) or stored_at.scheme not in _READABLE:
        readable = ", ".join(_READABLE)
        raise PermanentError(f"is in {shown(place)}, but only {readable} and its own server can be read")
    os.environ.pop("MODEL_HTTP_AUTHORIZATION", None)
    return list_files(stored_at, endpoints, claim_mount)


def _served_files(root: str, path: str) -> Iterator[RemoteFile]:
    """List a folder that the server of the registry serves. It says sizes, except of empty files, and no digests."""
    authorization, folders = _authorization(), [""]
    while folders:
        folder = folders.pop()
        listing = f"{root}?{urlencode({'path': f'{path}/{folder}'.strip('/')})}"
        for file in _read(listing, authorization).files:
            inside = safe(f"{folder}/{file.path}".strip("/"))
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
