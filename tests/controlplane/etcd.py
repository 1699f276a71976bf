"""The JSON gateway of an etcd that listens on a Unix socket (https://etcd.io/docs/latest/dev-guide/api_grpc_gateway/)."""

import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any

from tests.controlplane.plane import ControlPlane


class Etcd(http.client.HTTPConnection):
    def __init__(self, plane: ControlPlane) -> None:
        super().__init__("localhost", timeout=60)
        self._path = str(plane.processes.folder / "etcd.sock")

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

    def call(self, path: str, body: Mapping[str, Any], **headers: str) -> http.client.HTTPResponse:
        """Return the answer, which is still to be read."""
        self.request("POST", path, json.dumps(body), headers)
        answer = self.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"etcd: {answer.read().decode(errors='replace')}")
        return answer
