"""The Lease of the controller."""

from typing import Any

LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpu-admission/leases/gpu-admission-controller"


def lease(renewed: str) -> dict[str, Any]:
    spec = {"holderIdentity": "a", "renewTime": f"2027-01-31T{renewed}.000000Z", "leaseDurationSeconds": 5}
    return {LEASE: {"metadata": {"name": "gpu-admission-controller"}, "spec": spec}}


LEADS = lease("11:59:50")
