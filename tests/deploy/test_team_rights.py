"""What the chart lets whom do with ClusterGPUQuotas and with the GPUQuotas of a team."""

import pytest

from tests.cases import cases
from tests.deploy.manifests import of_kind, rendered

pytestmark = pytest.mark.usefixtures("rendering")
READS = {"get", "list", "watch"}
WRITES = {"create", "update", "patch", "delete"}


def verbs(resource: str) -> dict[str, set[str]]:
    """Return what each ClusterRole may do with a resource of ours, without the roles that may do nothing."""
    found: dict[str, set[str]] = {}
    for role in of_kind("ClusterRole", rendered()):
        for rule in role["rules"]:
            if resource in rule["resources"] and rule["apiGroups"] == ["gpu-admission.dev"]:
                found.setdefault(role["metadata"]["name"], set()).update(rule["verbs"])
    return found


@cases(
    ("resource", "want"),
    teams=(
        "clustergpuquotas",
        {
            "gpu-admission-webhook": {"list"},
            "gpu-admission-controller": READS,
            "gpu-admission-view": READS,
        },
    ),
    status_of_teams=("clustergpuquotas/status", {"gpu-admission-controller": {"update"}}),
    quotas=(
        "gpuquotas",
        {
            "gpu-admission-webhook": {"get"},
            "gpu-admission-controller": READS,
            "gpu-admission-view": READS,
            "gpu-admission-team-lead": READS | WRITES,
        },
    ),
    status_of_quotas=("gpuquotas/status", {"gpu-admission-controller": {"update"}}),
)
def test_who_may_do_what(resource: str, want: dict[str, set[str]]) -> None:
    assert verbs(resource) == want


def test_nobody_leads_a_team_by_another_role() -> None:
    """A lead without a team could grant a namespace any number of GPUs."""
    roles = {each["metadata"]["name"]: each for each in of_kind("ClusterRole", rendered())}
    lead = roles["gpu-admission-team-lead"]
    bound = {each["roleRef"]["name"] for each in of_kind("ClusterRoleBinding", rendered())}

    assert not [label for label in lead["metadata"]["labels"] if "aggregate-to" in label]
    assert len(lead["rules"]) == 1
    assert lead["metadata"]["name"] not in bound


def test_membership_is_protected_unless_the_values_say_otherwise() -> None:
    name = "gpu-admission-teams"

    def kinds(*arguments: str) -> list[str]:
        return [each["kind"] for each in rendered(*arguments) if each["metadata"]["name"] == name]

    assert kinds() == ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
    assert kinds("--set", "teams.protectMembership=false") == []
    assert kinds("--set", "admissionPolicy.enabled=false") == []
