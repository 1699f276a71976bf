"""Doctor on kinds of workloads beyond the built-in ones: in documents, and in the rules of the chart."""

from pathlib import Path
from typing import Any

from tests.cases import cases
from tests.webhook.tools.doctor.clusters import checked
from webhook.tools.doctor.expected import expected_objects

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


@cases(
    ("without", "extra", "want"),
    as_shipped=(0, (), []),
    rules_of_the_charts_value=(0, (EXTRA,), []),
    a_built_in_rule_is_missing=(1, (), ["rules must be that of version"]),
    and_not_made_up_for=(1, (EXTRA,), ["rules must be that of version"]),
)
def test_rules_may_be_added(
    without: int, extra: tuple[dict[str, Any], ...], want: list[str], tmp_path: Path
) -> None:
    objects = {CONFIGURATION: installed(without=without, extra=extra)}
    found = checked("entries", objects, tmp_path).findings

    ours = [each.message for each in found if CUSTOM in each.object]
    assert [message.partition(" 0")[0].rstrip() for message in ours] == want
