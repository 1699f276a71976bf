"""Reviews of pods with ResourceClaims: what becomes of them by what the claims ask for, as far as that is known."""

import copy
from collections.abc import Mapping
from time import monotonic
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from policies.gpus.claimed_devices import CLAIM, TEMPLATE, ClaimName, DeviceQuery, RequestedDevices
from policies.rule import Phase
from tests.builders import JSON, NOW, container, gpu_container, pod, view
from tests.cases import cases
from tests.strategies import PODS
from tests.webhook.serving.served import DEPLOYMENT, admission, cache_of, request
from webhook.configuration.documents import Document
from webhook.evaluation import tried_choices
from webhook.evaluation.evaluator import Creation, Evaluator
from webhook.evaluation.facts import Facts
from webhook.serving.dispatch import Admission

RULES = {
    "gpu-isolation": {"mode": "enforce"},
    "shared-memory": {"mode": "enforce", "sizeLimit": "1Gi"},
    "readiness-delay": {"modelLoadSeconds": 60},
    "gpu-quota": {"mode": "disabled"},
}
POLICY = Document("GPUPolicy", "default", {"rules": RULES})
CACHE = cache_of(POLICY)
KNOWN = {
    ClaimName(TEMPLATE, "ml-training", "link"): frozenset({DeviceQuery("dra.net")}),
    ClaimName(TEMPLATE, "ml-training", "card"): frozenset({DeviceQuery("gpu.nvidia.com")}),
    ClaimName(CLAIM, "ml-training", "link"): frozenset({DeviceQuery("dra.net")}),
    ClaimName(TEMPLATE, "elsewhere", "far"): frozenset({DeviceQuery("dra.net")}),
}


class Lookups:
    """Answers from KNOWN, and remembers what was asked, review by review."""

    def __init__(self) -> None:
        self.requested: list[list[ClaimName]] = []

    def __call__(self, _deadline: float) -> Any:
        requested: list[ClaimName] = []
        self.requested.append(requested)

        def lookup(name: ClaimName) -> RequestedDevices | None:
            requested.append(name)
            return KNOWN.get(name)

        return lookup


@pytest.fixture
def lookups() -> Lookups:
    return Lookups()


@pytest.fixture
def served(lookups: Lookups) -> Admission:
    return admission(POLICY, facts=lambda deadline: Facts(claims=lookups(deadline)))


PROBE: JSON = {"readinessProbe": {"httpGet": {"path": "/", "port": 80}}}


def server(*claims: str, **tweaks: Any) -> JSON:
    return container(resources={"claims": [{"name": name} for name in claims]}, **PROBE, **tweaks)


def claiming(*templates: str, containers: tuple[JSON, ...] = ()) -> JSON:
    claims = [{"name": name, "resourceClaimTemplateName": name} for name in templates]
    return pod(*(containers or (server(*templates),)), resourceClaims=claims)


def added(served: Admission, document: JSON) -> Mapping[str, Any]:
    """Return what /mutate adds, by the path in the pod."""
    response = served.mutate(request(document), monotonic() + 20)
    assert response.allowed
    operations = msgspec.json.decode(response.patch or b"[]")
    return {each["path"]: each["value"] for each in operations if "annotations" not in each["path"]}


VOID = "/spec/containers/0/env"
DELAY = "/spec/containers/0/readinessProbe/initialDelaySeconds"


@cases(
    ("document", "paths"),
    a_nic_is_as_a_pod_without_claims=(claiming("link"), {VOID}),
    a_pod_without_claims=(pod(server()), {VOID}),
    a_gpu=(claiming("card"), {DELAY, "/spec/tolerations"}),
    a_gpu_and_a_nic=(claiming("card", "link"), {DELAY, "/spec/tolerations"}),
    nobody_knows=(claiming("perhaps"), {DELAY}),
    a_nic_of_another_namespace=(claiming("far"), {DELAY}),
    a_nic_beside_whole_gpus=(
        claiming("link", containers=(gpu_container("2", **PROBE), server("link", name="side"))),
        {
            DELAY,
            "/spec/tolerations",
            "/spec/volumes",
            "/spec/containers/0/volumeMounts",
            "/spec/containers/1/env",
        },
    ),
)
def test_what_a_pod_gets(served: Admission, document: JSON, paths: set[str]) -> None:
    assert set(added(served, document)) == paths


