"""Each check on installations that no real cluster shows on demand; the rest is in tests/cluster/test_doctor.py."""

from pathlib import Path
from typing import Any

import msgspec

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, status
from tests.webhook.tools.doctor.clusters import cluster_of
from webhook.tools.doctor.check import CheckResult, run_check
from webhook.tools.doctor.checks import CHECKS
from webhook.tools.doctor.checks.configurations import excluded_by_name
from webhook.tools.doctor.expected import expected_objects

BY_ID = {check.id: check for check in CHECKS}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{ADMISSION}/mutatingwebhookconfigurations"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpu-admission/leases/gpu-admission-controller"
QUOTAS = "/apis/gpu-admission.dev/v1alpha1/gpuquotas"
LEDGERS = "/apis/gpu-admission.dev/v1alpha1/namespaces/gpu-admission/gpuquotaledgers"
CATALOGUES = "/api/v1/namespaces/gpu-admission/configmaps/gpu-admission-catalogues"
POLICIES = "/apis/gpu-admission.dev/v1alpha1/gpupolicies"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/gpu-admission/endpointslices"
SERVICE = "/api/v1/namespaces/gpu-admission/services/gpu-admission"
OURS, NAMESPACES = f"{MUTATING}/zz-gpu-admission", "/api/v1/namespaces"
VALIDATING = f"{ADMISSION}/validatingwebhookconfigurations/zz-gpu-admission"
POLICY, BINDING = (f"{ADMISSION}/validatingadmissionpolic{end}" for end in ("ies", "ybindings"))
CONTROLLER = "gpu-admission-controller"
GPU = {"nvidia.com/gpu": "8"}
T4 = {"accelerator": "nvidia-t4"}
NVIDIA = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def excluding(*names: str) -> dict[str, Any]:
    """Return a configuration that excludes these namespaces."""
    expression = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(names)}
    selector = {"matchExpressions": [expression]}
    return {"webhooks": [{"name": "pods.mutate.gpu-admission.dev", "namespaceSelector": selector}]}


def namespace(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}}


def test_a_gpu_operator_that_depends_on_the_webhook_is_noted(tmp_path: Path) -> None:
    objects = {OURS: excluding("kube-system"), NAMESPACES: [namespace("gpu-operator")]}
    with cluster_of(tmp_path, objects) as cluster:
        result = run_check(BY_ID["excluded-namespaces"], cluster)

    assert result.findings == ()
    assert list(result.notes) == [
        "pods of gpu-operator that request GPUs are reviewed, and start only while the webhook answers: "
        "name it in webhooks.excludedNamespaces of the chart where only administrators create pods in it"
    ]


def test_every_check_has_an_id_of_its_own() -> None:
    assert len(BY_ID) == len(CHECKS)


def lease(holder: str | None, renewed: str | None) -> dict[str, Any]:
    at = renewed and f"2027-01-31T{renewed}.000000Z"
    return {"spec": {"holderIdentity": holder, "renewTime": at, "leaseDurationSeconds": 15}}


def node(
    name: str, labels: dict[str, str], taints: list[dict[str, str]] | None = None, **gpus: str
) -> dict[str, Any]:
    allocatable = {"cpu": "64", **(gpus or GPU)}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [NVIDIA] if taints is None else taints},
        "status": {"allocatable": allocatable},
    }


def deleted(name: str, *, gpus: int = 1, at: str | None = "2027-01-31T11:00:00Z") -> dict[str, Any]:
    times = {} if at is None else {"deletionTimestamp": at}
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {
        "metadata": {"name": name, "namespace": "ml", **times},
        "spec": {"nodeName": "a", "containers": [{"name": "main", "resources": {"limits": limits}}]},
    }


COUNTED = ("Ready", "True", "")


def managed(document: dict[str, Any], *fields: str) -> dict[str, Any]:
    """Return the object with managedFields that name these fields of its spec."""
    entry = {"manager": "kubectl", "fieldsV1": {"f:spec": {f"f:{field}": {} for field in fields}}}
    return {**document, "metadata": {**document["metadata"], "managedFields": [entry]}}


def conditions(*found: tuple[str, str, str]) -> list[dict[str, Any]]:
    times = {"lastTransitionTime": "2027-01-31T00:00:00Z", "observedGeneration": 1}
    return [
        {"type": kind, "status": holds, "reason": "R", "message": message, **times}
        for kind, holds, message in found
    ]


