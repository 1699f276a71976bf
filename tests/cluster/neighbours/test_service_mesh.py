"""A sidecar injector as Istio's, before and after us: native sidecars, and proxies that hold the application back.

Reproduced, not the real Istio.
"""

from collections.abc import Callable

import pytest

from tests.builders import JSON, gpu_container
from tests.cluster.neighbours.team import TOLERATION, Team, body, ours
from tests.cluster.other_webhook import OtherWebhook

BEFORE = pytest.param("istio-sidecar-injector", id="before-us")
AFTER = pytest.param("zzz-sidecar-injector", id="after-us")
PROXY: JSON = {"name": "istio-proxy", "image": "proxyv2", "resources": {"requests": {"cpu": "100m"}}}
INIT: JSON = {"name": "istio-init", "image": "proxyv2"}
HOLD = {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}
HIDDEN = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
"""gpu-isolation is enforced here: what asks for no GPU gets none, whoever added it."""
WARMED = {"gpu-admission.dev/model-uri": "s3://models/llama-3"}


def inject(lists: Callable[[JSON], None]) -> Callable[[JSON], None]:
    """Return an injector that does nothing where its proxy is, as they all do when they are called again."""

    def change(document: JSON) -> None:
        spec = document["spec"]
        if not any(
            each["name"] == "istio-proxy" for each in [*spec["containers"], *spec.get("initContainers", [])]
        ):
            lists(spec)

    return change


# As Istio orders them (`reorderPod` of pkg/kube/inject): what redirects the network to the proxy comes just before a native
# proxy, so that init containers are in the mesh; else it comes last, so that they are not cut off.
def native(spec: JSON) -> None:
    spec["initContainers"] = [INIT, {**PROXY, "restartPolicy": "Always"}, *spec.get("initContainers", [])]


def classic(spec: JSON) -> None:
    spec["initContainers"] = [*spec.get("initContainers", []), INIT]
    spec["containers"] = [{**PROXY, "lifecycle": HOLD}, *spec["containers"]]


@pytest.mark.parametrize("name", [BEFORE, AFTER])
def test_a_model_is_fetched_through_a_native_sidecar(team: Team, other: OtherWebhook, name: str) -> None:
    with other.in_force(inject(native), name=name, reinvocation="IfNeeded"):
        status, answer = team.create(body("server", gpu_container(), metadata={"annotations": WARMED}))

    assert status == 201, answer
    init, proxy, fetcher = answer["spec"]["initContainers"]
    assert (init["name"], proxy["name"]) == ("istio-init", "istio-proxy")
    assert HIDDEN in proxy["env"]
    assert fetcher["args"][0] == "s3://models/llama-3"
    (server,) = answer["spec"]["containers"]
    assert server["name"] == gpu_container()["name"]
    assert ours(answer["spec"]["tolerations"]) == [TOLERATION]


@pytest.mark.parametrize("name", [BEFORE, AFTER])
def test_a_proxy_that_holds_the_application_back_stays_first(
    team: Team, other: OtherWebhook, name: str
) -> None:
    with other.in_force(inject(classic), name=name, reinvocation="IfNeeded"):
        status, answer = team.create(body("server", gpu_container(), metadata={"annotations": WARMED}))

    assert status == 201, answer
    proxy, server = answer["spec"]["containers"]
    assert proxy["name"] == "istio-proxy"
    assert proxy["lifecycle"] == HOLD
    assert HIDDEN in proxy["env"]
    assert server["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    # It fetches before the network is redirected to a proxy that does not run yet.
    fetcher, init = answer["spec"]["initContainers"]
    assert init["name"] == "istio-init"
    assert fetcher["args"][0] == "s3://models/llama-3"