def test_a_claim_and_a_template_of_one_name_are_two(served: Admission) -> None:
    claims = [{"name": "mine", "resourceClaimName": "card"}]

    assert set(added(served, pod(server("mine"), resourceClaims=claims))) == {DELAY}


def test_the_final_pod_is_judged_by_what_is_known_then(served: Admission) -> None:
    response = served.validate(request(claiming("card")), monotonic() + 20)

    assert any("toleration" in each and "is missing" in each for each in response.warnings or ())
    assert served.validate(request(pod(server())), monotonic() + 20).warnings == (
        served.validate(request(claiming("link")), monotonic() + 20).warnings
    )


def test_the_templates_of_a_workload_are_looked_up_together(served: Admission, lookups: Lookups) -> None:
    template = {"spec": claiming("link")["spec"]}
    document = {"metadata": {"name": "server"}, "spec": {"template": template}}
    response = served.validate(request(document, kind=DEPLOYMENT), monotonic() + 20)

    assert response.allowed
    assert not any("toleration" in each for each in response.warnings or ())
    assert lookups.requested == [[ClaimName(TEMPLATE, "ml-training", "link")]]


def without_claims(document: JSON) -> JSON:
    plain = copy.deepcopy(document)
    del plain["spec"]["resourceClaims"]
    for each in (*plain["spec"]["containers"], *(plain["spec"].get("initContainers") or ())):
        (each.get("resources") or {}).pop("claims", None)
    return plain


@given(document=PODS)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_with_claims_of_no_accelerators_a_pod_is_what_it_is_without(document: JSON) -> None:
    document["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "link"}]
    policy = CACHE.configuration.policies.for_namespace("ml-training")

    def decided(of: JSON) -> tuple[Any, ...]:
        by = Evaluator(
            cache=CACHE, now=NOW, facts=Facts(claims=lambda _name: frozenset({DeviceQuery("dra.net")}))
        )
        # A claim has bytes, too: without the bound, as many choices are tried with it as without.
        with patch.object(tried_choices, "MAX_BYTES", 10**9):
            decisions = [by.evaluate(Creation(phase, policy), view(of)) for phase in Phase]
        return tuple((each.operations, each.violations) for each in decisions)

    assert decided(document) == decided(without_claims(document))


@cases("document", no_claims=pod(gpu_container()), an_empty_list=claiming())
def test_a_pod_without_claims_costs_no_lookup(served: Admission, lookups: Lookups, document: JSON) -> None:
    added(served, document)

    assert [name for names in lookups.requested for name in names] == []


@cases(
    ("made", "operation", "want"),
    for_another_pod=(
        True,
        "CREATE",
        'spec.resourceClaims[0].resourceClaimName = "link": name a ResourceClaim that you create for several pods, or the '
        "template; must not name a claim that was made from a template: it counts the devices of its own pod alone",
    ),
    that_could_not_be_read=(
        None,
        "CREATE",
        'spec.resourceClaims[0].resourceClaimName = "link": create the pod again; could not be read',
    ),
    by_hand=(False, "CREATE", ""),
    of_a_stored_pod=(True, "UPDATE", ""),
)
def test_a_pod_that_names_a_claim(made: bool | None, operation: str, want: str) -> None:
    served = admission(POLICY, facts=lambda _deadline: Facts(is_made_for_pod=lambda _name: made))
    document = pod(gpu_container(), resourceClaims=[{"name": "link", "resourceClaimName": "link"}])
    old = {"oldObject": document} if operation == "UPDATE" else {}

    response = served.validate(request(document, operation=operation, **old), monotonic() + 20)

    assert response.allowed is not bool(want)
    assert want in str(response.status)
