"""A real server of MLflow, from PyPI, and a proxy before it that asks for credentials over TLS.

It runs in a virtual environment of its own, which the first test installs, hash-locked, into the cache where Helm is.
GPU_ADMISSION_REQUIRE_MLFLOW=1 makes its absence a failure.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import pytest

from tests.controlplane.build import ControlPlaneUnavailable
from tests.virtual_environment import installed
from tests.webhook.tools.fetch.servers import Handler

CONSTRAINTS = Path(__file__).with_name("mlflow") / "constraints.txt"
"""`make lock` writes it. The package mlflow would also bring pandas, scikit-learn, pyarrow and others."""


def _python() -> Path:
    try:
        return installed("mlflow", CONSTRAINTS, sys.stderr)
    except ControlPlaneUnavailable as unavailable:
        _unavailable(str(unavailable))


def _unavailable(why: str) -> NoReturn:
    if os.environ.get("GPU_ADMISSION_REQUIRE_MLFLOW") == "1":
        pytest.fail(f"GPU_ADMISSION_REQUIRE_MLFLOW=1: {why}", pytrace=False)
    pytest.skip(why)


@dataclass
class MLflow:
    """A running server: models are registered here without credentials."""

    url: str

    def call(self, path: str, body: bytes | None = None, method: str = "POST", **fields: Any) -> Any:
        data = json.dumps(fields).encode() if body is None else body
        headers = {"Content-Type": "application/json" if body is None else "application/octet-stream"}
        request = urllib.request.Request(f"{self.url}/api/2.0/{path}", data, headers, method=method)  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return json.loads(answer.read() or b"{}")

    def register(self, name: str, files: dict[str, bytes], source: str = "") -> str:
        """Register a version with these files of a run, or with another source, and return it."""
        with contextlib.suppress(urllib.error.HTTPError):
            self.call("mlflow/registered-models/create", name=name)
        run = self.call("mlflow/runs/create", experiment_id="0")["run"]["info"]
        place = run["artifact_uri"].removeprefix("mlflow-artifacts:/")
        for path, body in files.items():
            self.call(f"mlflow-artifacts/artifacts/{place}/model/{quote(path)}", body, "PUT")
        at = (
            {"source": source}
            if source
            else {"source": f"{run['artifact_uri']}/model", "run_id": run["run_id"]}
        )
        version: str = self.call("mlflow/model-versions/create", name=name, **at)["model_version"]["version"]
        return version

    def point(self, name: str, alias: str, version: str) -> None:
        self.call("mlflow/registered-models/alias", name=name, alias=alias, version=version)

    def stage(self, name: str, stage: str, version: str) -> None:
        self.call("mlflow/model-versions/transition-stage", name=name, stage=stage, version=version)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[MLflow]:
    python = _python()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--gunicorn-opts=--timeout=120", "--workers=1", "--host=127.0.0.1", f"--port={port}"]
    stores = [
        f"--backend-store-uri=sqlite:///{folder}/mlflow.db",
        f"--artifacts-destination={folder}/artifacts",
    ]
    log = folder / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [python, "-m", "mlflow", "server", *options, *stores],
            cwd=folder,
            env={
                "PATH": f"{python.parent}:{os.environ['PATH']}",
                "HOME": str(folder),
                "DO_NOT_TRACK": "true",
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            },
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield _answering(MLflow(f"http://127.0.0.1:{port}"), server, log)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _answering(mlflow: MLflow, server: subprocess.Popen[bytes], log: Path) -> MLflow:
    until = time.monotonic() + 180
    while time.monotonic() < until and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{mlflow.url}/health", timeout=5):  # noqa: S310
            return mlflow
        time.sleep(0.2)
    raise AssertionError(log.read_text())


class Proxy(Handler):
    """Passes on what has the credentials, as a proxy before MLflow does. Its store has one object: the address of MLflow."""

    credentials = "Bearer t0pS3cretToken"

    def route(self, _path: str, _query: dict[str, list[str]]) -> None:
        if self.headers["Authorization"] != self.credentials:
            self.reply(401, b'{"message": "no\\u0007 entry"}')
            return
        asked = {name: self.headers[name] for name in ("Range", "If-Range") if self.headers[name]}
        upstream = self.server.store.objects["mlflow"].decode()
        request = urllib.request.Request(upstream + self.path, headers=asked)  # noqa: S310
        try:
            with urllib.request.urlopen(request) as answer:  # noqa: S310
                span = answer.headers["Content-Range"]
                self.reply(answer.status, answer.read(), **({"Content_Range": span} if span else {}))
        except urllib.error.HTTPError as error:
            self.reply(error.code, error.read())
