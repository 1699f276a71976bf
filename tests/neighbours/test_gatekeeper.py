"""Gatekeeper: what docs/operate/coexistence.md says of policy engines, and of webhooks that run before ours."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.quota.quotas import in_force
from tests.controlplane import ControlPlane
from tests.controlplane.client import JSON_PATCH, accepted
from tests.neighbours.build import GATEKEEPER
from tests.neighbours.installation import Installation
from tests.neighbours.kubelet import LABELS, TAINT
from tests.neighbours.tenant import Seen, Stage, Tenant, gates_of, staged, tolerated, watch

MUTATES = "mutation.gatekeeper.sh"
VALIDATES = "validation.gatekeeper.sh"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{CONFIGURATIONS}/mutatingwebhookconfigurations/gatekeeper-mutating-webhook-configuration"
VALIDATING = f"{CONFIGURATIONS}/validatingwebhookconfigurations/gatekeeper-validating-webhook-configuration"
TOLERATION = {"key": TAINT["key"], "operator": "Exists", "effect": TAINT["effect"]}
REFUSED = "no pod may tolerate the taint of GPU nodes"
TEMPLATE = {
    "apiVersion": "templates.gatekeeper.sh/v1",
    "kind": "ConstraintTemplate",
    "metadata": {"name": "notolerations"},
    "spec": {
        "crd": {"spec": {"names": {"kind": "NoTolerations"}}},
        "targets": [
            {
                "target": "admission.k8s.gatekeeper.sh",
                "rego": f"""package notolerations
