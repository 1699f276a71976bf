"""Kyverno: what docs/operate/coexistence.md says of engines that change pods and deny them."""

from collections.abc import Iterator
from functools import partial

import pytest
import yaml

from tests.builders import JSON, gpu_container
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane, helm
from tests.deploy.manifests import of_kind, rendered
from tests.neighbours.build import KYVERNO, source
from tests.neighbours.installation import Installation, installed
from tests.neighbours.tenant import Tenant, name_of, ours, tolerated

RESOURCES = {"ClusterPolicy": "clusterpolicies", "ValidatingPolicy": "validatingpolicies"}
POLICIES = "charts/kyverno-policies"
T4 = {"accelerator": "nvidia-t4"}
WARMED = {"gpu-admission.dev/model-uri": "s3://models/llama-3"}
KEYS = "{{ request.object.spec.tolerations[].key || `[]` }}"
MUST_TOLERATE = {
    "message": "a pod with GPUs must tolerate nvidia.com/gpu",
    "deny": {"conditions": {"any": [{"key": "nvidia.com/gpu", "operator": "AnyNotIn", "value": KEYS}]}},
}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def kyverno(plane: ControlPlane) -> Iterator[Installation]:
    with installed(plane, KYVERNO) as kyverno, ours(plane):
        yield kyverno


class Policed(Tenant):
    """A namespace with policies of its own."""

    def changed(self, patch: JSON, **resources: object) -> None:
        """Have Kyverno merge the patch into each pod of the namespace."""
        self._rule({"mutate": {"patchStrategicMerge": patch}}, resources)

    def validated(self, check: JSON, annotations: JSON | None = None, **resources: object) -> None:
        """Have Kyverno deny pods of the namespace that do not match the pattern."""
        self._rule({"validate": {"failureAction": "Enforce", **check}}, resources, annotations)

    def _rule(self, rule: JSON, resources: JSON, annotations: JSON | None = None) -> None:
        match = {"any": [{"resources": {"kinds": ["Pod"], "namespaces": [self.name], **resources}}]}
        self.enforced(
            {
                "apiVersion": "kyverno.io/v1",
                "kind": "ClusterPolicy",
                "metadata": {"name": self.name, "annotations": annotations or {}},
                "spec": {"background": False, "rules": [{"name": "rule", "match": match, **rule}]},
            }
        )

    def enforced(self, policy: JSON) -> None:
        self._plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(policy))
        version, resource = policy["apiVersion"], RESOURCES[policy["kind"]]
        path = f"/apis/{version}/{resource}/{policy['metadata']['name']}"
        assert eventually(partial(self._is_ready, path), seconds=60), self.client.get(path)[1]

    def _is_ready(self, path: str) -> bool:
        status = self.client.get(path)[1].get("status", {})
        conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
        return conditions.get("Ready") == "True" or status.get("conditionStatus", {}).get("ready") is True


def body(name: str, spec: JSON | None = None, **metadata: object) -> JSON:
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": [gpu_container()], **(spec or {})}}


def deployment(name: str) -> JSON:
    template = {"metadata": {"labels": {"app": name}}, "spec": body("")["spec"]}
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


@pytest.mark.usefixtures("kyverno")
def test_a_class_that_it_chose_is_kept_and_counted(plane: ControlPlane) -> None:
    tenant = Policed(plane, name="deny-ky-class")
    tenant.quota({"gpus": "4", "classes": {"nvidia-t4": "1"}})
    assert eventually(tenant.in_force)
    tenant.changed({"spec": {"nodeSelector": T4}})
    status, answer = tenant.create(body("first"))
    assert (status, answer["spec"]["nodeSelector"]) == (201, T4)
    status, answer = tenant.create(body("second"))
    assert (status, "requested 1 nvidia-t4, " in answer["message"]) == (403, True), answer


@pytest.mark.usefixtures("kyverno")
def test_a_class_that_contradicts_ours_is_denied_by_us(plane: ControlPlane) -> None:
    tenant = Policed(plane, 4, "a100-ky-class")
    tenant.changed({"spec": {"nodeSelector": T4}})
    status, answer = tenant.create(body("torn"))
    assert (status, "nvidia-t4" in answer["message"], "[gpu-class]" in answer["message"]) == (403, True, True)


@pytest.mark.usefixtures("kyverno")
def test_a_toleration_that_it_sets_is_there_once(plane: ControlPlane) -> None:
    tenant = Policed(plane, 4, "ky-toleration")
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    tenant.changed({"spec": {"tolerations": [toleration]}})
    tenant.pod("one", 1)
    assert tenant.runs(1)
    assert tolerated(tenant.get("one")) == 1


