"""Doctor on what the chart's values change in the webhooks: more kinds of workloads, and namespaces chosen by labels."""

from pathlib import Path
from typing import Any

from tests.cases import cases
from tests.webhook.tools.installed_clusters import assert_found, checked
from webhook.tools.doctor.checks.configurations import KINDS, POD_WEBHOOKS, expected_objects
from webhook.version import VERSION

VALIDATING = "validatingwebhookconfigurations"
CONFIGURATION = f"/apis/admissionregistration.k8s.io/v1/{VALIDATING}/zz-gpu-admission"
MAPPINGS = "/apis/gpu-admission.dev/v1alpha1/gpuresourcemappings"
CUSTOM = "custom-workloads.validate.gpu-admission.dev"
OURS = {"group": "example.com", "kind": "TrainingJob", "pods": [{"path": "spec.template"}]}
EXTRA = {
    "apiGroups": ["example.com"],
    "apiVersions": ["*"],
    "resources": ["trainingjobs"],
    "operations": ["CREATE", "UPDATE"],
    "scope": "Namespaced",
}


def installed(*, without: int = 0, extra: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """Return the configuration of this version, without some rules of custom workloads and with others."""
    entries = []
    for name, meant in expected_objects().configurations[VALIDATING].items():
        entry = {**meant, "name": name}
        if name == CUSTOM:
            entry["rules"] = [*entry["rules"][without:], *extra]
        entries.append(entry)
    return {"webhooks": entries}


def mapping(*rows: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "ours", "uid": "1", "generation": 1}
    return {"metadata": metadata, "spec": {"workloadKinds": list(rows)}, "status": {}}


@cases(
    ("row", "extra", "want"),
    not_sent=(
        OURS,
        (),
        [
            "GPUResourceMapping/ours names TrainingJob of example.com, which no rule sends: only `check` reads such objects",
            "add {apiGroup: example.com, resources: [trainingjobs]} to webhooks.extraWorkloads of the chart",
        ],
    ),
    sent=(OURS, (EXTRA,), []),
    sent_by_another_plural=({**OURS, "resource": "trains"}, (EXTRA,), None),
    never_sent=({**OURS, "clusterScoped": True}, (), []),
    without_pods=({**OURS, "pods": []}, (), []),
    built_in=({**OURS, "group": "apps", "kind": "Deployment"}, (), []),
)
def test_kinds_that_the_webhook_never_gets(
    row: dict[str, Any], extra: tuple[dict[str, Any], ...], want: list[str] | None, tmp_path: Path
) -> None:
    objects = {CONFIGURATION: installed(extra=extra), MAPPINGS: [mapping(row)]}
    result = checked("workload-kinds", objects, tmp_path)

    assert result.not_checked == ()
    said = [text for each in result.findings for text in (f"{each.object} {each.message}", each.remedy)]
    assert bool(said) if want is None else said == want


APPLY = "apply deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static/strict"
RULES_DIFFER = f"rules must be that of version {VERSION}\n{APPLY}"


@cases(
    ("without", "extra", "want"),
    as_shipped=(0, (), []),
    rules_of_the_charts_value=(0, (EXTRA,), []),
    a_built_in_rule_is_missing=(1, (), [RULES_DIFFER]),
    and_not_made_up_for=(1, (EXTRA,), [RULES_DIFFER]),
)
def test_rules_may_be_added(
    without: int, extra: tuple[dict[str, Any], ...], want: list[str], tmp_path: Path
) -> None:
    objects = {CONFIGURATION: installed(without=without, extra=extra)}
    found = checked("entries", objects, tmp_path).findings

    assert [f"{each.message}\n{each.remedy}" for each in found if CUSTOM in each.object] == want


CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
LABELS = {"matchLabels": {"gpus": "reviewed"}}
EXPRESSION = {"key": "gpus", "operator": "Exists"}
WAIT = "pods without GPUs in the namespaces that its labels choose wait for the webhook"


def chosen(selector: dict[str, Any], policy: str, without: set[str]) -> dict[str, Any]:
    """Return the configurations of this version with a selector and a failure policy, some webhooks without conditions."""
    documents = {}
    for kind, expected in expected_objects().configurations.items():
        entries = [{**meant, "name": name} for name, meant in expected.items()]
        for entry in entries:
            if entry["name"] in without:
                own = entry["namespaceSelector"]["matchExpressions"]
                more = [*own, *selector.get("matchExpressions", ())]
                entry["namespaceSelector"] = {**selector, "matchExpressions": more}
                entry["failurePolicy"] = policy
                del entry["matchConditions"]
        documents[f"{CONFIGURATIONS}/{kind}/zz-gpu-admission"] = {"webhooks": entries}
    return documents


@cases(
    ("selector", "policy", "without", "findings", "notes"),
    labels=(LABELS, "Fail", POD_WEBHOOKS, [], [f"{WAIT}, and are denied while it is away"] * 2),
    an_expression=(
        {"matchExpressions": [EXPRESSION]},
        "Fail",
        POD_WEBHOOKS,
        [],
        [f"{WAIT}, and are denied while it is away"] * 2,
    ),
    while_it_is_away_they_pass=(LABELS, "Ignore", POD_WEBHOOKS, ["fails-open"], [WAIT] * 2),
    the_whole_cluster=({}, "Fail", POD_WEBHOOKS, ["entry-differs"] * 2, []),
    changes_of_pods=(LABELS, "Fail", {"pod-placement.validate.gpu-admission.dev"}, ["entry-differs"], []),
)
def test_new_pods_without_conditions(
    selector: dict[str, Any],
    policy: str,
    without: set[str],
    findings: list[str],
    notes: list[str],
    tmp_path: Path,
) -> None:
    assert set(KINDS) == set(expected_objects().configurations)
    result = checked("entries", chosen(selector, policy, without), tmp_path)
    assert [each.id for each in result.findings] == findings
    lacks = "has no matchConditions (webhooks.matchConditions of the chart)"
    assert sorted(result.notes) == [
        f"{kind}WebhookConfiguration/zz-gpu-admission webhooks[pods.{verb}.gpu-admission.dev] {lacks}: {note}"
        for (kind, verb), note in zip(
            (("Mutating", "mutate"), ("Validating", "validate")), notes, strict=False
        )
    ]


PODS = "MutatingWebhookConfiguration/zz-gpu-admission webhooks[pods.mutate.gpu-admission.dev]"
CLOSED = (
    "fails-closed: MutatingWebhookConfiguration/zz-gpu-admission webhooks[pods.restore.gpu-admission.dev] has failurePolicy "
    "Fail: while the webhook is away, nobody can apply a workload\n"
    "set failurePolicy: Ignore for it"
)


def without(*names: str) -> dict[str, Any]:
    expression = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(names)}
    return {"namespaceSelector": {"matchExpressions": [expression]}}


