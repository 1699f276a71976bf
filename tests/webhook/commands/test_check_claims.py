"""`gpu-admission check` on ResourceClaims, templates of them and DeviceClasses, and on the pods beside them."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cases import cases
from tests.webhook.commands.checking import words
from webhook.commands.check import check

QUOTA = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUQuota
metadata: {name: default, namespace: team}
spec: {hard: {gpus: "2"}}
"""
POLICY = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec: {rules: {readiness-delay: {modelLoadSeconds: 60}, gpu-quota: QUOTA_RULE}}
"""
TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: cards, namespace: NAMESPACE}
spec:
  spec:
    devices:
      requests:
      - {name: gpu, exactly: {deviceClassName: CLASS, count: COUNT}}
"""
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: cards, namespace: NAMESPACE}
spec:
  devices:
    requests:
    - {name: gpu, exactly: {deviceClassName: CLASS, count: COUNT}}
"""
DEVICE_CLASS = """
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: CLASS}
spec: {selectors: [{cel: {expression: "device.driver == 'DRIVER'"}}]}
"""
POD = """
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: team}
spec:
  resourceClaims: [{name: mine, REFERENCE: cards}]
  containers:
  - name: server
    image: registry.example/server:1
    readinessProbe: {httpGet: {path: /, port: 80}}
    resources: {claims: [{name: mine}]}
"""
DELAYED = "readiness-delay: server: readinessProbe.initialDelaySeconds=72"


def filled(text: str, device_class: str, *, count: int = 1, namespace: str = "team", driver: str = "") -> str:
    values = {"CLASS": device_class, "COUNT": str(count), "NAMESPACE": namespace, "DRIVER": driver}
    for word, value in values.items():
        text = text.replace(word, value)
    return text


def checked(tmp_path: Path, manifests: str, *, quota_rule: str = "{}") -> Result:
    file, config = tmp_path / "manifests.yaml", tmp_path / "config"
    config.mkdir()
    (config / "quota.yaml").write_text(QUOTA)
    (config / "policy.yaml").write_text(POLICY.replace("QUOTA_RULE", quota_rule))
    file.write_text(manifests)
    return CliRunner().invoke(check, ["-f", str(file), "--config", str(config)])


@cases(("namespace", "warns"), never_fits=("team", True), no_quota=("other", False))
def test_a_template_that_never_fits_is_reported_with_its_line(
    tmp_path: Path, namespace: str, warns: bool
) -> None:
    done = checked(tmp_path, filled(TEMPLATE, "gpu.nvidia.com", count=3, namespace=namespace))

    assert done.exit_code == 0
    assert ("requested: gpus=3, limited: gpus=2" in words(done)) is warns
    line = f"{tmp_path}/manifests.yaml:8: warning: spec.spec.devices.requests: request fewer devices; no claim of"
    assert (line in words(done)) is warns
    result = "0 ok, 1 warned about; 1 warning" if warns else "1 ok"
    assert words(done).endswith(f"1 object: 0 denied, 0 would change, {result}")


@cases(
    ("claims", "rule", "said"),
    more_than_the_quota=(
        [filled(CLAIM, "gpu.nvidia.com", count=3)],
        "{}",
        "warning: request 2 GPUs or fewer; exceeded quota: team/default, 3 GPUs can never fit: the quota grants 2",
    ),
    two_that_together_are_more=(
        [filled(CLAIM, "gpu.nvidia.com", count=2), filled(CLAIM, "gpu.nvidia.com").replace("cards", "more")],
        "{}",
        "warning: wait until others release 1 GPU; exceeded quota: team/default, requested 1 GPU, 2 of 2 used",
    ),
    only_audited=([filled(CLAIM, "gpu.nvidia.com", count=3)], "{mode: audit}", "1 ok"),
    no_quota=([filled(CLAIM, "gpu.nvidia.com", namespace="other")], "{}", "1 ok"),
    the_api_servers_to_reject=(
        [filled(CLAIM, "gpu.nvidia.com").replace("name: gpu", "name: [1]")],
        "{}",
        "1 ok",
    ),
)
def test_claims_are_charged_to_the_quota(tmp_path: Path, claims: list[str], rule: str, said: str) -> None:
    done = checked(tmp_path, "---".join(claims), quota_rule=rule)

    assert said in words(done)
    assert ("exceeded quota" in words(done)) is ("exceeded quota" in said)
    assert done.exit_code == 0


BY_CLAIM, BY_TEMPLATE = (CLAIM, "resourceClaimName"), (TEMPLATE, "resourceClaimTemplateName")


@pytest.mark.parametrize(
    ("claimed", "reference", "device_class", "driver", "is_gpu_pod"),
    [
        pytest.param(*BY_CLAIM, "gpu.nvidia.com", "", True, id="a-class-that-is-known"),
        pytest.param(*BY_TEMPLATE, "gpu.nvidia.com", "", True, id="a-known-class-by-a-template"),
        pytest.param(*BY_TEMPLATE, "dra.net", "", False, id="a-known-class-of-links"),
        pytest.param(*BY_CLAIM, "mine.example.com", "gpu.nvidia.com", True, id="a-class-in-the-same-file"),
        pytest.param(
            *BY_CLAIM, "mine.example.com", "nic.example.com", False, id="a-class-of-links-in-the-same-file"
        ),
    ],
)
def test_a_pod_and_its_claim(
    tmp_path: Path, claimed: str, reference: str, device_class: str, driver: str, is_gpu_pod: bool
) -> None:
    manifests = claimed + POD.replace("REFERENCE", reference) + (DEVICE_CLASS if driver else "")
    done = checked(tmp_path, filled(manifests, device_class, driver=driver))

    assert done.exit_code == 0
    assert (DELAYED in words(done)) is is_gpu_pod
    assert ("toleration nvidia.com/gpu:NoSchedule" in words(done)) is is_gpu_pod
    assert ("0 would change, 2 ok" in words(done)) is not is_gpu_pod


@cases(
    "others",
    no_claim="",
    in_another_namespace=filled(TEMPLATE, "gpu.nvidia.com", namespace="other"),
    a_claim_of_the_templates_name=filled(CLAIM, "gpu.nvidia.com"),
)
def test_a_claim_that_is_not_among_the_documents_is_perhaps_for_a_gpu(tmp_path: Path, others: str) -> None:
    done = checked(tmp_path, others + POD.replace("REFERENCE", "resourceClaimTemplateName"))

    assert done.exit_code == 0
    assert DELAYED in words(done)
    assert "toleration" not in words(done)


def test_a_claim_in_the_form_of_another_version(tmp_path: Path) -> None:
    device = "{deviceClassName: gpu.nvidia.com, count: 1}"
    manifest = filled(CLAIM, "gpu.nvidia.com").replace(
        f"exactly: {device}", "deviceClassName: gpu.nvidia.com"
    )

    result = checked(tmp_path, manifest)

    assert result.exit_code == 1
    want = (
        "spec.devices.requests[0].exactly: write its fields below exactly; must be set, or firstAvailable: "
        "resource.k8s.io/v1 reads no device anywhere else [ineffective-fields]"
    )
    assert want in words(result)