@pytest.mark.usefixtures("kyverno")
def test_what_it_denies_holds_no_quota(plane: ControlPlane) -> None:
    tenant = Policed(plane, 1, "ky-label")
    tenant.validated({"message": "must have a team", "pattern": {"metadata": {"labels": {"team": "?*"}}}})
    status, answer = tenant.create(body("foreign"))
    assert status == 400
    assert 'admission webhook "validate.kyverno.svc-fail" denied the request' in answer["message"]
    assert "must have a team" in answer["message"]
    assert eventually(lambda: not tenant.ledger_object().reservations)
    assert tenant.create(body("own", labels={"team": "a"}))[0] == 201
    assert tenant.runs(1)


@pytest.mark.usefixtures("kyverno")
def test_what_it_makes_of_a_policy_for_pods_looks_at_templates_that_lack_what_pods_get(
    plane: ControlPlane,
) -> None:
    tenant = Policed(plane, 4, "ky-autogen")
    tenant.validated(MUST_TOLERATE)
    tenant.pod("one", 1)
    assert tenant.runs(1), "of a pod it sees what we gave it"
    path = f"/apis/apps/v1/namespaces/{tenant.name}/deployments"
    status, answer = tenant.client.post(path, deployment("two"))
    assert (status, "autogen-rule" in answer["message"]) == (400, True), answer
    assert "a pod with GPUs must tolerate nvidia.com/gpu" in answer["message"]
    tenant.validated(MUST_TOLERATE, {"pod-policies.kyverno.io/autogen-controllers": "none"})
    assert eventually(lambda: tenant.client.post(path, deployment("two"))[0] == 201)
    assert tenant.runs(1, "two")


@pytest.mark.usefixtures("kyverno")
def test_a_pod_cannot_start_while_it_changes_those_that_exist(plane: ControlPlane) -> None:
    tenant = Policed(plane, 1, "ky-line")
    tenant.pod("holder", 1)
    assert tenant.runs(1)
    tenant.pod("one", 1)
    assert tenant.waits("one")
    tenant.changed({"spec": {"terminationGracePeriodSeconds": 77}})
    tenant.end("holder")
    assert tenant.tells(
        "Pod",
        "its scheduling gate could not be removed: limit the mutating webhook that changes pods to their creation: one that "
        'exists must keep its fields; it wrote - "TerminationGracePeriodSeconds": 30 + "TerminationGracePeriodSeconds": 77',
    ), tenant.messages("Pod")
    tenant.changed({"spec": {"terminationGracePeriodSeconds": 77}}, operations=["CREATE"])
    assert eventually(lambda: bool(tenant.running("one")), seconds=90)


@pytest.mark.usefixtures("kyverno")
def test_our_pods_and_our_fetcher_are_within_its_restricted_policies(plane: ControlPlane) -> None:
    tenant = Policed(plane, 4, "ky-restricted")
    text = helm.run(
        "template", "kyverno-policies", source(KYVERNO) / POLICIES, "--set", "podSecurityStandard=restricted"
    )
    policies = [each for each in yaml.safe_load_all(text) if each]
    assert len(policies) > 10
    here = {"matchLabels": {"kubernetes.io/metadata.name": tenant.name}}
    for policy in policies:
        policy["spec"]["matchConstraints"]["namespaceSelector"] = here
        tenant.enforced({**policy, "spec": {**policy["spec"], "validationActions": ["Deny"]}})
    status, answer = tenant.create(body("plain"))
    assert (status, "require-run-as-nonroot failed" in answer["message"]) == (400, True), answer
    for made in of_kind("Deployment", rendered()):
        template = made["spec"]["template"]
        template["spec"].pop("serviceAccountName")
        document = {"metadata": {"name": name_of(made), "labels": template["metadata"]["labels"]}}
        status, answer = tenant.client.post(
            tenant.path("pods"), {**document, "spec": template["spec"]}, {"dryRun": "All"}
        )
        assert status == 201, answer
    containers = [{**gpu_container(), "securityContext": RESTRICTED}]
    status, answer = tenant.create(body("server", {"containers": containers}, annotations=WARMED))
    assert (status, len(answer["spec"]["initContainers"])) == (201, 1), answer


def test_pods_are_denied_in_its_name_while_it_is_away(kyverno: Installation, plane: ControlPlane) -> None:
    tenant = Policed(plane, 1, "deny-ky-away")
    tenant.changed({"metadata": {"labels": {"seen": "yes"}}})
    kyverno.kill()
    try:
        status, answer = tenant.create(body("one"))
    finally:
        kyverno.start()
    assert (status, 'failed calling webhook "mutate.kyverno.svc-fail' in answer["message"]) == (500, True), (
        answer
    )
    assert not tenant.ledger_object().reservations
    assert eventually(lambda: tenant.create(body("one"))[0] == 201)
    assert tenant.runs(1)
