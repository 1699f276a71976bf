"""The examples for Argo CD, Flux and CI name paths that exist, values that the chart takes, and commands that there are."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.builders import gpu_container, pod
from tests.cases import cases
from tests.controlplane import helm
from tests.deploy.helm_needed import need_helm
from tests.deploy.manifests import CHART, NAMESPACE, RELEASE
from webhook.commands import main
from webhook.configuration.loader import load_directory

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def by_name(path: str) -> dict[tuple[str, str], Any]:
    documents = yaml.safe_load_all((EXAMPLES / path).read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def rendered(tmp_path: Path, files: list[Path], values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the chart makes of value files, and of values over them."""
    need_helm()
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    options = [argument for file in (*files, tmp_path / "values.yaml") for argument in ("-f", file)]
    text = helm.run("template", RELEASE, CHART, "-n", NAMESPACE, *options)
    return [document for document in yaml.safe_load_all(text) if document]


def installs_without_policies(documents: list[dict[str, Any]]) -> bool:
    kinds = {document["kind"] for document in documents}
    policies = {w["failurePolicy"] for document in documents for w in document.get("webhooks", ())}
    return "Deployment" in kinds and "GPUPolicy" not in kinds and policies == {"Ignore"}


def test_argo_cd_installs_the_release_before_the_policies(tmp_path: Path) -> None:
    applications = by_name("argocd/gpu-admission.yaml")
    release, policies = (applications["Application", name] for name in ("gpu-admission", "gpu-policies"))
    source = release["spec"]["source"]
    waves = [each["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"] for each in (release, policies)]
    files = [ROOT / source["path"] / name for name in source["helm"]["valueFiles"]]

    assert installs_without_policies(rendered(tmp_path, files, source["helm"]["valuesObject"]))
    assert waves == ["0", "1"]
    assert load_directory(ROOT / policies["spec"]["source"]["path"]).policies.policies
    ignored = {each["kind"] for each in release["spec"]["ignoreDifferences"]}
    assert ignored == {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ConfigMap"}


def test_flux_installs_and_tests_the_release(tmp_path: Path) -> None:
    objects = by_name("flux/gpu-admission.yaml")
    release = objects["HelmRelease", "gpu-admission"]["spec"]
    chart = release["chart"]["spec"]
    policies = objects["Kustomization", "gpu-policies"]["spec"]

    assert ROOT / chart["chart"] == CHART
    assert installs_without_policies(
        rendered(tmp_path, [ROOT / name for name in chart["valuesFiles"]], release["values"])
    )
    assert release["test"] == {"enable": True}
    assert load_directory(ROOT / policies["path"]).policies.policies
    names = {name for kind, name in objects if kind == "GitRepository"}
    assert {chart["sourceRef"]["name"], policies["sourceRef"]["name"]} == names


@cases(
    ("policies", "count", "status"),
    a_whole_gpu=("policies", "1", 0),
    half_a_gpu=("policies", "500m", 1),
    an_audit_refuses_nothing=("policies-audit", "500m", 0),
)
def test_the_job_of_gitlab_runs_commands_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policies: str, count: str, status: int
) -> None:
    (job,) = yaml.safe_load((EXAMPLES / "ci" / "gitlab.yaml").read_text()).values()
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "pod.yaml").write_text(yaml.safe_dump(pod(gpu_container(count))))
    (tmp_path / "policies").symlink_to(EXAMPLES / policies)
    monkeypatch.chdir(tmp_path)

    valid, checked = (
        CliRunner().invoke(main, shlex.split(line.partition(" > ")[0])[3:]) for line in job["script"]
    )

    assert valid.exit_code == 0, valid.output
    assert (checked.exit_code, checked.stdout[:5]) == (status, "<?xml")


def test_the_workflow_of_github_is_that_of_the_documentation() -> None:
    workflow = yaml.safe_load((EXAMPLES / "ci" / "github.yaml").read_text())
    page = (ROOT / "docs" / "tenants" / "check.md").read_text()
    (documented,) = [
        yaml.safe_load(block.partition("```")[0])
        for block in page.split("```yaml\n")[1:]
        if block.startswith("name: gpu-admission\n")
    ]

    assert workflow == documented
