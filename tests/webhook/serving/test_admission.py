"""Which requests the rules look at, whose word is believed, and what the audit log says of each."""

from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from policies.placement.nodes import NodeFacts
from policies.pods.pod import decode_pod
from policies.policy import Labels
from policies.registry import RULES
from tests.builders import JSON, gpu_container, pod, uid
from tests.cases import cases
from tests.webhook.serving.served import DEPLOYMENT, POD, admission, lines_of, request
from webhook.cluster.namespaces import NamespaceUnknown
from webhook.configuration.documents import Document
from webhook.evaluation.facts import Facts
from webhook.serving import admission_review
from webhook.serving.admission_review import AdmissionResponse
from webhook.serving.deadline import deadline_of
from webhook.serving.dispatch import Admission
from webhook.serving.review_pods import is_mirror_pod, made_by_daemonset

CLAIM = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}
NODE = {"username": "system:node:gpu-0", "groups": ["system:nodes", "system:authenticated"]}
MIRROR = {"kubernetes.io/config.mirror": "0123"}


@pytest.fixture(scope="module")
def built_in() -> Admission:
    return admission()


def patched(response: AdmissionResponse) -> bool:
    assert response.allowed
    return response.patch is not None


def on_node(**spec: Any) -> JSON:
    return pod(gpu_container(), annotations=MIRROR, nodeName="gpu-0", **spec)


@cases(
    ("tweaks", "want"),
    a_new_pod=({}, True),
    an_update=({"operation": "UPDATE", "oldObject": pod(gpu_container())}, False),
    a_deletion=({"operation": "DELETE", "object": None}, False),
    a_subresource=({"subResource": "binding"}, False),
    somebody_elses_pod=({"kind": {"group": "example.com", "version": "v1", "kind": "Pod"}}, False),
    kube_system=({"namespace": "kube-system"}, False),
    a_dry_run_answers_the_same=({"dryRun": True}, True),
)
def test_what_is_mutated(built_in: Admission, tweaks: JSON, want: bool) -> None:
    assert patched(built_in.mutate(request(pod(gpu_container()), **tweaks), deadline_of(None))) is want


@cases(
    ("document", "user", "want"),
    shown_by_its_own_node=(on_node(), NODE, True),
    claimed_by_a_user=(on_node(), {"username": "ada", "groups": ["system:nodes"]}, False),
    a_node_name_without_the_group=(on_node(), {"username": "system:node:gpu-0"}, False),
    another_node=(on_node(), {"username": "system:node:gpu-1", "groups": ["system:nodes"]}, False),
    not_on_a_node=(pod(gpu_container(), annotations=MIRROR), NODE, False),
    no_annotation=(pod(gpu_container(), nodeName="gpu-0"), NODE, False),
)
def test_only_a_node_shows_mirror_pods(built_in: Admission, document: JSON, user: JSON, want: bool) -> None:
    requested = request(document, userInfo=user)

    assert is_mirror_pod(decode_pod(requested.object), requested) is want
    assert patched(built_in.mutate(requested, deadline_of(None))) is not want


OWNED = {
    "ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1", "controller": True}
    ]
}


@cases(
    ("metadata", "username", "want"),
    its_controller=(OWNED, "system:serviceaccount:kube-system:daemon-set-controller", True),
    whatever_it_claims=({}, "system:serviceaccount:kube-system:daemon-set-controller", True),
    controllers_with_one_identity=(OWNED, "system:kube-controller-manager", True),
    another_controller_with_that_identity=({}, "system:kube-controller-manager", False),
    a_user_who_claims_to_be_owned=(OWNED, "ada", False),
)
def test_daemonset_pods_are_known_by_who_creates_them(metadata: JSON, username: str, want: bool) -> None:
    document = {**pod(gpu_container()), "metadata": {"name": "d-1", **metadata}}
    requested = request(document, userInfo={"username": username})

    assert made_by_daemonset(decode_pod(requested.object), requested) is want


