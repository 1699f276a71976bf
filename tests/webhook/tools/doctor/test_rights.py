"""Rights of the service accounts of the installation."""

from pathlib import Path
from typing import Any

from tests.cases import cases
from tests.webhook.tools.doctor.objects import ADMISSION, OURS, POLICIES, stored
from tests.webhook.tools.installed_clusters import checked

VALIDATING = f"{ADMISSION}/validatingwebhookconfigurations/zz-gpu-admission"
ACCOUNTS = [f"ServiceAccount/gpu-admission-{each} in gpu-admission" for each in ("webhook", "controller")]


@cases(
    ("annotations", "want"),
    of_our_own=({}, ACCOUNTS),
    of_cert_manager=({"cert-manager.io/inject-ca-from": "gpu-admission/gpu-admission"}, []),
)
def test_the_secret_is_needed_only_where_the_certificate_is_ours(
    annotations: dict[str, str], want: list[str], tmp_path: Path
) -> None:
    configuration = {"metadata": {"annotations": annotations}}
    result = checked("service-accounts", {OURS: configuration}, tmp_path, denied=["watch secrets"])

    assert [finding.object for finding in result.findings] == want
    messages = ["watch secrets/gpu-admission-certificates -n gpu-admission"] * 2
    messages[1] += "; watch secrets/gpu-admission-ca -n gpu-admission"
    for finding, missing in zip(result.findings, messages, strict=False):
        assert finding.message == f"must be allowed to {missing}"
        assert finding.remedy == (
            "apply deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static/strict, which has its "
            "ClusterRole and Role"
        )


@cases(
    ("denied", "want"),
    published=(
        ["patch configmaps"],
        [
            "patch configmaps/gpu-admission-catalogues -n gpu-admission; "
            "patch configmaps/gpu-admission-devices -n gpu-admission"
        ],
    ),
    ledgers=(["delete gpuquotaledgers"], ["delete gpuquotaledgers.gpu-admission.dev -n gpu-admission"]),
    events=(["create events"], ["create events", "create events"]),
    limits=(["watch limitranges"], ["watch limitranges"]),
    new_ledgers=(["create gpuquotaledgers"], ["create gpuquotaledgers.gpu-admission.dev -n gpu-admission"]),
    leases=(
        ["update leases"],
        ["update leases.coordination.k8s.io/gpu-admission-controller -n gpu-admission"],
    ),
    counts=(["update gpuquotaledgers"], ["update gpuquotaledgers.gpu-admission.dev -n gpu-admission"] * 2),
)
def test_a_right_that_is_missing(denied: list[str], want: list[str], tmp_path: Path) -> None:
    result = checked("service-accounts", {}, tmp_path, denied=denied)

    assert [finding.message for finding in result.findings] == [f"must be allowed to {each}" for each in want]


@cases(
    ("entries", "want"),
    autoscalers_are_reviewed=(
        [{"name": "autoscalers.validate.gpu-admission.dev"}],
        ["must be allowed to get deployments.apps; get rollouts.argoproj.io"],
    ),
    autoscalers_are_not_reviewed=([], []),
)
def test_what_autoscalers_scale_is_read_only_where_they_are_reviewed(
    entries: list[dict[str, Any]], want: list[str], tmp_path: Path
) -> None:
    objects = {VALIDATING: {"metadata": {}, "webhooks": entries}}
    result = checked("service-accounts", objects, tmp_path, denied=["get deployments", "get rollouts"])

    assert [finding.message for finding in result.findings] == want


@cases(
    ("mode", "want"),
    the_rule_is_on=("enforce", ["must be allowed to get jobs.batch"]),
    the_rule_is_off=("disabled", []),
)
def test_what_makes_pods_is_read_only_where_a_rule_needs_it(
    mode: str, want: list[str], tmp_path: Path
) -> None:
    policy = {POLICIES: [stored({"rules": {"max-runtime": {"mode": mode}}})]}
    result = checked("service-accounts", policy, tmp_path, denied=["get jobs"])

    assert [finding.message for finding in result.findings] == want


def test_without_an_installation_a_missing_account_is_a_few_lines(tmp_path: Path) -> None:
    every = [
        f"{verb} {what}"
        for verb in ("get", "list", "watch")
        for what in ("nodes", "pods", "gpuquotas", "namespaces")
    ]
    found = checked("service-accounts", {}, tmp_path, denied=every).findings

    assert [each.message for each in found] == [
        "must be allowed to get gpuquotas.gpu-admission.dev; get namespaces; list namespaces; watch namespaces; get nodes; "
        "list nodes; and 1 more",
        "must be allowed to get gpuquotas.gpu-admission.dev; list gpuquotas.gpu-admission.dev; "
        "watch gpuquotas.gpu-admission.dev; get namespaces; list namespaces; watch namespaces; and 6 more",
    ]
