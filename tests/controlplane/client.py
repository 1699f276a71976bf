"""A thin JSON client of the API server, for tests and load: no models, no retries, no raising on 4xx."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
import urllib3

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # server-side apply; JSON is YAML
WARNING = re.compile(r'299 - "(.*)"')


class Answer(NamedTuple):
    status: int
    body: Any
    warnings: list[str]


def accepted(answer: tuple[int, Any]) -> Any:
    """Return the body of an answer that has to be 200 or 201."""
    status, body = answer
    assert status in {200, 201}, body
    return body


class Client:
    """One user's connections to one API server; any number of threads may use it.

    Every method returns (HTTP status, decoded body); the body is text where the answer is not JSON. Only a
    broken connection raises (urllib3.exceptions.HTTPError).
    """

    def __init__(
        self, url: str, *, ca_file: Path, token: str, connections: int = 64, timeout: float = 60
    ) -> None:
        self._pool = urllib3.connection_from_url(
            url,
            maxsize=connections,
            retries=False,
            timeout=timeout,
            ca_certs=str(ca_file),
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
        )

    def get(self, path: str, query: Mapping[str, str] | None = None) -> tuple[int, Any]:
        return self.request("GET", path, query=query)

    def post(self, path: str, body: Any, query: Mapping[str, str] | None = None) -> tuple[int, Any]:
        return self.request("POST", path, body, query)

    def put(self, path: str, body: Any, query: Mapping[str, str] | None = None) -> tuple[int, Any]:
        return self.request("PUT", path, body, query)

    def patch(
        self, path: str, body: Any, query: Mapping[str, str] | None = None, *, content_type: str = MERGE_PATCH
    ) -> tuple[int, Any]:
        return self.request("PATCH", path, body, query, content_type=content_type)

    def delete(self, path: str, body: Any = None, query: Mapping[str, str] | None = None) -> tuple[int, Any]:
        return self.request("DELETE", path, body, query)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        *,
        content_type: str = "application/json",
    ) -> tuple[int, Any]:
        return self.send(method, path, body, query, content_type=content_type)[:2]

    def apply(self, document: Any, query: Mapping[str, str] | None = None) -> Answer:
        """Create the object, or merge it into the one of its name, with strict validation as `kubectl apply` has it."""
        group, metadata = document["apiVersion"], document["metadata"]
        path = f"/api/{group}" if "/" not in group else f"/apis/{group}"
        path += f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
        kind = document["kind"].lower()
        path += "/" + (
            f"{kind[:-1]}ies" if kind[-1] == "y" else f"{kind}es" if kind[-1] == "s" else f"{kind}s"
        )
        query = {"fieldValidation": "Strict", **(query or {})}
        patched = self.send("PATCH", f"{path}/{metadata['name']}", document, query, content_type=MERGE_PATCH)
        return patched if patched.status != 404 else self.send("POST", path, document, query)

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        *,
        content_type: str = "application/json",
    ) -> Answer:
        response = self._pool.request(
            method,
            f"{path}?{urlencode(query)}" if query else path,
            body=None if body is None else msgspec.json.encode(body),
            headers={**self._pool.headers, "Content-Type": content_type},
        )
        warnings = [
            re.sub(r"\\(.)", r"\1", found[1]).encode("latin-1").decode()  # as kubectl reads it
            for header in response.headers.getlist("Warning")
            if (found := WARNING.fullmatch(header))
        ]
        if response.headers.get("Content-Type", "").startswith("application/json"):
            return Answer(response.status, msgspec.json.decode(response.data), warnings)
        return Answer(response.status, response.data.decode(errors="replace"), warnings)

    def close(self) -> None:
        self._pool.close()
