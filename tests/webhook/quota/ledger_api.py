"""The API server's part in ledgers, in memory: objects by path, each write with a resourceVersion of its own."""

import threading
from time import sleep
from typing import Any, cast

import msgspec

from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.ledger_objects import ledger_objects_path
from webhook.quota.no_quota import TeamLookup
from webhook.quota.team_documents import team_path

INSTALLATION = "gpu-admission"
LEDGERS = ledger_objects_path(INSTALLATION)


class LedgerApi:
    """For any number of threads. `writes` counts those of each path, without conflicts. `reads` are the paths read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, dict[str, Any]] = {}
        self._revision = 0
        self.writes: dict[str, int] = {}
        self.reads: list[str] = []
        self.teams: list[dict[str, Any]] = []
        """The ClusterGPUQuotas."""
        self.write_seconds = 0.0
        """How long a swap takes at least."""
        self.teams_fail: errors.ApiError | None = None

    def store(self) -> ClusterStore:
        """Return the store of another process."""
        api = cast(ApiClient, self)
        return ClusterStore(api, INSTALLATION, TeamLookup(api).of)

    def get(self, path: str, **_: Any) -> bytes:
        with self._lock:
            self.reads.append(path)
            if path == team_path():
                if self.teams_fail is not None:
                    raise self.teams_fail
                return msgspec.json.encode({"metadata": {}, "items": self.teams})
            return msgspec.json.encode(self._found(path))

    def post(self, path: str, body: bytes, **_: Any) -> bytes:
        document = msgspec.json.decode(body)
        path = f"{path}/{document['metadata']['name']}"
        with self._lock:
            if path in self._objects:
                raise errors.AlreadyExists(path)
            document["metadata"]["uid"] = f"uid-{self._revision}"
            return self._stored(path, document)

    def put(self, path: str, body: bytes, **_: Any) -> bytes:
        document = msgspec.json.decode(body)
        sleep(self.write_seconds)
        with self._lock:
            before = self._found(path)["metadata"]
            if document["metadata"]["resourceVersion"] != before["resourceVersion"]:
                raise errors.Conflict(path)
            document["metadata"]["uid"] = before["uid"]
            return self._stored(path, document)

    def delete(self, path: str, *, version: str, **_: Any) -> None:
        with self._lock:
            if self._found(path)["metadata"]["resourceVersion"] != version:
                raise errors.Conflict(path)
            del self._objects[path]

    def put_namespace(self, name: str, labels: dict[str, str]) -> None:
        with self._lock:
            metadata = {"name": name, "uid": name, "resourceVersion": "1", "labels": labels}
            self._objects[api_path("/api/v1", "namespaces", name)] = {"metadata": metadata}

    def _found(self, path: str) -> dict[str, Any]:
        if path not in self._objects:
            plural, name = path.split("/")[-2:]
            raise errors.NotFound(f'{plural}.gpu-admission.dev "{name}" not found')
        return self._objects[path]

    def _stored(self, path: str, document: dict[str, Any]) -> bytes:
        self._revision += 1
        document["metadata"] |= {"resourceVersion": str(self._revision)}
        self._objects[path] = document
        self.writes[path] = self.writes.get(path, 0) + 1
        return msgspec.json.encode({"metadata": document["metadata"]})
