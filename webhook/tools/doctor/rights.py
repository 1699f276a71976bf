"""Who may do what, asked of the API server itself: SelfSubjectAccessReview, SubjectAccessReview."""

from functools import lru_cache
from typing import Any

import msgspec

from webhook.cluster.api import ApiClient

AUTHORIZATION = "/apis/authorization.k8s.io/v1"


class Right(msgspec.Struct, frozen=True):
    """A verb on a resource, such as `list` `nodes`; in a namespace, and of one object, where those are given."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def words(self) -> str:
        """Return it as `kubectl auth can-i` takes it."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        place = f" -n {self.namespace}" if self.namespace else ""
        return f"{self.verb} {resource}{f'/{self.name}' if self.name else ''}{place}"

    def attributes(self) -> dict[str, str]:
        resource, _, subresource = self.resource.partition("/")
        attributes = {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": self.namespace,
            "name": self.name,
        }
        return {key: value for key, value in attributes.items() if value}


class _Status(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status


class Rights:
    """Asks each question once."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self.mine = lru_cache(maxsize=None)(self._mine)

    def _mine(self, right: Right) -> bool:
        """Return whether the present user has the right. Raises `errors.ApiError`."""
        return self._review("SelfSubjectAccessReview", {"resourceAttributes": right.attributes()})

    def of_service_account(self, namespace: str, name: str, right: Right) -> bool:
        """Return whether that ServiceAccount has the right. Raises `errors.ApiError`."""
        spec = {
            "user": f"system:serviceaccount:{namespace}:{name}",
            "groups": [
                "system:serviceaccounts",
                f"system:serviceaccounts:{namespace}",
                "system:authenticated",
            ],
            "resourceAttributes": right.attributes(),
        }
        return self._review("SubjectAccessReview", spec)

    def _review(self, kind: str, spec: dict[str, Any]) -> bool:
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        path = f"{AUTHORIZATION}/{kind.lower()}s"
        return msgspec.json.decode(
            self._api.post(path, msgspec.json.encode(body)), type=_Review
        ).status.allowed
