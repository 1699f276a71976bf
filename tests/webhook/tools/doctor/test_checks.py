"""Each check on installations that no real cluster shows on demand; the rest is in tests/cluster/test_doctor.py."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.builders import JSON
from tests.cases import cases
from tests.deploy.manifests import ROOT
from tests.webhook.cluster.apiserver import Answer, status
from tests.webhook.tools.doctor.objects import (
    ADMISSION,
    ENTRY,
    GPU,
    MUTATING,
    NAMESPACES,
    OURS,
    POLICIES,
    QUOTAS,
    excluding,
    namespace,
    stored,
)
from tests.webhook.tools.installed_clusters import assert_found, checked
from webhook.canary.probe import CanaryResult
from webhook.tools.doctor.checks import CHECKS, control_plane
from webhook.tools.doctor.checks.configurations import expected_objects
from webhook.version import VERSION

LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpu-admission/leases/gpu-admission-controller"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/gpu-admission/endpointslices"
SERVICE = "/api/v1/namespaces/gpu-admission/services/gpu-admission"


def test_the_checks_in_their_order() -> None:
    assert [(check.id, check.title) for check in CHECKS] == [
        ("configurations", "Both webhook configurations exist"),
        ("service-reference", "Every webhook calls our Service"),
        ("service", "The Service exists and has a ready endpoint"),
        ("entries", "Webhooks, rules, selectors and conditions are those of this version"),
        ("workload-kinds", "Kinds of workloads that documents name are sent to the webhook"),
        ("fraction-annotations", "Annotations that documents count are sent to the webhook"),
        ("ca-bundle", "Every webhook has a readable caBundle"),
        ("certificate", "The caBundle verifies what is served, by name and for long enough"),
        (
            "certificate-secret",
            "The certificate can be served and renewed, and the caBundle is its authority",
        ),
        ("callers", "Only API servers can have the webhook review something"),
        ("custom-resources", "The CRDs of this version exist"),
        ("documents", "Policies, classes and resource mappings are valid, and no policy is paused"),
        ("kubernetes-version", "The API server is new enough"),
        ("controller", "A controller leads"),
        ("canary", "A GPU pod passes through both webhooks and is changed as it must be"),
        ("service-accounts", "The ServiceAccounts may do what webhook and controller need"),
        ("controller-policy", "Admission policies bound what the controller may write"),
        ("later-webhooks", "No other mutating webhook runs after ours"),
        ("ledger-webhooks", "No other webhook reviews the ledgers of quotas"),
        ("excluded-namespaces", "Excluded namespaces exist, and have no GPU pods"),
        ("unseen-quotas", "GPUQuotas are in namespaces whose pods the webhook sees"),
        (
            "exported-policies",
            "Exported policies are of the documents in force, and let the GPU stack start",
        ),
        ("untainted-nodes", "GPU nodes are tainted"),
        ("deleted-pods", "No GPU node that is not Ready has pods that were deleted"),
        ("taints", "Policies and classes tolerate the taints of GPU nodes, and no others"),
        ("class-labels", "Every class in a GPUPolicy or GPUClass has nodes with its label"),
        ("unknown-classes", "Every GPU node is of a known class"),
        ("device-plugins", "Nodes with the labels of GPUs have some"),
        ("spot-pools", "The spot pool of every policy has nodes"),
        ("unmapped", "Quotas count every device"),
        ("device-kinds", "Kinds of DRA devices have all attributes that selectors may read"),
        ("kueue-flavors", "Flavors of Kueue have the tolerations that GPU pods get"),
        (
            "kueue-quotas",
            "No queue of Kueue admits more GPUs than the GPUQuota of a namespace that uses it",
        ),
        ("references", "RuntimeClasses, claims and Secrets that GPU workloads refer to exist"),
        (
            "resource-quotas",
            "Every ResourceQuota key about GPUs limits something, and none limits the pods that wait in line",
        ),
        ("limit-ranges", "No LimitRange gives GPUs to containers that request none"),
        ("gpu-quotas", "GPUQuotas are counted, current and kept, and limit something"),
        ("ledgers", "Every GPUQuota has a ledger, and replicas of other versions can read its catalogues"),
        (
            "teams",
            "ClusterGPUQuotas are counted and have namespaces, and no guarantee idles while others need it",
        ),
        ("team-capacity", "ClusterGPUQuotas, and GPUQuotas outside teams, grant no more than the nodes have"),
        ("team-membership", "Only who may update a ClusterGPUQuota changes which namespaces it has"),
        (
            "waiting-pods",
            "Pods that wait in line for quota have something to wait for, and a controller that starts them",
        ),
        ("controller-user", "The webhook knows the controller as the one that starts pods in line"),
        ("pending-pods", "Pods that hold quota find a node within 10 minutes"),
        ("budgets", "Budgets of GPU-hours are counted"),
    ]


def test_the_page_says_how_many_checks_there_are() -> None:
    page = (ROOT / "docs" / "operate" / "doctor.md").read_text(encoding="utf-8")

    assert re.findall(r"`(\d+) checks, no findings`", page) == [str(len(CHECKS))]


def lease(holder: str | None, renewed: str | None) -> dict[str, Any]:
    at = renewed and f"2027-01-31T{renewed}.000000Z"
    return {"spec": {"holderIdentity": holder, "renewTime": at, "leaseDurationSeconds": 5}}


def other(name: str, **rule: list[str]) -> dict[str, Any]:
    rule = {"apiGroups": [""], "resources": ["pods"], "operations": ["CREATE"], **rule}
    return {"metadata": {"name": name}, "webhooks": [{"name": "x.example.com", "rules": [rule]}]}


def endpoint(ready: bool | None, *, of: str = "gpu-admission") -> dict[str, Any]:
    conditions = {} if ready is None else {"conditions": {"ready": ready}}
    return {
        "metadata": {"name": "a", "labels": {"kubernetes.io/service-name": of}},
        "endpoints": [{"addresses": ["10.0.0.1"], **conditions}],
    }


@cases(
    ("version", "want"),
    new_enough=({"major": "1", "minor": "35"}, []),
    as_clouds_write_it=({"major": "1", "minor": "37+"}, []),
    too_old=(
        {"major": "1", "minor": "34", "gitVersion": "v1.34.4"},
        [
            "kubernetes-too-old: API server v1.34.4 must be 1.35 or newer: older ones are not tested\n"
            "upgrade Kubernetes to 1.35 or newer"
        ],
    ),
)
def test_the_version_of_the_api_server(version: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found("kubernetes-version", {"/version": version}, want, tmp_path)


@cases(
    ("objects", "want"),
    it_leads=({LEASE: lease("a", "11:59:50")}, []),
    it_led_until_a_minute_ago=(
        {LEASE: lease("a", "11:59:00")},
        [
            "controller-away: Lease/gpu-admission-controller in gpu-admission is held by a and was last renewed "
            "60 s ago: quotas are not counted, certificates not renewed\n"
            "see why no controller leads: kubectl -n gpu-admission logs deployment/gpu-admission-controller"
        ],
    ),
    it_let_go=(
        {LEASE: lease("", "11:59:59")},
        [
            "controller-away: Lease/gpu-admission-controller in gpu-admission is held by nobody and was last "
            "renewed 1 s ago: quotas are not counted, certificates not renewed"
        ],
    ),
    an_empty_lease=(
        {LEASE: lease(None, None)},
        [
            "controller-away: Lease/gpu-admission-controller in gpu-admission is held by nobody and was never "
            "renewed: quotas are not counted, certificates not renewed"
        ],
    ),
    no_lease=(
        {},
        [
            "controller-missing: Lease/gpu-admission-controller in gpu-admission does not exist: no controller "
            "ever led, so quotas are not counted and certificates not renewed\n"
            "start the controller: kubectl -n gpu-admission logs deployment/gpu-admission-controller"
        ],
    ),
)
def test_the_leader(objects: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found("controller", objects, want, tmp_path)


NONE_READY = (
    "no-endpoints: Service/gpu-admission in gpu-admission has no ready endpoint: no replica of the "
    "webhook is ready\n"
    "kubectl -n gpu-admission get pods; kubectl -n gpu-admission logs deployment/gpu-admission-webhook"
)


@cases(
    ("port", "endpoint", "want"),
    one_is_ready=(443, endpoint(True), []),
    nothing_said_is_ready=(443, endpoint(None), []),
    not_ready=(443, endpoint(False), [NONE_READY]),
    of_another_service=(443, endpoint(True, of="another"), [NONE_READY]),
    another_port=(
        8443,
        endpoint(True),
        [
            "service-port: Service/gpu-admission in gpu-admission must have port 443\n"
            "apply deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static/strict"
        ],
    ),
)
def test_the_service(port: int, endpoint: JSON, want: list[str], tmp_path: Path) -> None:
    service = {"spec": {"clusterIP": "10.0.0.2", "ports": [{"port": port}]}}
    assert_found("service", {SERVICE: service, SLICES: [endpoint]}, want, tmp_path)


@cases(
    ("others", "want"),
    earlier_ones=([other("istio"), other("zz-gpu-admission")], []),
    a_later_one=(
        [other("zzz")],
        [
            "later-webhook: MutatingWebhookConfiguration/zzz x.example.com may undo what gpu-admission changed "
            "in a pod: webhooks run in the order of their names\n"
            "give it a name that sorts before zz-gpu-admission, or make sure that it does not change "
            "tolerations, node selectors and containers of GPU pods"
        ],
    ),
    a_later_one_for_everything=(
        [other("zzz", resources=["*/*"], operations=["*"], apiGroups=["*"])],
        [
            "later-webhook: MutatingWebhookConfiguration/zzz x.example.com may undo what gpu-admission changed "
            "in a pod: webhooks run in the order of their names"
        ],
    ),
    later_for_others=([other("zzz", operations=["UPDATE"]), other("zzzz", resources=["services"])], []),
)
def test_later_webhooks(others: list[JSON], want: list[str], tmp_path: Path) -> None:
    assert_found("later-webhooks", {MUTATING: others}, want, tmp_path)


BAD = {POLICIES: [stored({"priorty": 1, "rules": {"gpu-clas": {}}})]}
WRONG = [
    "document-rejected: configuration of the cluster GPUPolicy/p spec.priorty: unknown field; did you mean priority?\n"
    "correct it: until then the last good version stays in force",
    'document-rejected: configuration of the cluster GPUPolicy/p spec.rules.gpu-clas: unknown rule "gpu-clas"; '
    "did you mean gpu-class?",
]
CRDS = "kubectl apply --server-side -k deploy/static/crds, or helm upgrade with crds.install=true"
CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ESTABLISHED = {"type": "Established", "status": "True"}
NONE_THERE = [
    (
        "not-installed: gpu-admission is not installed in this cluster: no webhook configuration, and no "
        "Service in gpu-admission\n"
        "helm install gpu-admission deploy/chart --namespace gpu-admission --create-namespace --set "
        "image.repository=IMAGE -f deploy/chart/values-first-install.yaml, as deploy/README.md says; "
        "`gpu-admission scan` first shows what would be denied"
    )
]


@cases(
    ("check", "objects", "want"),
    invalid_documents=("documents", BAD, WRONG),
    crds=(
        "custom-resources",
        {},
        [
            f"crd-missing: CustomResourceDefinition/{name} does not exist\n{CRDS}"
            for name in expected_objects().crds
        ],
    ),
    crds_of_another_version=(
        "custom-resources",
        {
            f"{CRD_PATH}/{name}": {"spec": {"versions": []}, "status": {"conditions": [ESTABLISHED]}}
            for name in expected_objects().crds
        },
        [
            f"crd-differs: CustomResourceDefinition/{name} must be that of version {VERSION}: fields may be dropped or rejected\n"
            "apply deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static/strict; Helm never upgrades "
            "CRDs of its crds folder by itself"
            for name in expected_objects().crds
        ],
    ),
    crds_that_are_not_served=(
        "custom-resources",
        {f"{CRD_PATH}/{name}": {"status": {}} for name in expected_objects().crds},
        [
            f"crd-not-established: CustomResourceDefinition/{name} is not Established: the API server does not serve it\n"
            f"kubectl describe crd {name}"
            for name in expected_objects().crds
        ],
    ),
    a_paused_policy=(
        "documents",
        {POLICIES: [stored({"priority": 1, "pausedUntil": "2027-02-01T00:00:00Z"})]},
        [
            "policy-paused: GPUPolicy/p is paused until 2027-02-01 00:00 UTC: every rule only audits\n"
            "remove spec.pausedUntil as soon as its reason is gone: gpu-admission resume"
        ],
    ),
    an_exemption_that_ended=(
        "documents",
        {
            POLICIES: [
                stored(
                    {
                        "priority": 1,
                        "exemptions": [{"namespaces": ["legacy"], "reason": "old", "until": "2027-01-30"}],
                    }
                )
            ]
        },
        [
            "exemption-over: GPUPolicy/p has an exemption of legacy that ended on 2027-01-30 (old)\n"
            "remove it, or extend it"
        ],
    ),
    no_service=(
        "service",
        {},
        [
            "service-missing: Service/gpu-admission in gpu-admission does not exist: the API server cannot find the webhook\n"
            "apply deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static/strict"
        ],
    ),
    gpu_pods_that_are_not_reviewed=(
        "excluded-namespaces",
        {
            OURS: excluding("kube-system", "team"),
            NAMESPACES: [namespace("team")],
            "/api/v1/namespaces/team/pods": [
                {
                    "metadata": {"name": "train", "namespace": "team", "uid": "u"},
                    "spec": {"containers": [{"name": "a", "resources": {"limits": GPU}}]},
                }
            ],
        },
        [
            f"unseen-gpu-pods: Namespace/team has GPU pods (1, such as train) and is excluded by {ENTRY}\n"
            "remove team from the selector (webhooks.excludedNamespaces of the chart), unless it is the GPU stack; or apply "
            "deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static/strict"
        ],
    ),
    no_configurations=("configurations", {}, NONE_THERE),
)
def test_the_objects_of_the_installation(check: str, objects: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found(check, objects, want, tmp_path)


def test_the_command_that_installs_a_missing_kind_finds_it() -> None:
    assert (ROOT / "deploy/static/crds/kustomization.yaml").is_file()
    assert "name: clustergpuquotas.gpu-admission.dev" in (ROOT / "deploy/static/crds/crds.yaml").read_text()


@cases(
    ("check", "objects", "denied", "why"),
    a_right_is_missing=("taints", {}, ["list nodes"], "you may not list nodes"),
    refused_all_the_same=(
        "resource-quotas",
        {"/api/v1/resourcequotas": status(403, "resourcequotas is forbidden", "Forbidden")},
        [],
        "the API server says: resourcequotas is forbidden",
    ),
    no_json=(
        "gpu-quotas",
        {QUOTAS: Answer(b"no JSON")},
        [],
        "the API server says: the list of /apis/gpu-admission.dev/v1alpha1/gpuquotas cannot be read: "
        "JSON is malformed: invalid character (byte 4)",
    ),
    an_api_server_in_trouble=(
        "resource-quotas",
        {"/api/v1/resourcequotas": status(500, "etcd is away", "InternalError")},
        [],
        "the API server says: etcd is away",
    ),
    no_version=("kubernetes-version", {"/version": {"major": "x"}}, [], "the API server reports no version"),
    no_time=(
        "controller",
        {LEASE: {"spec": {"holderIdentity": "a", "renewTime": "soon"}}},
        [],
        "the API server's answer cannot be read: Invalid isoformat string: 'soon'",
    ),
    nothing_to_compare=("entries", {}, [], "there is no configuration zz-gpu-admission"),
)
def test_what_cannot_be_looked_at_is_said(
    check: str, objects: dict[str, Any], denied: list[str], why: str, tmp_path: Path
) -> None:
    result = checked(check, objects, tmp_path, denied=denied)

    assert result.findings == ()
    (missed,) = result.not_checked
    assert missed.why == why


@cases(
    ("result", "want"),
    something_is_not_proved=(
        CanaryResult(unproved=("that patches persist",)),
        "it is not proved that patches persist",
    ),
    not_allowed=(
        CanaryResult(reason="forbidden", message="pods is forbidden"),
        "canary in gpu-admission-canary: pods is forbidden",
    ),
    not_called=(
        CanaryResult(reason="unpatched", message="no patch", remedy="see the log"),
        "the canary in gpu-admission-canary failed: no patch",
    ),
)
def test_the_canary(result: CanaryResult, want: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "probe", lambda _api, _namespace: result)
    shown = checked("canary", {}, tmp_path)

    said = [each.why for each in shown.not_checked] or [
        f"{each.object} {each.message}" for each in shown.findings
    ]
    assert said == [want]
    assert [each.remedy for each in shown.findings] == ([result.remedy] if result.remedy else [])


def test_that_webhooks_fail_open_is_said_once(tmp_path: Path) -> None:
    entries = {
        f"{ADMISSION}/{kind}/zz-gpu-admission": {
            "metadata": {},
            "webhooks": [{"name": name, "failurePolicy": "Ignore"} for name in names],
        }
        for kind, names in expected_objects().configurations.items()
    }
    found = [each for each in checked("entries", entries, tmp_path).findings if each.id == "fails-open"]

    assert [f"{each.object} {each.message}\n{each.remedy}" for each in found] == [
        f"{ENTRY} and 4 more have failurePolicy Ignore: while the webhook is away, GPU pods are admitted unchecked\n"
        "after the first days set failurePolicy: Fail (webhooks.failurePolicy of the chart)"
    ]
