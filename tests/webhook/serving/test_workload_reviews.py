"""Workloads and autoscalers at /validate, in a namespace that has a quota: admitted, with a warning where pods will not start."""

from time import monotonic
from typing import Any

from tests.builders import JSON, gpu_container, manifest, pod, uid
from tests.cases import cases
from tests.webhook.serving.long_objects import keyed
from tests.webhook.serving.quota_reviews import Served, claim
from tests.webhook.serving.served import DEPLOYMENT, admission, request
from webhook.configuration.documents import Document
from webhook.evaluation.facts import Facts
from webhook.serving.audit import Recorder
from webhook.serving.dispatch import Admission
from webhook.serving.handler import ClusterState
from webhook.workloads.references import ObjectReference

HPA = {"group": "autoscaling", "version": "v2", "kind": "HorizontalPodAutoscaler"}
SCALED_OBJECT = {"group": "keda.sh", "version": "v1alpha1", "kind": "ScaledObject"}


def deployment(replicas: int, gpus: float = 1, **tweaks: Any) -> JSON:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [gpu_container(str(gpus))]}}
    spec = {"replicas": replicas, "strategy": {"type": "Recreate"}, "template": template}
    return {"metadata": {"name": "chat", **tweaks.pop("metadata", {})}, "spec": spec, **tweaks}


SHORT = (
    "Deployment team/chat: spec.replicas: set replicas: 2; needs 3 GPUs, which can never fit: the GPUQuota of team "
    "grants 2 in all; 2 of 3 "
    "pods will start; or ask the platform team to raise spec.hard.gpus [gpu-quota]"
)
NEVER = (
    "Deployment team/chat: spec.template: set nvidia.com/gpu: 2; a pod needs 3 GPUs, which can never fit: the "
    "GPUQuota of team grants "
    "2 in all; or ask the platform team to raise spec.hard.gpus [gpu-quota]"
)
HALF = (
    "Deployment team/chat: its pods would be denied: containers[0].resources.limits[nvidia.com/gpu] (container "
    '"main") = "2.5": set '
    "nvidia.com/gpu: 2 or 3; must be a whole number of GPUs, not 2.5 of them [gpu-requests]"
)
OWNER = {"apiVersion": "v1", "kind": "X", "name": "x", "uid": "1", "controller": True}


@cases(
    ("document", "mode", "tweaks", "want"),
    too_little=(deployment(3), "enforce", {}, (SHORT,)),
    a_dry_run_says_the_same=(deployment(3), "enforce", {"dryRun": True}, (SHORT,)),
    never=(deployment(1, 3), "enforce", {}, (NEVER,)),
    fits=(deployment(2), "enforce", {}, None),
    pods_that_a_rule_denies_cost_nothing=(deployment(3, 2.5), "enforce", {}, (HALF,)),
    no_quota_holds=(deployment(3), "disabled", {}, None),
    no_quota=(deployment(3), "enforce", {"namespace": "elsewhere"}, None),
    scaled_up=(deployment(3), "enforce", {"operation": "UPDATE", "oldObject": deployment(1)}, (SHORT,)),
    made_by_a_controller=(deployment(3, metadata={"ownerReferences": [OWNER]}), "enforce", {}, None),
)  # fmt: skip
def test_warnings(document: JSON, mode: str, tweaks: Any, want: tuple[str, ...] | None) -> None:
    served = Served(mode)

    response = served.validate(document, kind=DEPLOYMENT, **tweaks)

    assert (response.allowed, response.warnings) == (True, want)
    assert served.held() == []


WORKFLOW = {"group": "argoproj.io", "version": "v1alpha1", "kind": "Workflow"}


LOST = (
    "Workflow team/train: spec.runtimeClassName: write it into spec.podSpecPatch; must not stand here: this kind has no such "
    "field, so that no pod gets it [ineffective-fields]"
)
WITHOUT_THE_RULE = Document(
    "GPUPolicy", "own", {"priority": 1, "rules": {"ineffective-fields": {"mode": "disabled"}}}
)


@cases(
    ("served", "want"),
    of_the_rule=(Served(), (LOST,)),
    of_a_rule_that_is_off=(Served("enforce", WITHOUT_THE_RULE), None),
    while_the_policy_is_paused=(Served(paused="2099-01-01T00:00:00Z"), None),
)
def test_a_field_that_no_pod_of_the_kind_gets(served: Served, want: tuple[str, ...] | None) -> None:
    template = {"name": "main", "container": gpu_container("1")}
    spec = {"entrypoint": "main", "runtimeClassName": "nvidia", "templates": [template]}
    document = manifest("argoproj.io/v1alpha1", "Workflow", "train", spec)

    response = served.validate(document, kind=WORKFLOW)

    assert (response.allowed, response.warnings) == (True, want)


