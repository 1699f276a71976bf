"""Reviews of claims, of their templates, and of pods that name them, in namespaces that may not use every class."""

from time import monotonic
from typing import Any

import msgspec
import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from policies.gpus.claimed_devices import CLAIM, TEMPLATE, ClaimName, claim_request
from policies.gpus.device_classes import ClusterDevices, decode_device_class
from policies.gpus.device_slices import type_key
from policies.gpus.device_types import DeviceAttribute, DeviceType, DeviceTypes
from policies.pods.pod import Toleration
from tests.builders import JSON, container, pod
from tests.cases import cases
from tests.webhook.serving.served import request
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_objects
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.facts import Facts
from webhook.serving.admission_review import OUT_OF_TIME, AdmissionResponse
from webhook.serving.audit import Recorder
from webhook.serving.dispatch import Admission
from webhook.serving.handler import ClusterState
from webhook.serving.metrics import Metrics

DRIVER, NAMESPACE = "gpu.nvidia.com", "ml-training"
PRODUCT = f"{DRIVER}/productName"
SMALL, LARGE = "nvidia-small", "nvidia-large"
IS_SMALL = f"device.attributes['{DRIVER}'].productName == 'Small'"


def gpu_class(name: str, product: str) -> Document:
    attributes = [{"key": PRODUCT, "values": [product]}]
    labels = [{"key": "accelerator", "values": [name]}]
    return Document("GPUClass", name, {"memoryGiB": 80, "nodeLabels": labels, "deviceAttributes": attributes})


def policy(mode: str, **more: Any) -> Document:
    rules = {"gpu-class": {"mode": mode, "allowed": [SMALL]}, "gpu-quota": {"mode": "disabled"}}
    return Document("GPUPolicy", "default", {"rules": rules, **more})


def kind(product: str) -> DeviceType:
    return DeviceType(driver=DRIVER, attributes={PRODUCT: DeviceAttribute(string=product)})


DEVICE_CLASS = {
    "metadata": {"name": DRIVER},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}
DEVICES = ClusterDevices(
    (decode_device_class(msgspec.json.encode(DEVICE_CLASS)),), DeviceTypes((kind("Small"), kind("Large")))
)


def spec(*expressions: str) -> JSON:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return {
        "devices": {
            "requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER, "selectors": selectors}}]
        }
    }


def reviewed(
    document: JSON,
    kind: str,
    mode: str = "enforce",
    stored: JSON | None = None,
    user: str = "ada",
    seconds: float = 20,
    devices: ClusterDevices = DEVICES,
    **more: Any,
) -> AdmissionResponse:
    """Review an object. stored: the spec of the template that a pod names. user: who creates it. seconds: until the deadline."""
    by = [gpu_class(SMALL, "Small"), gpu_class(LARGE, "Large"), policy(mode, **more)]
    cache = DecisionCache(load_objects(by, devices))
    name = ClaimName(TEMPLATE, NAMESPACE, "one")
    metadata = {"name": "one", "namespace": NAMESPACE}
    record = claim_request(
        TEMPLATE, msgspec.json.encode({"metadata": metadata, "spec": {"spec": stored or spec()}})
    )
    facts = Facts(claims=lambda asked: record.devices if asked == name else None)
    served = Admission(
        lambda: cache, Recorder(Metrics(CollectorRegistry())), ClusterState(facts=lambda _deadline: facts)
    )
    group = "" if kind == "Pod" else "resource.k8s.io"
    of_kind = {"group": group, "version": "v1", "kind": kind}
    by_user = request(document, kind=of_kind, userInfo={"username": user})
    return served.validate(by_user, monotonic() + seconds)


def claim(*expressions: str, kind: str = CLAIM, **metadata: Any) -> JSON:
    own = spec(*expressions)
    return {"metadata": {"name": "one", **metadata}, "spec": own if kind == CLAIM else {"spec": own}}


WHY = f"must select only devices of allowed classes: namespace {NAMESPACE} may not use {LARGE}"
SENTENCE = "devices.requests[0].exactly.selectors: add cel.expression: {}; {} [gpu-class]"
FROM_TEMPLATE = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}]


@cases(
    ("kind", "document", "mode", "want"),
    a_claim=(CLAIM, claim(), "enforce", (False, [])),
    a_claim_that_selects_the_class=(CLAIM, claim(IS_SMALL), "enforce", (True, [])),
    a_claim_in_mode_warn=(CLAIM, claim(), "warn", (True, [f"resourceclaim {NAMESPACE}/one: spec."])),
    a_claim_in_mode_audit=(CLAIM, claim(), "audit", (True, [])),
    a_template=(TEMPLATE, claim(kind=TEMPLATE), "enforce", (False, [])),
    a_template_that_selects_the_class=(TEMPLATE, claim(IS_SMALL, kind=TEMPLATE), "enforce", (True, [])),
    a_template_in_mode_warn=(
        TEMPLATE, claim(kind=TEMPLATE), "warn", (True, [f"ResourceClaimTemplate {NAMESPACE}/one: spec.spec."]),
    ),
    a_template_in_mode_audit=(TEMPLATE, claim(kind=TEMPLATE), "audit", (True, [])),
)  # fmt: skip
def test_claims_and_templates(kind: str, document: JSON, mode: str, want: tuple[bool, list[str]]) -> None:
    response = reviewed(document, kind, mode)

    allowed, warned = want
    sentence = SENTENCE.format(IS_SMALL, WHY)
    assert (response.allowed, list(response.warnings or ())) == (
        allowed,
        [f"{each}{sentence}" for each in warned],
    )
    if not allowed:
        assert response.status is not None
        assert response.status.message.endswith(f"spec.{sentence}")
        assert response.status.details is not None
        assert [each.reason for each in response.status.details.causes] == ["ClassNotAllowed"]


