"""Gatekeeper: what docs/operate/coexistence.md says of engines that change pods, deny them, and audit what is stored."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial

import pytest
import yaml

from tests.builders import JSON, gpu_container
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.controlplane.client import JSON_PATCH, accepted
from tests.controlplane.gpuquota import INSTALLATION, api_client
from tests.neighbours.build import GATEKEEPER, source
from tests.neighbours.installation import Installation, installed
from tests.neighbours.tenant import Tenant, name_of, ours, tolerated
from webhook.tools.why.explaining import explain

TEMPLATES = "demo/agilebank/templates"
"""Policies that Gatekeeper brings as examples."""
EXPANSION = "demo/agilebank/expansion_templates/expand_deployment_expansiontemplate.yaml"
SERVICES = "/api/v1/namespaces/gatekeeper-system/services"
T4 = {"accelerator": "nvidia-t4"}
WARMED = {"gpu-admission.dev/model-uri": "s3://models/llama-3"}
MUST_TOLERATE = """
package musttolerate
violation[{"msg": msg}] {
  input.review.object.spec.containers[_].resources.limits["nvidia.com/gpu"]
  not tolerates
  msg := "a pod with GPUs must tolerate nvidia.com/gpu"
}
tolerates { input.review.object.spec.tolerations[_].key == "nvidia.com/gpu" }
"""


@pytest.fixture(scope="module")
def gatekeeper(plane: ControlPlane) -> Iterator[Installation]:
    (plane.processes.folder / "audit").mkdir()  # a volume of its pod
    with installed(plane, GATEKEEPER) as gatekeeper, ours(plane):
        yield gatekeeper


class Policed(Tenant):
    """A namespace with policies of its own."""

    def __init__(self, plane: ControlPlane, gpus: int | None, name: str) -> None:
        super().__init__(plane, gpus, name)

    def changed(self, location: str, value: object, **target: object) -> None:
        """Have Gatekeeper write the value into each pod of the namespace."""
        self._mutated("mutations.gatekeeper.sh/v1", "Assign", location, {"assign": {"value": value}}, target)

    def mirrored(self, location: str, registry: str) -> None:
        """Have Gatekeeper take images of pods of the namespace from the registry."""
        self._mutated(
            "mutations.gatekeeper.sh/v1alpha1", "AssignImage", location, {"assignDomain": registry}, {}
        )

    def _mutated(self, version: str, kind: str, location: str, parameters: JSON, target: JSON) -> None:
        self._put(
            version,
            kind,
            {
                "applyTo": [{"groups": [""], "kinds": ["Pod"], "versions": ["v1"], **target}],
                "match": {"namespaces": [self.name]},
                "location": location,
                "parameters": parameters,
            },
        )

    def constrained(
        self, kind: str, *, match: JSON | None = None, action: str = "deny", **parameters: object
    ) -> None:
        """Have Gatekeeper deny what violates the constraint, or do what else `action` says."""
        spec: JSON = {"enforcementAction": action, "match": {"namespaces": [self.name], **(match or {})}}
        if parameters:
            spec["parameters"] = parameters
        self._put("constraints.gatekeeper.sh/v1beta1", kind, spec)

    def _put(self, version: str, kind: str, spec: JSON) -> None:
        document = {"apiVersion": version, "kind": kind, "metadata": {"name": self.name}, "spec": spec}
        self._plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(document))
        assert eventually(partial(self._is_enforced, version, kind)), self.policy(version, kind)

    def _is_enforced(self, version: str, kind: str) -> bool:
        policy = self.policy(version, kind)
        reports = [
            (each["enforced"], each["observedGeneration"]) for each in policy["status"].get("byPod") or []
        ]
        return reports == [(True, policy["metadata"]["generation"])]

    def policy(self, version: str, kind: str) -> JSON:
        """Return the namespace's policy of a kind."""
        policy: JSON = self.client.get(f"/apis/{version}/{kind.lower()}/{self.name}")[1]
        return {"status": {}, **policy}


def template(plane: ControlPlane, document: JSON) -> None:
    """Give Gatekeeper a kind of constraints."""
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(document))
    crd = f"crd/{document['metadata']['name']}.constraints.gatekeeper.sh"
    plane.kubectl("wait", "--for=create", crd, "--timeout=60s")
    plane.kubectl("wait", "--for=condition=Established", crd, "--timeout=60s")


def example(name: str) -> JSON:
    document: JSON = yaml.safe_load((source(GATEKEEPER) / TEMPLATES / f"{name}_template.yaml").read_text())
    return document


def must_tolerate() -> JSON:
    kind = {"names": {"kind": "MustTolerate"}}
    return {
        "apiVersion": "templates.gatekeeper.sh/v1",
        "kind": "ConstraintTemplate",
        "metadata": {"name": "musttolerate"},
        "spec": {
            "crd": {"spec": kind},
            "targets": [{"target": "admission.k8s.gatekeeper.sh", "rego": MUST_TOLERATE}],
        },
    }