def quota(*found: tuple[str, str, str], **spec: Any) -> dict[str, Any]:
    identity = {"name": "default", "namespace": "team", "uid": "u", "resourceVersion": "1", "generation": 1}
    status = {"conditions": conditions(*found)}
    return {"metadata": identity, "spec": {"hard": {"gpus": "4"}, **spec}, "status": status}


def counted_by(*digests: str) -> dict[str, Any]:
    """Return a quota and its ledger: counted by one catalogue, and moving to the other one if there is one."""
    fields = zip(("classCatalogue", "nextCatalogue"), digests, strict=False)
    spec = {"quotaUid": "u", "generation": 1, "hard": {"gpus": "4"}, "unclassifiedPods": "TotalOnly"}
    return {
        QUOTAS: [quota()],
        LEDGERS: [row({**spec, **{field: f"{each}/TotalOnly" for field, each in fields}})],
    }


def row(ledger: Any) -> dict[str, Any]:
    metadata = {"name": "team", "namespace": "gpu-admission", "uid": "r", "resourceVersion": "2"}
    return {"metadata": metadata, "ledger": msgspec.json.encode(ledger).decode()}


def published(*digests: str) -> dict[str, Any]:
    return {CATALOGUES: {"metadata": {"name": "c"}, "data": dict.fromkeys(digests, "{}")}}


