"""Where things of a namespace are."""

from tests.controlplane import CLAIMS_API

_CORE = {"pods", "resourcequotas", "events"}


def path(namespace: str, plural: str, name: str = "") -> str:
    api = "/api/v1" if plural in _CORE else CLAIMS_API
    return f"{api}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")
