"""Where things of a namespace are, and what a namespace needs."""

from tests.controlplane import CLAIMS_API

ADMIN_ACCESS = {"labels": {"resource.kubernetes.io/admin-access": "true"}}
"""Metadata of a namespace whose claims may have `adminAccess`."""
_CORE = {"pods", "resourcequotas", "events"}


def path(namespace: str, plural: str, name: str = "") -> str:
    api = "/api/v1" if plural in _CORE else CLAIMS_API
    return f"{api}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")