@pytest.fixture(scope="module", autouse=True)
def templates(gatekeeper: Installation, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    for each in (example("k8sallowedrepos"), example("k8srequiredlabels"), must_tolerate()):
        template(plane, each)


def body(name: str, **metadata: object) -> JSON:
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": [gpu_container()]}}


def test_a_class_that_it_chose_is_kept_and_counted(plane: ControlPlane) -> None:
    tenant = Policed(plane, None, "deny-gk-class")
    tenant.quota({"gpus": "4", "classes": {"nvidia-t4": "1"}})
    assert eventually(tenant.in_force)
    tenant.changed("spec.nodeSelector.accelerator", "nvidia-t4")
    status, answer = tenant.create(body("first"))
    assert (status, answer["spec"]["nodeSelector"]) == (201, T4)
    status, answer = tenant.create(body("second"))
    assert (status, "requested 1 nvidia-t4, " in answer["message"]) == (403, True), answer


def test_a_class_that_contradicts_ours_is_denied_by_us(plane: ControlPlane) -> None:
    tenant = Policed(plane, 4, "a100-gk-class")
    tenant.changed("spec.nodeSelector.accelerator", "nvidia-t4")
    status, answer = tenant.create(body("torn"))
    assert (status, "nvidia-t4" in answer["message"], "[gpu-class]" in answer["message"]) == (403, True, True)


def test_a_toleration_that_it_sets_is_there_once(plane: ControlPlane) -> None:
    tenant = Policed(plane, 4, "gk-toleration")
    tenant.changed('spec.tolerations[key: "nvidia.com/gpu"]', {"key": "nvidia.com/gpu", "operator": "Exists"})
    tenant.pod("one", 1)
    assert tenant.runs(1)
    assert tolerated(tenant.get("one")) == 1


def test_what_it_denies_holds_no_quota(plane: ControlPlane) -> None:
    tenant = Policed(plane, 1, "gk-repos")
    tenant.constrained(
        "K8sAllowedRepos",
        match={"labelSelector": {"matchLabels": {"from": "elsewhere"}}},
        repos=["registry/"],
    )
    status, answer = tenant.create(body("foreign", labels={"from": "elsewhere"}))
    assert status == 403
    assert (
        'admission webhook "validation.gatekeeper.sh" denied the request: [gk-repos] container <'
        in answer["message"]
    )
    assert eventually(lambda: not tenant.ledger_object().reservations)
    tenant.pod("own", 1)
    assert tenant.runs(1)


def test_the_image_of_our_fetcher_must_be_allowed(plane: ControlPlane) -> None:
    tenant = Policed(plane, 4, "gk-fetcher")
    image = gpu_container()["image"]
    tenant.constrained("K8sAllowedRepos", repos=[image])
    status, answer = tenant.create(body("server", annotations=WARMED))
    assert status == 403
    assert "container <gpu-admission-" in answer["message"]
    fetcher = answer["message"].partition("image repo <")[2].partition(">")[0]
    tenant.constrained("K8sAllowedRepos", repos=[image, fetcher])
    assert tenant.create(body("server", annotations=WARMED))[0] == 201


def test_our_fetcher_comes_from_a_mirror_if_it_is_called_again_after_us(plane: ControlPlane) -> None:
    tenant = Policed(plane, 4, "gk-mirror")
    tenant.mirrored("spec.initContainers[name:*].image", "mirror.example")
    again = [{"op": "add", "path": "/webhooks/0/reinvocationPolicy", "value": "IfNeeded"}]
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gatekeeper-mutating-webhook-configuration"
    assert tenant.client.patch(path, again, content_type=JSON_PATCH)[0] == 200

    def images() -> list[str]:
        status, answer = tenant.client.post(
            tenant.path("pods"), body("tried", annotations=WARMED), {"dryRun": "All"}
        )
        assert status == 201, answer
        return [each["image"].partition("/")[0] for each in answer["spec"]["initContainers"]]

    assert eventually(lambda: images() == ["mirror.example"]), images()
    assert tenant.create(body("server", annotations=WARMED))[0] == 201
    assert tenant.runs(1)


def test_it_expands_templates_that_lack_what_pods_get(plane: ControlPlane) -> None:
    tenant = Policed(plane, 4, "gk-expansion")
    tenant.constrained("MustTolerate", match={"kinds": [{"apiGroups": [""], "kinds": ["Pod"]}]})
    tenant.pod("one", 1)
    assert tenant.runs(1), "of a pod it sees what we gave it"
    plane.kubectl("apply", "-f", str(source(GATEKEEPER) / EXPANSION))
    deployment = {
        "metadata": {"name": "two"},
        "spec": {
            "selector": {"matchLabels": {"app": "two"}},
            "template": {"metadata": {"labels": {"app": "two"}}, "spec": body("")["spec"]},
        },
    }
    path = f"/apis/apps/v1/namespaces/{tenant.name}/deployments?dryRun=All"

    def denial() -> str:
        status, answer = tenant.client.post(path, deployment)
        return answer["message"] if status == 403 else ""

    expected = "[Implied by expand-deployments] a pod with GPUs must tolerate nvidia.com/gpu"
    assert eventually(lambda: expected in denial()), denial()
    plane.kubectl("delete", "expansiontemplate", "expand-deployments")


def test_a_pod_cannot_start_while_it_changes_those_that_exist(plane: ControlPlane) -> None:
    tenant = Policed(plane, 1, "gk-line")
    tenant.pod("holder", 1)
    assert tenant.runs(1)
    tenant.pod("one", 1)
    assert tenant.waits("one")
    tenant.changed("spec.terminationGracePeriodSeconds", 77)
    tenant.end("holder")
    remedy = (
        "limit the mutating webhook that changes pods to their creation: one that exists must keep its fields; it wrote "
        '- "TerminationGracePeriodSeconds": 30 + "TerminationGracePeriodSeconds": 77'
    )
    assert tenant.tells("Pod", f"its scheduling gate could not be removed: {remedy}"), tenant.messages("Pod")

    def reason() -> str:
        return explain(api_client(plane), "pod", "one", tenant.name, datetime.now(UTC)).summary

    assert eventually(lambda: remedy in reason()), reason()
    tenant.changed("spec.terminationGracePeriodSeconds", 77, operations=["CREATE"])
    assert eventually(lambda: bool(tenant.running("one")), seconds=90)


def test_its_audit_sees_pods_as_we_made_them_and_leaves_them_alone(plane: ControlPlane) -> None:
    tenant = Policed(plane, 4, "gk-audit")
    tenant.pod("one", 1)
    assert tenant.runs(1)
    since = tenant.version()
    kinds = {"kinds": [{"apiGroups": [""], "kinds": ["Pod"]}]}
    tenant.constrained("MustTolerate", match=kinds, action="dryrun")
    tenant.constrained(
        "K8sRequiredLabels", match=kinds, action="dryrun", message="", labels=[{"key": "team"}]
    )
    version = "constraints.gatekeeper.sh/v1beta1"

    def violations(kind: str) -> list[str] | None:
        status = tenant.policy(version, kind)["status"]
        return (
            [each["name"] for each in status.get("violations") or ()] if "auditTimestamp" in status else None
        )

    assert eventually(lambda: violations("K8sRequiredLabels") == ["one"], seconds=60)
    assert eventually(lambda: violations("MustTolerate") == [], seconds=60)
    assert tenant.history(since, 1) == []


def test_policies_for_all_kinds_must_exempt_our_namespace(plane: ControlPlane) -> None:
    """Each review of a pod in a namespace with a quota writes its ledger."""
    tenant = Policed(plane, 4, "gk-ledger")
    every = {"apiGroups": ["gpu-admission.dev"], "kinds": ["*"]}
    namespaces = [tenant.name, INSTALLATION]
    needed: JSON = {"message": "must have a team", "labels": [{"key": "team"}]}
    tenant.constrained("K8sRequiredLabels", match={"kinds": [every], "namespaces": namespaces}, **needed)
    status, answer = tenant.create(body("one"))
    assert status == 403
    assert (
        'the ledger of the quota could not be written: admission webhook "validation.gatekeeper.sh" denied the request: '
        "[gk-ledger] must have a team"
    ) in answer["message"]
    tenant.constrained(
        "K8sRequiredLabels", match={"kinds": [every], "excludedNamespaces": [INSTALLATION]}, **needed
    )
    assert tenant.create(body("one"))[0] == 201
    assert tenant.runs(1)


def test_pods_are_admitted_and_counted_while_it_is_away(plane: ControlPlane) -> None:
    tenant = Policed(plane, 1, "deny-gk-away")
    service = accepted(tenant.client.get(f"{SERVICES}/gatekeeper-webhook-service"))
    tenant.client.delete(f"{SERVICES}/gatekeeper-webhook-service")
    try:
        assert tenant.create(body("one"))[0] == 201
        status, answer = tenant.create(body("two"))
    finally:
        spec = {each: service["spec"][each] for each in ("clusterIP", "ports", "selector")}
        accepted(
            tenant.client.post(SERVICES, {"metadata": {"name": service["metadata"]["name"]}, "spec": spec})
        )
    assert (status, "requested 1 GPU, " in answer["message"]) == (403, True), answer
    assert tenant.runs(1)
    assert [name_of(pod) for pod in tenant.pods()] == ["one"]
