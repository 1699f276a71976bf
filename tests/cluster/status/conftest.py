"""An installation with scheduler and controllers, for what `status` and `why` say of it, and helpers to ask them."""

from collections.abc import Iterator

import pytest

from tests.cluster.controllers import Running
from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.gpuquota import install_quota_kind
from tests.controlplane.webhook import Webhook

TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
A100 = {"accelerator": "nvidia-a100-80gb"}
T4 = {"accelerator": "nvidia-t4"}


@pytest.fixture(scope="package")
def cluster() -> Iterator[ControlPlane]:
    """Serve everything, with one node of A100 cards and one of T4 cards. `engineer` may do nothing at first."""
    plane = ControlPlane(controllers=True, scheduler=True)
    plane.add_user("engineer", groups=["ml-engineers"])
    with plane, Webhook(plane, host=71, arguments=("--kubeconfig", plane.kubeconfig())) as webhook:
        webhook.register()
        install_quota_kind(plane.client())
        create_gpu_node(plane.client(), "a100-0", labels=A100, taints=(TAINT,))
        create_gpu_node(plane.client(), "t4-0", labels=T4, taints=(TAINT,), resources={"nvidia.com/gpu": "4"})
        with Running(plane):
            yield plane
