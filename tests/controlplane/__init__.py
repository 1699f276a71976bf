"""A real Kubernetes control plane on loopback, for tests, demo and benchmarks.

with ControlPlane(controllers=True, scheduler=True) as plane:
    create_gpu_node(plane.client(), "a100-0", labels={"accelerator": "nvidia-a100"})
    plane.kubectl("apply", "-f", "pod.yaml")
"""

from tests.controlplane.build import ControlPlaneUnavailable, build, locate, minor_version
from tests.controlplane.client import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client, accepted
from tests.controlplane.nodes import create_gpu_node
from tests.controlplane.pki import Authority
from tests.controlplane.plane import CLAIMS_API, ControlPlane, ControlPlaneFailed

__all__ = [
    "APPLY_PATCH",
    "CLAIMS_API",
    "JSON_PATCH",
    "MERGE_PATCH",
    "STRATEGIC_PATCH",
    "Authority",
    "Client",
    "ControlPlane",
    "ControlPlaneFailed",
    "ControlPlaneUnavailable",
    "accepted",
    "build",
    "create_gpu_node",
    "locate",
    "minor_version",
]