def stored(spec: dict[str, Any], accepted: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the GPUPolicy p as the API server has it, with the spec that was in force last."""
    status = {} if accepted is None else {"status": {"accepted": accepted}}
    return {"metadata": {"name": "p", "uid": "u", "generation": 2}, "spec": spec, **status}


def other(name: str, **rule: list[str]) -> dict[str, Any]:
    rule = {"apiGroups": [""], "resources": ["pods"], "operations": ["CREATE"], **rule}
    return {"metadata": {"name": name}, "webhooks": [{"name": "x.example.com", "rules": [rule]}]}


def endpoint(ready: bool | None, *, of: str = "gpu-admission") -> dict[str, Any]:
    conditions = {} if ready is None else {"conditions": {"ready": ready}}
    return {
        "metadata": {"name": "a", "labels": {"kubernetes.io/service-name": of}},
        "endpoints": [{"addresses": ["10.0.0.1"], **conditions}],
    }


def found(check: str, objects: dict[str, Any], folder: Path) -> list[str]:
    """Run the check; return what it finds as `id: object message`. Every finding has a remedy, and nothing stays unchecked."""
    with cluster_of(folder, objects) as cluster:
        result = run_check(BY_ID[check], cluster)
    assert result.not_checked == ()
    assert all(finding.remedy for finding in result.findings)
    return [f"{finding.id}: {finding.object} {finding.message}" for finding in result.findings]


def assert_found(texts: list[str], want: list[str]) -> None:
    """Compare with `id: part of object and message`."""
    assert [text.partition(": ")[0] for text in texts] == [text.partition(": ")[0] for text in want]
    for text, expected in zip(texts, want, strict=True):
        assert expected.partition(": ")[2] in text


@cases(
    ("version", "want"),
    {
        "new-enough": ({"major": "1", "minor": "30"}, []),
        "as-clouds-write-it": ({"major": "1", "minor": "33+"}, []),
        "too-old": (
            {"major": "1", "minor": "29", "gitVersion": "v1.29.4"},
            ["kubernetes-too-old: API server v1.29.4"],
        ),
    },
)
def test_the_version_of_the_api_server(version: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found(found("kubernetes-version", {"/version": version}, tmp_path), want)


@cases(
    ("objects", "want"),
    {
        "it-leads": ({LEASE: lease("a", "11:59:50")}, []),
        "it-led-until-a-minute-ago": (
            {LEASE: lease("a", "11:59:00")},
            ["controller-away: is held by a and was last renewed 60 s ago"],
        ),
        "it-let-go": ({LEASE: lease("", "11:59:59")}, ["controller-away: is held by nobody"]),
        "an-empty-lease": ({LEASE: lease(None, None)}, ["controller-away: was never renewed"]),
        "no-lease": ({}, ["controller-missing: no controller ever led"]),
    },
)
def test_the_leader(objects: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found(found("controller", objects, tmp_path), want)


@cases(
    ("port", "endpoint", "want"),
    {
        "one-is-ready": (443, endpoint(True), []),
        "nothing-said-is-ready": (443, endpoint(None), []),
        "not-ready": (443, endpoint(False), ["no-endpoints: no replica of the webhook is ready"]),
        "of-another-service": (
            443,
            endpoint(True, of="another"),
            ["no-endpoints: no replica of the webhook is ready"],
        ),
        "another-port": (8443, endpoint(True), ["service-port: must have port 443"]),
    },
)
def test_the_service(port: int, endpoint: JSON, want: list[str], tmp_path: Path) -> None:
    service = {"spec": {"clusterIP": "10.0.0.2", "ports": [{"port": port}]}}
    assert_found(found("service", {SERVICE: service, SLICES: [endpoint]}, tmp_path), want)


@cases(
    ("others", "want"),
    {
        "earlier-ones": ([other("istio"), other("zz-gpu-admission")], []),
        "a-later-one": ([other("zzz")], ["later-webhook: x.example.com may undo what gpu-admission changed"]),
        "a-later-one-for-everything": (
            [other("zzz", resources=["*/*"], operations=["*"], apiGroups=["*"])],
            ["later-webhook: x.example.com"],
        ),
        "later-ones-for-something-else": (
            [other("zzz", operations=["UPDATE"]), other("zzzz", resources=["services"])],
            [],
        ),
    },
)
def test_later_webhooks(others: list[JSON], want: list[str], tmp_path: Path) -> None:
    assert_found(found("later-webhooks", {MUTATING: others}, tmp_path), want)


ENTRY = "MutatingWebhookConfiguration/zz-gpu-admission webhooks[pods.mutate.gpu-admission.dev]"


@cases(
    ("there", "want"),
    {
        "it-exists": ("gpu-operator", []),
        "it-does-not-exist": (
            "team",
            [
                f"excluded-namespace-missing: does not exist and is excluded by {ENTRY}: nobody reviews the GPU pods of whoever "
                "creates it"
            ],
        ),
    },
)
def test_an_excluded_namespace(there: str, want: list[str], tmp_path: Path) -> None:
    objects = {OURS: excluding("kube-system", "gpu-operator"), NAMESPACES: [namespace(there)]}
    assert_found(found("excluded-namespaces", objects, tmp_path), want)


@cases(
    ("excluded", "want"),
    {
        "in-an-excluded-namespace": (
            "team",
            [
                f"unseen-quota: does not hold: {ENTRY} does not choose the namespace, so its pods are not reviewed"
            ],
        ),
        "in-a-chosen-namespace": ("other", []),
    },
)
def test_quotas_of_unseen_namespaces(excluded: str, want: list[str], tmp_path: Path) -> None:
    objects = {OURS: excluding(excluded), NAMESPACES: [namespace("team")], QUOTAS: [quota()]}
    assert_found(found("unseen-quotas", objects, tmp_path), want)


@cases(
    ("policy", "action", "want"),
    {
        "it-denies": (True, "Deny", []),
        "it-only-audits": (True, "Audit", ["controller-unbounded: must exist, with a binding that denies"]),
        "there-is-none": (
            False,
            "Deny",
            ["controller-unbounded: may send any request of the cluster anywhere"],
        ),
    },
)
def test_the_policy_that_bounds_the_controller(
    policy: bool, action: str, want: list[str], tmp_path: Path
) -> None:
    binding = {"spec": {"policyName": CONTROLLER, "validationActions": [action]}}
    objects = {f"{BINDING}/{CONTROLLER}": binding} | (
        {f"{POLICY}/{CONTROLLER}": {"spec": {}}} if policy else {}
    )
    assert_found(found("controller-policy", objects, tmp_path), want)


PENDING = {
    **quota(),
    "status": {"hard": {"gpus": "4"}, "conditions": conditions(COUNTED), "observedGeneration": 0},
}


@cases(
    ("quotas", "want"),
    {
        "no-quotas": ([], []),
        "all-is-well": ([quota(COUNTED, ("Exceeded", "False", ""), ("Stale", "False", ""))], []),
        "exceeded": (
            [quota(COUNTED, ("Exceeded", "True", "gpus: 5 used of 4, 1 too many"))],
            ["quota-exceeded: is Exceeded: gpus: 5 used of 4, 1 too many"],
        ),
        "stale": (
            [quota(COUNTED, ("Stale", "True", "no message about pods for 200 s"))],
            ["quota-stale: is Stale: no message about pods for 200 s"],
        ),
        "a-spec-that-is-not-in-force": (
            [PENDING],
            ["quota-pending: is in force as it was before generation 1 of its spec"],
        ),
        "never-counted": ([quota()], ["quota-not-ready: was never counted"]),
        "for-a-class-that-was-deleted": (
            [
                quota(
                    COUNTED,
                    hard={
                        "classes": {"nvidia-t4": "1", "deleted": "2"},
                        "resources": {"example.com/gpus": "1"},
                    },
                )
            ],
            [
                "quota-limits-nothing: spec.hard.classes.deleted must be a GPU class or family",
                "quota-limits-nothing: spec.hard.resources[example.com/gpus] must be a GPU resource",
            ],
        ),
        "stored-by-an-earlier-version-with-its-default": (
            [quota(COUNTED, hard={"classes": {"nvidia-t4": "1"}}, unclassifiedPods="TotalOnly")],
            [
                "quota-classes-not-held: spec.unclassifiedPods: TotalOnly lets pods that pin no class exceed hard.classes"
            ],
        ),
        "that-lost-a-field-that-was-renamed": (
            [managed(quota(COUNTED), "hard", "unpinned")],
            ["quota-lost-a-field: had spec.unpinned, which the API server dropped"],
        ),
        "applied-again-by-the-new-name": (
            [managed(quota(COUNTED, unclassifiedPods="Deny"), "hard", "unpinned")],
            [],
        ),
    },
)
def test_quotas(quotas: list[JSON], want: list[str], tmp_path: Path) -> None:
    assert_found(found("gpu-quotas", {QUOTAS: quotas} if quotas else {}, tmp_path), want)


@cases(
    ("objects", "want"),
    {
        "published": ({**counted_by("here"), **published("here")}, []),
        "counted-by-nothing-yet": (counted_by(), []),
        "no-ledger": (
            {QUOTAS: [quota()]},
            ["ledger-missing: has no GPUQuotaLedger in gpu-admission, so replicas deny GPU pods there"],
        ),
        "unreadable": (
            {QUOTAS: [quota()], LEDGERS: [row({"hard": "many"})]},
            ["ledger-unreadable: has a ledger that replicas cannot use: the GPUQuotaLedger cannot be read: "],
        ),
        "its-quota-is-gone": (
            {**counted_by("here"), **published("here"), QUOTAS: []},
            ["ledger-left: is of a namespace without a GPUQuota, and limits it"],
        ),
        "the-next-one-is-not-published": (
            {**counted_by("here", "there"), **published("here")},
            ["catalogue-not-published: is counted by class catalogue there, which ConfigMap"],
        ),
        "no-config-map": (
            counted_by("here"),
            ["catalogue-not-published: gpu-admission-catalogues in gpu-admission lacks"],
        ),
    },
)
def test_ledgers(objects: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found(found("ledgers", objects, tmp_path), want)


@cases(
    ("check", "nodes", "want"),
    {
        "temporary-taints-do-not-count": (
            "untainted-nodes",
            [
                node("a", {}, []),
                node("b", {}, [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]),
                node("c", {}),
                node("cpu", {}, [], **{"nvidia.com/gpu": "0"}),
            ],
            ["untainted-gpu-node: Node a, b"],
        ),
        "the-usual-taint-is-tolerated": ("taints", [node("a", T4)], []),
        "the-taint-of-another-vendor-is-tolerated": (
            "taints",
            [node("a", {}, [{"key": "amd.com/gpu", "effect": "NoSchedule"}])],
            [],
        ),
        "many-nodes-are-one-finding": (
            "unknown-classes",
            [node(f"n{number}", {"nvidia.com/gpu.product": "X"}) for number in range(5)],
            ["unknown-class: Node n0, n1, n2 and 2 more has GPUs of an unknown class"],
        ),
        "a-resource-of-no-mapping": (
            "unmapped",
            [
                node("a", {}, None, **{"example.com/npu": "4", "nvidia.com/a100": "1", "rdma/x": "1"}),
                node("b", {}, None, **{"example.com/npu": "2", "example.com/none": "0"}),
            ],
            ["unmapped-resource: Resource example.com/npu is not counted"],
        ),
        "a-node-without-the-label": (
            "class-labels",
            [node("a", {"nvidia.com/gpu.product": "NVIDIA-L4"})],
            ["node-without-label: is of class nvidia-l4 and must have the label accelerator"],
        ),
    },
)
def test_nodes(check: str, nodes: list[JSON], want: list[str], tmp_path: Path) -> None:
    assert_found(found(check, {"/api/v1/nodes": nodes}, tmp_path), want)


@cases(
    ("is_ready", "want"),
    {
        "no-kubelet-confirms-their-end": (
            False,
            ["deleted-pods-on-lost-node: is not Ready, and has 1 GPU pods that were deleted (ml/train)"],
        ),
        "a-ready-node-ends-its-pods": (True, []),
    },
)
def test_deleted_pods(is_ready: bool, want: list[str], tmp_path: Path) -> None:
    holder = node("a", {})
    holder["status"]["conditions"] = [{"type": "Ready", "status": "True" if is_ready else "Unknown"}]
    pods = [deleted("train"), deleted("idle", gpus=0), deleted("kept", at=None)]
    assert_found(found("deleted-pods", {"/api/v1/nodes": [holder], "/api/v1/pods": pods}, tmp_path), want)


def test_device_classes_of_unknown_drivers(tmp_path: Path) -> None:
    classes = {
        "mine": "device.driver == 'gpu.nvidia.com'",
        "other": "device.driver == 'x.example.com'",
        "silent": "true",
    }
    objects = {
        "/apis/resource.k8s.io": {"versions": [{"version": "v1"}]},
        "/apis/resource.k8s.io/v1/deviceclasses": [
            {
                "metadata": {"name": name, "uid": name},
                "spec": {"selectors": [{"cel": {"expression": expression}}]},
            }
            for name, expression in classes.items()
        ],
    }
    assert_found(
        found("unmapped", objects, tmp_path), ["unmapped-device-class: DeviceClass/other is not counted"]
    )


@cases(
    ("check", "objects", "want"),
    {
        "invalid-documents": (
            "documents",
            {POLICIES: [stored({"priorty": 1, "rules": {"gpu-clas": {}}})]},
            [
                "document-refused: GPUPolicy/p spec.priorty",
                "document-refused: GPUPolicy/p spec.rules.gpu-clas",
            ],
        ),
        "no-crds": (
            "custom-resources",
            {},
            [f"crd-missing: {name}" for name in expected_objects().custom_resources],
        ),
        "no-configurations": (
            "configurations",
            {},
            [
                "configuration-missing: MutatingWebhookConfiguration/zz-gpu-admission",
                "configuration-missing: ValidatingWebhookConfiguration/zz-gpu-admission",
            ],
        ),
    },
)
def test_the_objects_of_the_installation(check: str, objects: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found(found(check, objects, tmp_path), want)


@cases(
    ("condition", "status", "want"),
    {
        "complete": ("Complete", "True", []),
        "failed": ("Failed", "True", []),
        "not-failed": ("Failed", "False", ["runtime-class-missing: Job/train in team"]),
        "suspended": ("Suspended", "True", ["runtime-class-missing: Job/train in team"]),
    },
)
def test_only_jobs_that_have_not_ended_refer_to_objects(
    condition: str, status: str, want: list[str], tmp_path: Path
) -> None:
    pod = {"runtimeClassName": "missing", "containers": [{"name": "a", "resources": {"limits": GPU}}]}
    job = {
        "metadata": {"name": "train", "namespace": "team", "uid": "u"},
        "spec": {"template": {"spec": pod}},
        "status": {"conditions": [{"type": condition, "status": status}]},
    }
    assert_found(found("references", {"/apis/batch/v1/jobs": [job]}, tmp_path), want)


@cases(
    ("reason", "patience"),
    {
        "not-counted": ("NotCounted", "wait ten seconds;"),
        "unreadable-until-the-bound": ("Unreadable", "wait a minute;"),
    },
)
def test_how_long_a_quota_takes_to_be_ready(reason: str, patience: str, tmp_path: Path) -> None:
    stored_quota = quota(("Ready", "False", "requests are denied"))
    stored_quota["status"]["conditions"][0]["reason"] = reason
    with cluster_of(tmp_path, {QUOTAS: [stored_quota]}) as cluster:
        (finding,) = run_check(BY_ID["gpu-quotas"], cluster).findings

    assert finding.remedy.startswith(patience)


@cases(
    ("annotations", "want"),
    {
        "of-our-own": (
            {},
            [
                "ServiceAccount/gpu-admission-webhook in gpu-admission",
                "ServiceAccount/gpu-admission-controller in gpu-admission",
            ],
        ),
        "of-cert-manager": ({"cert-manager.io/inject-ca-from": "gpu-admission/gpu-admission"}, []),
    },
)
def test_the_secret_is_needed_only_where_the_certificate_is_ours(
    annotations: dict[str, str], want: list[str], tmp_path: Path
) -> None:
    configuration = {"metadata": {"annotations": annotations}}
    objects = {f"{MUTATING}/zz-gpu-admission": configuration}
    with cluster_of(tmp_path, objects, denied=["watch secrets"]) as cluster:
        findings = run_check(BY_ID["service-accounts"], cluster).findings

    assert [finding.object for finding in findings] == want
    assert all("watch secrets" in finding.message for finding in findings)


@cases(
    ("entries", "want"),
    {
        "autoscalers-are-reviewed": (
            [{"name": "autoscalers.validate.gpu-admission.dev"}],
            ["must be allowed to get deployments.apps; get rollouts.argoproj.io"],
        ),
        "autoscalers-are-not-reviewed": ([], []),
    },
)
def test_what_autoscalers_scale_is_read_only_where_they_are_reviewed(
    entries: list[dict[str, Any]], want: list[str], tmp_path: Path
) -> None:
    objects = {VALIDATING: {"metadata": {}, "webhooks": entries}}
    with cluster_of(tmp_path, objects, denied=["get deployments", "get rollouts"]) as cluster:
        findings = run_check(BY_ID["service-accounts"], cluster).findings

    assert [finding.message for finding in findings] == want


@cases(
    ("check", "objects", "denied", "why"),
    {
        "a-right-is-missing": ("taints", {}, ["list nodes"], "you may not list nodes"),
        "refused-all-the-same": (
            "resource-quotas",
            {"/api/v1/resourcequotas": status(403, "resourcequotas is forbidden", "Forbidden")},
            [],
            "the API server says: resourcequotas is forbidden",
        ),
        "no-json": ("gpu-quotas", {QUOTAS: Answer(b"no JSON")}, [], "the API server says: the list of"),
        "an-api-server-in-trouble": (
            "resource-quotas",
            {"/api/v1/resourcequotas": status(500, "etcd is away", "InternalError")},
            [],
            "the API server says: etcd is away",
        ),
        "no-version": ("kubernetes-version", {"/version": {"major": "x"}}, [], "reports no version"),
        "nothing-to-compare": ("entries", {}, [], "there is no configuration zz-gpu-admission"),
    },
)
def test_what_cannot_be_looked_at_is_said(
    check: str, objects: dict[str, Any], denied: list[str], why: str, tmp_path: Path
) -> None:
    with cluster_of(tmp_path, objects, denied=denied) as cluster:
        result = run_check(BY_ID[check], cluster)

    assert result.findings == ()
    (missed,) = result.not_checked
    assert why in missed.why


def test_a_directory_with_a_mistake_leaves_open_what_depends_on_it(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "policy.yaml").write_text("{")
    nodes = {"/api/v1/nodes": [node("a", T4)]}
    with cluster_of(tmp_path, nodes, config=config) as cluster:
        results = {
            name: run_check(BY_ID[name], cluster) for name in ("documents", "taints", "untainted-nodes")
        }

    assert [finding.id for finding in results["documents"].findings] == ["document-refused"]
    assert [each.why for each in results["taints"].not_checked] == [
        "the configuration cannot be used: see check `documents`"
    ]
    assert results["untainted-nodes"] == CheckResult(BY_ID["untainted-nodes"])


def test_what_was_in_force_before_a_mistake_is_what_is_checked(tmp_path: Path) -> None:
    # The taint would be tolerated by the newest policy, which cannot be used, and not by the one in force.
    tainted = node("a", T4, [NVIDIA, {"key": "ml", "effect": "NoSchedule"}])
    newest = {"rules": {"gpu-toleration": {"tolerations": [{"key": "ml", "operator": "Exists"}]}}, "x": 1}
    objects = {"/api/v1/nodes": [tainted], POLICIES: [stored(newest, {"priority": 1})]}
    with cluster_of(tmp_path, objects) as cluster:
        found = run_check(BY_ID["taints"], cluster).findings

    assert [finding.id for finding in found] == ["taint-not-tolerated"]
    assert "has the taint ml:NoSchedule" in found[0].message


NAME = "kubernetes.io/metadata.name"


@cases(
    ("expressions", "want"),
    {
        "by-name": ([{"key": NAME, "operator": "NotIn", "values": ["a", "b"]}], {"a", "b"}),
        "chosen-by-name": ([{"key": NAME, "operator": "In", "values": ["a"]}], set()),
        "by-another-label": ([{"key": "gpu", "operator": "NotIn", "values": ["a"]}], set()),
        "everything": ([], set()),
    },
)
def test_namespaces_that_a_selector_excludes_by_name(expressions: list[JSON], want: set[str]) -> None:
    assert excluded_by_name({"matchExpressions": expressions}) == want