def test_a_template_that_cannot_be_read_is_let_through_with_a_warning(built_in: Admission) -> None:
    broken = {"spec": {"template": {"spec": {"containers": "none"}}}}

    response = built_in.validate(request(broken, kind=DEPLOYMENT), deadline_of(None))

    assert response.allowed is True
    assert response.warnings == (
        "Deployment ml-training/: gpu-admission could not read the pod template: "
        "Expected `array | null`, got `str` - at `$.spec.template.spec.containers`",
    )


def test_a_decision_is_one_line_in_the_audit_log(tmp_path: Path) -> None:
    generated = {"metadata": {"generateName": "train-"}, "spec": {"containers": []}}

    patches: list[Any] = []

    def ask(served: Admission) -> None:
        response = served.mutate(request(pod(gpu_container()), dryRun=True), deadline_of(None))
        patches.append(msgspec.json.decode(response.patch or b""))
        served.mutate(request(generated), deadline_of(None))

    first, second = lines_of(tmp_path, ask)
    duration = first.pop("durationMs")
    assert 0 < duration < 1000
    assert first.pop("time").endswith("Z")
    assert first == {
        "uid": uid("review"),
        "phase": "mutate",
        "operation": "CREATE",
        "kind": "Pod",
        "namespace": "ml-training",
        "name": "trainer",
        "user": "ada",
        "dryRun": True,
        "verdict": "patched",
        "creation": first["creation"],
        "policy": {"name": "built-in", "version": "built-in"},
        "operations": patches[0],
        "injected": [{"rule": "gpu-toleration", "what": "toleration nvidia.com/gpu:NoSchedule"}],
    }
    assert (second["name"], second["verdict"]) == ("train-", "allowed")


MEGABYTE = "x" * 1_000_000


@cases(
    ("document", "tweaks", "field"),
    of_its_author=(pod(gpu_container()), {"userInfo": {"username": MEGABYTE}}, "user"),
    of_the_request=(pod(gpu_container()), {"name": MEGABYTE}, "name"),
    of_the_pod=({"metadata": {"name": MEGABYTE}, "spec": {}}, {}, "name"),
    of_a_pod_that_cannot_be_read=({"metadata": {"name": MEGABYTE}, "spec": 1}, {}, "name"),
)  # fmt: skip
def test_a_name_of_a_megabyte_makes_no_line_of_a_megabyte(
    tmp_path: Path, document: JSON, tweaks: JSON, field: str
) -> None:
    answers: list[bytes] = []

    def ask(served: Admission) -> None:
        response = served.mutate(request(document, **tweaks), deadline_of(None))
        answers.append(admission_review.encode_response(response))

    (line,) = lines_of(tmp_path, ask)
    assert line[field] == "x" * 255 + "…"
    assert max(len(msgspec.json.encode(line)), *map(len, answers)) < 3000


def test_what_comes_too_late_is_refused_with_words_to_try_again(built_in: Admission) -> None:
    response = built_in.validate(request(pod(gpu_container())), deadline=monotonic())

    assert response.status == admission_review.Status(
        504, "Timeout", "gpu-admission could not decide within the timeoutSeconds of the webhook; try again"
    )


def test_a_pod_of_a_namespace_whose_labels_cannot_be_read_is_refused() -> None:
    def unknown(_namespace: str) -> Labels:
        raise NamespaceUnknown("connection refused")

    by_label = Document(
        "GPUPolicy", "labelled", {"match": {"namespaceSelector": {"matchLabels": {"team": "ml"}}}}
    )
    response = admission(by_label, facts=lambda _deadline: Facts(labels_of=unknown)).mutate(
        request(pod(gpu_container())), deadline_of(None)
    )

    assert response.status == admission_review.Status(
        503,
        "ServiceUnavailable",
        "gpu-admission cannot read the labels of namespace ml-training, which select its policy; "
        "try again: connection refused",
    )


def test_a_template_that_comes_too_late_is_admitted_as_if_nobody_had_answered(built_in: Admission) -> None:
    template = {"spec": {"containers": [gpu_container("0.5")]}}
    document = {"metadata": {"name": "web"}, "spec": {"template": template}}
    response = built_in.validate(request(document, kind=DEPLOYMENT), deadline=monotonic())

    assert response.allowed
    late = "gpu-admission could not decide within the timeoutSeconds of the webhook"
    assert response.warnings == (f"Deployment ml-training/web: {late}",)