FITS = "needs 2 GPUs; team has 1 of 2 free: 1 of 2 pods will start"


@cases(
    ("is_led", "want"),
    a_controller_leads=(True, f"spec.template: {FITS}, and the others will wait in line"),
    none_has_renewed_its_lease=(False, f"spec.replicas: set replicas: 1; {FITS}"),
)
def test_pods_wait_in_line_only_while_a_controller_leads(is_led: bool, want: str) -> None:
    served = Served(is_led=is_led, onExceeded="Queue")
    served.validate({**pod(gpu_container("1")), "metadata": {"name": "one", "uid": uid("one")}})

    response = served.validate(deployment(2), kind=DEPLOYMENT)

    assert response.warnings == (f"Deployment team/chat: {want} [gpu-quota]",)


def test_a_quota_that_cannot_be_asked_says_nothing() -> None:
    assert Served(broken=True).validate(deployment(3), kind=DEPLOYMENT).warnings is None


def test_while_the_policy_is_paused_advice_is_only_logged() -> None:
    response = Served(paused="2999-01-01T00:00:00Z").validate(deployment(3), kind=DEPLOYMENT)

    assert response.warnings == (
        "policy default is paused until 2999-01-01 00:00 UTC: what it would deny or change is only logged",
    )
    assert response.audit_annotations is not None
    assert response.audit_annotations["findings"] == "gpu-quota=audited"


def scaler(most: int | None = 5, **target: str) -> JSON:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat", **target}
    most_replicas = {} if most is None else {"maxReplicas": most, "maxReplicaCount": most}
    return {"metadata": {"name": "chat"}, "spec": {"scaleTargetRef": reference, **most_replicas}}


def of_keda(**spec: Any) -> JSON:
    return {"metadata": {"name": "chat"}, "spec": {"scaleTargetRef": {"name": "chat"}, **spec}}


def grows(field: str, pods: int) -> str:
    return (
        f"spec.{field}: set {field}: 2; may grow to {pods} pods and then needs {pods} GPUs, which can never fit: the GPUQuota "
        f"of team grants 2 in all; 2 of {pods} pods will start; or ask the platform team to raise spec.hard.gpus [gpu-quota]"
    )


READS = [ObjectReference("apps", "v1", "Deployment", "deployments", "team", "chat")]


@cases(
    ("kind", "document", "stored", "want"),
    hpa=(HPA, scaler(), deployment(1), grows("maxReplicas", 5)),
    fits=(HPA, scaler(2), deployment(1), None),
    the_target_cannot_be_read=(HPA, scaler(), None, None),
    the_target_is_no_object=(HPA, scaler(), [], None),
    a_kind_that_is_not_read=(HPA, scaler(kind="InferenceService", apiVersion="serving.kserve.io/v1beta1"),
        deployment(1), None),
    unreadable=(HPA, {"spec": {"scaleTargetRef": 3}}, deployment(1), None),
    keda=(SCALED_OBJECT, scaler(), deployment(1), grows("maxReplicaCount", 5)),
    keda_defaults=(SCALED_OBJECT, of_keda(), deployment(1), grows("maxReplicaCount", 100)),
    keda_fits=(SCALED_OBJECT, of_keda(maxReplicaCount=2), deployment(1), None),
)  # fmt: skip
def test_autoscalers(kind: JSON, document: JSON, stored: Any, want: str | None) -> None:
    served, _ = scaling(Served(), stored)

    response = served.validate(document, kind=kind)

    assert (response.allowed, response.warnings) == (True, want and (f"{kind['kind']} team/chat: {want}",))


def test_without_a_quota_the_target_is_read_only_if_one_pod_may_be_left() -> None:
    served, reads = scaling(Served(), deployment(1))
    at_least_two = scaler()
    at_least_two["spec"]["minReplicas"] = 2

    assert served.validate(at_least_two, kind=HPA, namespace="elsewhere").warnings is None
    assert reads == []
    assert served.validate(scaler(), kind=HPA).warnings is not None
    assert reads == READS


LOADS = {"gpu-admission.dev/model-load-seconds": "300"}
TO_ZERO = (
    'spec.minReplicas = "0": set minReplicas: 1, or put a queue before the server; the first request waits until a pod is placed '
    "and has loaded its model, some 300 s, and a Service keeps no requests; Kubernetes rejects 0 without a metric of "
    "type Object or External [readiness-delay]"
)
FROM_ONE = (
    'spec.minReplicas = "1": set minReplicas: 2; one pod serves all requests for the 300 s in which a second one loads its '
    "model, and none does while it is replaced [readiness-delay]"
)


