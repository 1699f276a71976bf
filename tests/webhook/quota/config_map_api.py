"""The API server's part in a ConfigMap that our processes share, in memory."""

from typing import Any

import msgspec

from webhook.cluster import errors


class ConfigMapApi:
    """Two calls, on one ConfigMap. `fails` are errors of the next calls, None for none."""

    def __init__(self, name: str, data: dict[str, str] | None = None, *fails: Exception | None) -> None:
        self.name, self.data, self.fails = name, data or {}, list(fails)
        self.version = 1
        self.calls: list[str] = []

    def get(self, path: str, **_: Any) -> bytes:
        self._called("get", path)
        metadata = {"name": self.name, "resourceVersion": str(self.version)}
        return msgspec.json.encode({"metadata": metadata, **({"data": self.data} if self.data else {})})

    def patch(self, path: str, body: bytes, **_: Any) -> bytes:
        self._called("patch", path)
        change = msgspec.json.decode(body)
        if change["metadata"]["resourceVersion"] != str(self.version):
            raise errors.Conflict("the object has been modified")
        merged = {**self.data, **change["data"]}
        self.data = {key: value for key, value in merged.items() if value is not None}
        self.version += 1
        return body

    def _called(self, verb: str, path: str) -> None:
        assert path == f"/api/v1/namespaces/gpu-admission/configmaps/{self.name}"
        self.calls.append(verb)
        if self.fails and (failure := self.fails.pop(0)) is not None:
            raise failure