violation[{{"msg": "{REFUSED}"}}] {{
  input.review.object.spec.tolerations[_].key == "{TAINT["key"]}"
}}""",
            }
        ],
    },
}


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> Iterator[Stage]:
    def sampled(neighbour: Installation) -> Seen:
        tenant = Tenant(plane)
        tenant.apply(TEMPLATE)
        pins(tenant)
        return watch(neighbour, tenant, job(2), lambda it: len(it.running()) == 2)

    with staged(plane, GATEKEEPER, sampled) as stage:
        yield stage


@pytest.fixture
def tenant(stage: Stage, plane: ControlPlane) -> Tenant:  # noqa: ARG001 - it runs
    """Return a namespace that queues, with 4 GPUs."""
    return Tenant(plane, 4)


def job(pods: int) -> JSON:
    template = {"spec": pod("x")["spec"]}
    spec = {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}


def pod(name: str, gpus: int = 1, **metadata: Any) -> JSON:
    limits = {"cpu": "1", "memory": "1Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    container = {"name": "train", "image": "x", "resources": {"limits": limits}}
    return {
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }


def assigns(tenant: Tenant, location: str, value: object, is_done: Callable[[JSON], object]) -> None:
    """Have Gatekeeper set a field of each new pod of the tenant."""
    tenant.apply(
        {
            "apiVersion": "mutations.gatekeeper.sh/v1",
            "kind": "Assign",
            "metadata": {"name": f"{tenant.name}-{location.split('.')[1].partition('[')[0].lower()}"},
            "spec": {
                "applyTo": [{"groups": [""], "versions": ["v1"], "kinds": ["Pod"]}],
                "match": {"scope": "Namespaced", "namespaces": [tenant.name]},
                "location": location,
                "parameters": {"assign": {"value": value}},
            },
        }
    )
    assert eventually(lambda: is_done(tenant.create(pod("tried", 0), {"dryRun": "All"})[1]["spec"]))


def pins(tenant: Tenant) -> None:
    [[key, value]] = LABELS.items()
    assigns(tenant, f"spec.nodeSelector.{key}", value, lambda spec: spec.get("nodeSelector") == LABELS)


def refuses_tolerations(tenant: Tenant) -> None:
    constraint = {
        "apiVersion": "constraints.gatekeeper.sh/v1beta1",
        "kind": "NoTolerations",
        "metadata": {"name": tenant.name},
        "spec": {"match": {"kinds": [{"apiGroups": [""], "kinds": ["Pod"]}], "namespaces": [tenant.name]}},
    }
    path = "/apis/constraints.gatekeeper.sh/v1beta1/notolerations"
    assert eventually(lambda: tenant.client.post(path, constraint)[0] == 201)
    tolerating = pod("tried", 0)
    tolerating["spec"]["tolerations"] = [TOLERATION]
    assert eventually(lambda: tenant.create(tolerating, {"dryRun": "All"})[0] == 403)


def holds_nothing(tenant: Tenant) -> bool:
    return not tenant.ledger_object().reservations


def test_pods_are_made_once_with_us_as_without(stage: Stage, tenant: Tenant) -> None:
    pins(tenant)
    seen = watch(stage.neighbour, tenant, job(2), lambda it: len(it.running()) == 2)
    assert seen.is_as(stage.without_us, 2), (seen, stage.without_us)
    assert [(each["spec"]["nodeSelector"], tolerated(each)) for each in tenant.pods()] == [(LABELS, 1)] * 2


def test_a_class_that_it_chose_is_kept_and_charged(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    denying = Tenant(plane, name="deny-gatekeeper")
    in_force(denying, {"gpus": "4", "classes": {"nvidia-t4": "1"}})
    pins(denying)
    created = accepted(denying.create(pod("first")))
    assert created["spec"]["nodeSelector"] == LABELS
    status, answer = denying.create(pod("second"))
    assert status == 403
    assert "requested 1 nvidia-t4, " in answer["message"]


def test_a_toleration_that_it_set_is_not_repeated(tenant: Tenant) -> None:
    location = f"spec.tolerations[key: {TAINT['key']}]"
    assigns(tenant, location, TOLERATION, lambda spec: TOLERATION in spec["tolerations"])
    created = accepted(tenant.create(pod("one")))
    assert tolerated(created) == 1
    assert tenant.runs(1)


def test_a_class_that_contradicts_the_annotation_is_denied_with_both_values(tenant: Tenant) -> None:
    pins(tenant)
    asked = {"gpu-admission.dev/gpu-class": "nvidia-a100-80gb"}
    status, answer = tenant.create(pod("one", annotations=asked))
    assert status == 403
    assert answer["message"] == ""


def test_its_denial_of_what_we_injected_is_in_its_name_and_nothing_stays_reserved(tenant: Tenant) -> None:
    refuses_tolerations(tenant)
    status, answer = tenant.create(pod("one"))
    assert status == 403
    assert (
        f'admission webhook "{VALIDATES}" denied the request: [{tenant.name}] {REFUSED}' in answer["message"]
    )
    tenant.apply(job(1))
    assert tenant.tells("Job", REFUSED)
    tenant.remove("job", "train")
    assert eventually(lambda: holds_nothing(tenant), seconds=60)


def test_our_denial_of_what_it_set_is_in_our_name(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    only_a100 = Tenant(plane, 4, name="a100-gatekeeper")
    pins(only_a100)
    status, answer = only_a100.create(pod("one"))
    assert status == 403
    assert "[gpu-class]" in answer["message"]
    only_a100.apply(job(1))
    assert only_a100.tells("Job", "[gpu-class]")


def test_a_container_that_it_adds_is_checked_and_counted(tenant: Tenant) -> None:
    helper = {**pod("x", 9)["spec"]["containers"][0], "name": "helper"}
    tenant.apply(
        {
            "apiVersion": "mutations.gatekeeper.sh/v1",
            "kind": "Assign",
            "metadata": {"name": tenant.name},
            "spec": {
                "applyTo": [{"groups": [""], "versions": ["v1"], "kinds": ["Pod"]}],
                "match": {"scope": "Namespaced", "namespaces": [tenant.name]},
                "location": "spec.containers[name: helper]",
                "parameters": {"assign": {"value": helper}},
            },
        }
    )
    assert eventually(lambda: tenant.create(pod("tried", 0), {"dryRun": "All"})[0] == 403)
    status, answer = tenant.create(pod("one", 0))
    assert status == 403
    assert "9 GPUs can never fit: the quota grants 4" in answer["message"]


def test_a_pod_whose_gate_it_does_not_let_us_remove_says_so_and_starts_once_it_may(tenant: Tenant) -> None:
    accepted(tenant.create(pod("holder", 4)))
    assert tenant.runs(1)
    accepted(tenant.create(pod("next")))
    assert tenant.waits("next")
    refuses_tolerations(tenant)
    tenant.end("holder")
    assert tenant.tells("Pod", REFUSED)
    assert gates_of(tenant.get("next"))
    tenant.remove("notolerations", tenant.name)
    assert tenant.runs(1, "next", seconds=120)


@cases(("configuration", "name"), mutating=(MUTATING, MUTATES), validating=(VALIDATING, VALIDATES))
def test_one_that_is_down_denies_in_its_own_name_and_nothing_stays_reserved(
    stage: Stage, tenant: Tenant, configuration: str, name: str
) -> None:
    set_failure_policy(tenant, configuration, "Fail")
    stage.neighbour.kill()
    try:
        assert eventually(lambda: f'failed calling webhook "{name}"' in denied(tenant))
        assert eventually(lambda: holds_nothing(tenant), seconds=60)
    finally:
        set_failure_policy(tenant, configuration, "Ignore")
        stage.neighbour.start()
    accepted(tenant.create(pod("one")))
    assert tenant.runs(1)


def denied(tenant: Tenant) -> str:
    answer = tenant.create(pod("refused"))[1]
    return str(answer.get("message", ""))


def set_failure_policy(tenant: Tenant, configuration: str, policy: str) -> None:
    patch = [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": policy}]
    accepted(tenant.client.patch(configuration, patch, content_type=JSON_PATCH))


def test_pods_are_made_when_our_webhook_is_back(stage: Stage, tenant: Tenant) -> None:
    pins(tenant)
    stage.ours.webhook.kill()
    try:
        tenant.apply(job(2))
        assert tenant.tells("Job", 'failed calling webhook "pods.mutate.gpu-admission.dev"')
        assert not tenant.pods()
    finally:
        stage.ours.webhook.start()
    assert tenant.runs(2)
    assert [each["spec"]["nodeSelector"] for each in tenant.pods()] == [LABELS] * 2