@cases(
    ("least", "annotations", "want"),
    a_model_that_loads=(0, LOADS, TO_ZERO),
    two_stay=(2, LOADS, None),
    one_stays=(1, LOADS, FROM_ONE),
    the_default_is_one=(None, LOADS, FROM_ONE),
    no_load_time_is_known=(0, {}, None),
)
def test_an_autoscaler_that_leaves_a_server_one_pod_or_none(
    least: int | None, annotations: dict[str, str], want: str | None
) -> None:
    stored = deployment(1)
    stored["spec"]["template"]["metadata"]["annotations"] = annotations
    served, _ = scaling(Served(), stored)
    document = scaler(2)
    document["spec"].update({} if least is None else {"minReplicas": least})

    for namespace in ("team", "elsewhere"):
        response = served.validate(document, kind=HPA, namespace=namespace)

        about = f"HorizontalPodAutoscaler {namespace}/chat: "
        assert (response.allowed, response.warnings) == (True, want and (about + want,))


def scaling(served: Served, stored: Any) -> tuple[Served, list[ObjectReference]]:
    """Have the API server store what autoscalers scale; return also what is read of it."""
    reads: list[ObjectReference] = []

    def referred(name: ObjectReference) -> Any:
        reads.append(name)
        return stored

    state = ClusterState(facts=lambda _deadline: Facts(find_object=referred), quota=served.quota)
    served.admission = Admission(lambda: served.cache, Recorder(served.metrics), state)
    return served, reads


TEMPLATE = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaimTemplate"}
WARNING = (
    "ResourceClaimTemplate team/cards: spec.spec.devices.requests: request fewer devices; no claim of this template "
    "can ever fit the quota, "
    "requested: gpus=3, limited: gpus=2 [gpu-quota]"
)


def template(count: int) -> JSON:
    return {"metadata": {"name": "cards"}, "spec": {"spec": claim("", count=count)["spec"]}}


QUOTA_KIND = {"group": "", "version": "v1", "kind": "ResourceQuota"}
SILENT = {"spec": {"hard": {"nvidia.com/gpu": "4"}}}
NO_EFFECT = (
    "ResourceQuota ml-training/: spec.hard[nvidia.com/gpu]: remove nvidia.com/gpu and set requests.nvidia.com/gpu: 4; "
    "has no effect: a "
    "ResourceQuota counts only requests "
    "of extended resources [resource-quota]"
)


@cases(
    ("document", "tweaks", "want"),
    created=(SILENT, {}, (NO_EFFECT,)),
    applied_again=(SILENT, {"operation": "UPDATE"}, (NO_EFFECT,)),
    its_status_is_the_controllers=(SILENT, {"subResource": "status"}, None),
    no_keys=({"spec": {"hard": None}}, {}, None),
    the_last_key_that_is_read=({"spec": {"hard": keyed(999) | SILENT["spec"]["hard"]}}, {}, (NO_EFFECT,)),
    one_more=({"spec": {"hard": keyed(1000) | SILENT["spec"]["hard"]}}, {}, None),
    unreadable_is_the_api_servers_to_refuse=({"spec": {"hard": 3}}, {}, None),
    an_unreadable_amount_as_well=({"spec": {"hard": {"nvidia.com/gpu": [4]}}}, {}, None),
)
def test_resource_quotas(document: JSON, tweaks: dict[str, Any], want: tuple[str, ...] | None) -> None:
    response = admission().validate(request(document, kind=QUOTA_KIND, **tweaks), monotonic() + 20)

    assert (response.allowed, response.warnings) == (True, want)


@cases(
    ("document", "mode", "tweaks", "want"),
    never_fits=(template(3), "enforce", {}, (WARNING,)),
    advice_in_every_mode=(template(3), "audit", {}, (WARNING,)),
    no_quota_holds=(template(3), "disabled", {}, None),
    no_quota=(template(3), "enforce", {"namespace": "elsewhere"}, None),
    deleted=(template(3), "enforce", {"operation": "DELETE"}, None),
)
def test_claim_templates(document: JSON, mode: str, tweaks: Any, want: tuple[str, ...] | None) -> None:
    served = Served(mode)
    response = served.validate(document, kind=TEMPLATE, **tweaks)

    assert (response.allowed, response.warnings) == (True, want)
    assert served.held() == []