SICK = Toleration(key="example.com/sick", effect="NoExecute")
TAINTED = structs.replace(DEVICES, taints={type_key(kind("Small")): (SICK,)})
HAS_TAINT = "each device for it has a taint that it does not tolerate, such as example.com/sick:NoExecute"
ADD = "add {key: example.com/sick, operator: Exists, effect: NoExecute}"


@cases(
    ("kind_", "document", "want"),
    a_claim=(
        CLAIM, claim(IS_SMALL),
        f"resourceclaim {NAMESPACE}/one: spec.devices.requests[0].exactly.tolerations: {ADD} if pods may use them; {HAS_TAINT}, "
        "so its pods stay pending [gpu-toleration]",
    ),
    a_template=(
        TEMPLATE, claim(IS_SMALL, kind=TEMPLATE),
        f"ResourceClaimTemplate {NAMESPACE}/one: spec.spec.devices.requests[0].exactly.tolerations: {ADD} if pods may use them; "
        f"{HAS_TAINT}, so its pods stay pending [gpu-toleration]",
    ),
    a_pod=(
        "Pod",
        pod(
            container(resources={"claims": [{"name": "gpu"}]}),
            resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}],
        ),
        f"pod {NAMESPACE}/trainer: spec.resourceClaims[0]: name a ResourceClaimTemplate whose requests have tolerations "
        f"{ADD.removeprefix('add ')} if the pod may use them; {HAS_TAINT}, so the pod stays pending [gpu-toleration]",
    ),
)  # fmt: skip
def test_only_tainted_devices_can_serve_it(kind_: str, document: JSON, want: str) -> None:
    response = reviewed(document, kind_, stored=spec(IS_SMALL), devices=TAINTED)
    assert response.allowed
    assert want in list(response.warnings or ())
    assert want not in list(reviewed(document, kind_, stored=spec(IS_SMALL)).warnings or ())


@cases(
    ("user",),
    the_controller_of_claims=("system:serviceaccount:kube-system:resource-claim-controller",),
    controllers_with_one_identity=("system:kube-controller-manager",),
    the_scheduler_for_an_extended_resource=("system:kube-scheduler",),
)
def test_a_claim_that_kubernetes_makes_for_a_pod_is_not_checked_again(user: str) -> None:
    assert reviewed(claim(ownerReferences=FROM_TEMPLATE), CLAIM, user=user).allowed


@pytest.mark.parametrize("kind", [CLAIM, TEMPLATE])
def test_what_cannot_be_checked_is_refused(kind: str) -> None:
    def refusal(document: JSON, **more: Any) -> tuple[bool | None, int, str]:
        response = reviewed(document, kind, **more)
        assert response.status is not None
        return bool(response.allowed), response.status.code, response.status.message

    assert refusal(claim(kind=kind), seconds=-1) == (False, 504, f"gpu-admission {OUT_OF_TIME}; try again")
    unreadable = "gpu-admission cannot read the object: "
    allowed, code, message = refusal(claim(IS_SMALL, kind=kind, annotations={"a": "," * 20_001}))
    assert (allowed, code) == (False, 400)
    assert message.startswith(f"{unreadable}must have at most 20000 values, not ")
    allowed, code, message = refusal({"metadata": {"name": "one"}, "spec": 3})
    assert (allowed, code) == (False, 400)
    assert message.startswith(f"{unreadable}Expected `object | null`, got `int` - at `$.spec`")


def test_an_exempt_namespace_may_claim_any_device() -> None:
    exempt = [{"namespaces": [NAMESPACE], "rules": ["gpu-class"], "reason": "trial"}]
    for each in (CLAIM, TEMPLATE):
        assert reviewed(claim(kind=each), each, exemptions=exempt).allowed


def claiming(**annotations: str) -> JSON:
    uses = container(resources={"claims": [{"name": "gpu"}]})
    return pod(
        uses, annotations=annotations, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}]
    )


@cases(
    ("stored", "annotation", "want"),
    its_template_selects_an_allowed_class=(spec(IS_SMALL), None, ""),
    its_template_selects_any=(
        spec(), None,
        f"spec: set gpu-admission.dev/gpu-class: {SMALL}; must pin the pod to a GPU class: namespace {NAMESPACE} may not use "
        "every class [gpu-class]",
    ),
    its_annotation_names_another_class=(
        spec(IS_SMALL), LARGE,
        f'metadata.annotations[gpu-admission.dev/gpu-class] = "{LARGE}": set gpu-admission.dev/gpu-class: {SMALL}; must be '
        f"a class that namespace {NAMESPACE} may use [gpu-class]",
    ),
)  # fmt: skip
def test_pods_that_name_a_template(stored: JSON, annotation: str | None, want: str) -> None:
    annotations = {"gpu-admission.dev/gpu-class": annotation} if annotation else {}

    response = reviewed(claiming(**annotations), "Pod", stored=stored)

    assert response.allowed is not bool(want)
    assert want in (response.status.message if response.status else "")
