"""Doctor on webhooks.matchConditions of the chart: new pods without conditions, where labels choose the namespaces."""

from pathlib import Path
from typing import Any

from tests.cases import cases
from tests.webhook.tools.doctor.clusters import checked
from webhook.tools.doctor.checks.configurations import KINDS, NEW_PODS
from webhook.tools.doctor.expected import expected_objects

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
LABELS = {"matchLabels": {"gpus": "reviewed"}}
EXPRESSION = {"key": "gpus", "operator": "Exists"}
WAIT = "pods without GPUs in the namespaces that its labels choose wait for the webhook"


def installed(selector: dict[str, Any], policy: str, without: set[str]) -> dict[str, Any]:
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
    labels=(LABELS, "Fail", NEW_PODS, [], [f"{WAIT}, and are refused while it is away"] * 2),
    an_expression=(
        {"matchExpressions": [EXPRESSION]},
        "Fail",
        NEW_PODS,
        [],
        [f"{WAIT}, and are refused while it is away"] * 2,
    ),
    while_it_is_away_they_pass=(LABELS, "Ignore", NEW_PODS, ["fails-open"], [WAIT] * 2),
    the_whole_cluster=({}, "Fail", NEW_PODS, ["entry-differs"] * 2, []),
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
    result = checked("entries", installed(selector, policy, without), tmp_path)
    assert [each.id for each in result.findings] == findings
    assert [note.partition(": ")[2] for note in result.notes] == notes
