"""Kinds of objects as an API server serves them, found by any of the names that kubectl takes: kind, plural, singular, short."""

from collections.abc import Iterable
from typing import Any

import msgspec

from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Resource

AGGREGATED = "application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io"
"""Every resource of every group in one answer (`apidiscovery.k8s.io/v2`, served since Kubernetes 1.30)."""


class UnknownKindError(Exception):
    """The API server serves no such kind; the message is a sentence."""


class ServedKind(msgspec.Struct, frozen=True):
    """A kind of namespaced objects, in the version that the API server prefers."""

    group: str
    version: str
    kind: str
    plural: str
    names: frozenset[str]
    """In lower case, with and without the group."""

    @property
    def resource(self) -> Resource:
        prefix = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return Resource(prefix, self.plural)


class ServedKinds:
    """All kinds of namespaced objects that the API server serves, read once. Raises `errors.ApiError`."""

    def __init__(self, api: ApiClient) -> None:
        self._kinds: list[ServedKind] = []
        for path in ("/api", "/apis"):
            for group in _GROUPS.decode(api.get(path, accept=AGGREGATED)).items:
                self._kinds += _kinds(group)

    @property
    def plurals(self) -> list[str]:
        """The names that kubectl completes, in the order of the API server."""
        return list(dict.fromkeys(kind.plural for kind in self._kinds))

    def find(self, word: str) -> ServedKind:
        """Return the kind that the word means, the first in the order of the API server. Raises UnknownKindError."""
        name = word.lower()
        served = next((kind for kind in self._kinds if name in kind.names), None)
        if served is None:
            raise UnknownKindError(f'the API server serves no namespaced kind "{word}"')
        return served

    def of_reference(self, api_version: str, kind: str) -> ServedKind | None:
        """Return the kind that a reference in an object means, None if it is not served."""
        group = api_version.rpartition("/")[0]
        return next((each for each in self._kinds if (each.group, each.kind) == (group, kind)), None)


class _Groups(msgspec.Struct):
    items: list[dict[str, Any]] = []


_GROUPS = msgspec.json.Decoder(_Groups)


def _kinds(group: dict[str, Any]) -> Iterable[ServedKind]:
    of_group = group["metadata"].get("name", "")
    kinds: dict[str, ServedKind] = {}
    for version in group.get("versions", ()):  # the preferred one first
        for resource in version.get("resources", ()):
            kind = (resource.get("responseKind") or {}).get("kind", "")
            if resource.get("scope") == "Namespaced" and kind:
                plural = resource["resource"]
                names = {
                    kind.lower(),
                    plural,
                    resource.get("singularResource", ""),
                    *resource.get("shortNames", ()),
                }
                names -= {""}
                names |= {f"{name}.{of_group}" for name in names if of_group}
                served = ServedKind(of_group, version["version"], kind, plural, frozenset(names))
                kinds.setdefault(plural, served)
    return kinds.values()
