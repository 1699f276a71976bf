"""GPUs that a LimitRange gives by default, on a real API server: who hears of them, and that what it says is right."""

from collections.abc import Iterator

import pytest

from tests.builders import JSON, container, deployment, gpu_container, pod
from tests.cluster.applying import apply, named
from tests.cluster.configuration import default_policy
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook, serving

NAMESPACE = "gpus-by-default"
GIVING = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "gpus", "namespace": NAMESPACE},
    "spec": {"limits": [{"type": "Container", "default": {"nvidia.com/gpu": "2"}}]},
}
GIVES = "LimitRange gpus gives nvidia.com/gpu: 2 to each container that requests none"


@pytest.fixture(scope="module", autouse=True)
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    reading = ("--kubeconfig", plane.kubeconfig())
    policy = default_policy({"gpu-requests": {"maxPerContainer": 1}})
    with serving(plane, policy, NAMESPACE, arguments=reading) as running:
        yield running


def test_a_limit_range_that_gives_gpus(plane: ControlPlane) -> None:
    taken, said = apply(plane, GIVING)

    assert taken
    assert said == (
        'Warning: LimitRange gpus-by-default/gpus: spec.limits[0].default[nvidia.com/gpu] = "2": set default[nvidia.com/gpu] and '
        "defaultRequest[nvidia.com/gpu] to 0; each container that requests none gets it, also sidecars and init containers "
        "[limit-range]"
    )

    def answer(name: str, main: JSON) -> tuple[bool, str]:
        return apply(plane, named(name, pod(main), NAMESPACE), dry_run=True)

    # The webhook follows LimitRanges from the first pod on that one gave something.
    assert eventually(lambda: GIVES in answer("web", container())[1])
    taken, said = answer("web", container())
    assert not taken
    assert (
        'spec.containers[0].resources.limits[nvidia.com/gpu] (container "main") = "2": '
        "set nvidia.com/gpu: 0 in resources.limits if it needs no GPU, "
        f"or set nvidia.com/gpu: 1 or less; must be at most 1 per container by policy; {GIVES} [gpu-requests]"
    ) in said

    none = container(resources={"limits": {"nvidia.com/gpu": "0"}})
    assert answer("without", none) == (True, "")
    assert answer("one", gpu_container("1"))[0]

    beside = deployment("web", gpu_container("1"), container("proxy"), namespace=NAMESPACE)
    taken, said = apply(plane, beside, dry_run=True)
    assert taken
    assert GIVES in said