TOO_MANY = pod(gpu_container(), tolerations=[{"key": f"k{number}"} for number in range(300)])


@pytest.fixture
def unrestricted() -> Admission:
    """All rules disabled, and an exemption from them on top."""
    rules = {rule.id: {"mode": "disabled"} for rule in RULES}
    exemption = {"namespaces": ["ml-training"], "reason": "test", "until": "2999-01-01"}
    return admission(Document("GPUPolicy", "unrestricted", {"rules": rules, "exemptions": [exemption]}))


@pytest.mark.parametrize("endpoint", ["mutate", "validate"])
@cases("tweaks", created={}, changed_objects={"operation": "UPDATE"})
def test_limits_hold_whatever_the_policy_says(unrestricted: Admission, endpoint: str, tweaks: JSON) -> None:
    requested = request(TOO_MANY, oldObject=TOO_MANY, **tweaks)
    response = getattr(unrestricted, endpoint)(requested, deadline_of(None))

    if endpoint == "mutate" and tweaks:
        assert response.allowed  # what an update may change is the API server's to say
        return
    message = "spec.tolerations: must have at most 256 items, not 300 [limits]"
    causes = (admission_review.Cause("spec.tolerations", message, "TooLarge"),)
    assert response.status == admission_review.Status(
        403, "Forbidden", f"pod ml-training/trainer: {message}", admission_review.Details(causes)
    )


def test_limits_are_advice_about_a_template(unrestricted: Admission) -> None:
    workload = {"metadata": {"name": "d"}, "spec": {"template": TOO_MANY}}
    response = unrestricted.validate(request(workload, kind=DEPLOYMENT), deadline_of(None))

    assert response.allowed
    assert response.warnings == (
        "Deployment ml-training/d: its pods would be denied: tolerations: must have at most 256 items, not 300 [limits]",
    )


BAD_UID = "metadata.uid must be a UUID (RFC 4122)"
BAD_NAME = "metadata.name must be a DNS subdomain of at most 253 characters"


@cases(
    ("metadata", "tweaks", "want"),
    a_uid_with_a_space=({"uid": "x y"}, {}, BAD_UID),
    a_name_with_a_space=({"name": "a b"}, {}, BAD_NAME),
    a_path=({}, {"name": "../x"}, BAD_NAME),
)  # fmt: skip
@pytest.mark.parametrize("kind", [POD, CLAIM])
def test_what_would_stand_in_a_ledger_is_what_an_api_server_stores(
    built_in: Admission, kind: JSON, metadata: JSON, tweaks: JSON, want: str
) -> None:
    document = pod(gpu_container()) if kind is POD else {"metadata": {}, "spec": {}}
    document["metadata"] = {**document["metadata"], **metadata}
    response = built_in.validate(request(document, kind=kind, **tweaks), deadline_of(None))

    assert response.status == admission_review.Status(
        400, "BadRequest", f"gpu-admission cannot read the object: {want}"
    )


def test_a_name_that_the_api_server_refuses_is_left_to_it(built_in: Admission) -> None:
    document = pod(gpu_container())
    document["metadata"]["name"] = "Not_A_Name"
    assert built_in.mutate(request(document), deadline_of(None)).allowed


def test_mutation_knows_the_nodes() -> None:
    zone = "topology.kubernetes.io/zone"
    nodes = NodeFacts(
        keys=frozenset({"accelerator", zone}),
        label_sets=frozenset({(("accelerator", "nvidia-t4"), (zone, "a"))}),
    )
    by_default = Document("GPUPolicy", "default", {"rules": {"gpu-class": {"default": "nvidia-t4"}}})
    served = admission(by_default, facts=lambda _: Facts(nodes=lambda: nodes))

    def patch(selected: str) -> str:
        sent = request(pod(gpu_container(), nodeSelector={zone: selected}))
        return str(served.mutate(sent, deadline_of(None)).patch)

    assert "nvidia-t4" in patch("a")
    assert "nvidia-t4" not in patch("b")