@cases(
    ("pods", "restore", "want"),
    as_installed=({}, {}, []),
    labels_of_pods=(
        {"objectSelector": LABELS},
        {},
        [
            f"object-selector: {PODS} should have no objectSelector: a user who leaves out a label evades every rule and quota\n"
            "empty webhooks.objectSelector of the chart; webhooks.namespaceSelector chooses by labels of administrators"
        ],
    ),
    slow=(
        {"timeoutSeconds": 20},
        {},
        [
            f"long-timeout: {PODS} waits 20 s for an answer, and so does the creator of a pod\n"
            "set timeoutSeconds: 5"
        ],
    ),
    its_own_namespace=(
        without("kube-system", "kube-node-lease"),
        {},
        [
            f"own-namespace: {PODS} namespaceSelector must exclude gpu-admission: the webhook's own pods could not start while "
            "it is away\n"
            "add gpu-admission to the values of its namespaceSelector"
        ],
    ),
    a_namespace_of_kubernetes=(
        without("kube-system", "gpu-admission"),
        {},
        [
            f"kube-namespace: {PODS} namespaceSelector must exclude kube-node-lease\n"
            "add kube-node-lease to the values of its namespaceSelector"
        ],
    ),
    fails_open=(
        {"failurePolicy": "Ignore"},
        {},
        [
            f"fails-open: {PODS} has failurePolicy Ignore: while the webhook is away, GPU pods are admitted unchecked\n"
            "after the first days set failurePolicy: Fail (webhooks.failurePolicy of the chart)"
        ],
    ),
    fails_closed=({}, {"failurePolicy": "Fail"}, [CLOSED]),
    another_name=(
        {"name": "pods.example.com"},
        {},
        [
            f"entry-missing: {PODS} does not exist: nothing of it is reviewed\n{APPLY}",
            "entry-unknown: MutatingWebhookConfiguration/zz-gpu-admission webhooks[pods.example.com] is unknown to version "
            f"{VERSION}: remove it\n{APPLY}",
        ],
    ),
)
def test_entries(pods: dict[str, Any], restore: dict[str, Any], want: list[str], tmp_path: Path) -> None:
    changes = {"pods.mutate.gpu-admission.dev": pods, "pods.restore.gpu-admission.dev": restore}
    mutating = expected_objects().configurations["mutatingwebhookconfigurations"]
    entries = [{**meant, "name": name, **changes[name]} for name, meant in mutating.items()]
    objects = {f"{CONFIGURATIONS}/mutatingwebhookconfigurations/zz-gpu-admission": {"webhooks": entries}}
    assert_found("entries", objects, want, tmp_path)


def test_the_service_that_an_entry_calls(tmp_path: Path) -> None:
    service = {"namespace": "other", "name": "gpu-admission", "path": "/mutate"}
    entry = {"name": "pods.restore.gpu-admission.dev", "clientConfig": {"service": service}}
    want = [
        "wrong-service: MutatingWebhookConfiguration/zz-gpu-admission webhooks[pods.restore.gpu-admission.dev] must call "
        "gpu-admission/gpu-admission:443/mutate, and calls other/gpu-admission:443/mutate\n"
        f"{APPLY}; for an installation in another namespace use --namespace"
    ]
    objects = {f"{CONFIGURATIONS}/mutatingwebhookconfigurations/zz-gpu-admission": {"webhooks": [entry]}}
    assert_found("service-reference", objects, want, tmp_path)
