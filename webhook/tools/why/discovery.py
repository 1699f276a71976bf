"""Kinds of objects as an API server serves them, found by any of the names that kubectl takes: kind, plural, singular, short."""

import msgspec

from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Resource

AGGREGATED = "application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io"
"""Every resource of every group in one answer (`apidiscovery.k8s.io/v2`, served since Kubernetes 1.30)."""


class UnknownKindError(Exception):
    """The API server serves no such kind; the message is a sentence."""


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


class _Resource(msgspec.Struct, frozen=True, rename="camel"):
    resource: str
    response_kind: _Kind | None = None
    scope: str = ""
    singular_resource: str = ""
    short_names: tuple[str, ...] = ()


class _Version(msgspec.Struct, frozen=True):
    version: str
    resources: tuple[_Resource, ...] = ()


class _Name(msgspec.Struct, frozen=True):
    name: str = ""


class _Group(msgspec.Struct, frozen=True):
    metadata: _Name = _Name()
    versions: tuple[_Version, ...] = ()


class _Groups(msgspec.Struct, frozen=True):
    items: tuple[_Group, ...] = ()


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
        groups = (
            group
            for path in ("/api", "/apis")
            for group in msgspec.json.decode(api.get(path, accept=AGGREGATED), type=_Groups).items
        )
        self._kinds = [kind for group in groups for kind in _kinds(group)]

    def find(self, word: str) -> ServedKind:
        """Return the kind that the word means, the first in the order of the API server. Raises UnknownKindError."""
        name = word.lower()
        found = next((kind for kind in self._kinds if name in kind.names), None)
        if found is None:
            raise UnknownKindError(f'the API server serves no namespaced kind "{word}"')
        return found

    def of_reference(self, api_version: str, kind: str) -> ServedKind | None:
        """Return the kind that a reference in an object means, None if it is not served."""
        group = api_version.rpartition("/")[0]
        return next((each for each in self._kinds if (each.group, each.kind) == (group, kind)), None)


def _kinds(group: _Group) -> list[ServedKind]:
    found: dict[str, ServedKind] = {}
    for version in group.versions:  # the preferred one first
        for each in version.resources:
            kind = each.response_kind.kind if each.response_kind else ""
            if each.scope == "Namespaced" and kind:
                names = {kind.lower(), each.resource, each.singular_resource, *each.short_names} - {""}
                qualified = {f"{name}.{group.metadata.name}" for name in names if group.metadata.name}
                served = ServedKind(
                    group.metadata.name, version.version, kind, each.resource, frozenset(names | qualified)
                )
                found.setdefault(each.resource, served)
    return list(found.values())
