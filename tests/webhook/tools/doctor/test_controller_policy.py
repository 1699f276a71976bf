"""The admission policies that bound what the controller may send."""

from pathlib import Path

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.tools.doctor.objects import ADMISSION
from tests.webhook.tools.installed_clusters import assert_found

POLICY, BINDING = (f"{ADMISSION}/validatingadmissionpolic{end}" for end in ("ies", "ybindings"))
CONTROLLER = "gpu-admission-controller"
PODS_POLICY = f"{CONTROLLER}-pods"
BOUNDED: JSON = {f"{POLICY}/{name}": {"spec": {}} for name in (CONTROLLER, PODS_POLICY)}
ANYWHERE = (
    "controller-unbounded: ValidatingAdmissionPolicy/gpu-admission-controller must exist, with a binding "
    "that denies: without it the controller may send any request of the cluster anywhere\n"
    "apply deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static/strict, with "
    "admissionPolicy.enabled of the chart"
)
ANY_POD = (
    "controller-unbounded: ValidatingAdmissionPolicy/gpu-admission-controller-pods must exist, with a "
    "binding that denies: without it the controller may change any pod"
)


@cases(
    ("policy", "action", "want"),
    it_denies=(BOUNDED, "Deny", []),
    it_only_audits=(BOUNDED, "Audit", [ANYWHERE, ANY_POD]),
    there_is_none=({}, "Deny", [ANYWHERE, ANY_POD]),
    there_is_one=({f"{POLICY}/{CONTROLLER}": {"spec": {}}}, "Deny", [ANY_POD]),
)
def test_the_policy_that_bounds_the_controller(
    policy: JSON, action: str, want: list[str], tmp_path: Path
) -> None:
    bindings = {
        f"{BINDING}/{name}": {"spec": {"policyName": name, "validationActions": [action]}}
        for name in (CONTROLLER, PODS_POLICY)
    }
    assert_found("controller-policy", {**bindings, **policy}, want, tmp_path)
