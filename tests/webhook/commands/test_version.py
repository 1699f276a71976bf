"""`version`: of this program, and of the installation by what an administrator and a tenant may read."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import FORBIDDEN
from webhook import version
from webhook.commands import main
from webhook.version import VERSION

APPS, CORE = "/apis/apps/v1/namespaces/gpu-admission", "/api/v1/namespaces/gpu-admission"
WEBHOOK, CONTROLLER = (f"{APPS}/deployments/gpu-admission-{part}" for part in ("webhook", "controller"))
PUBLISHED = f"{CORE}/configmaps/gpu-admission-capacity"
DIFFER = (
    "the client and the installation differ: "
    "use the client of the installation's version: checks, fields and words may differ\n"
)


def labelled(version: str) -> dict[str, Any]:
    return {"metadata": {"name": "x", "labels": {"app.kubernetes.io/version": version}}}


def of_cluster(folder: Path, objects: dict[str, Any], *arguments: str) -> Result:
    known = {"/version": {"gitVersion": "v1.37.2"}, **objects}
    with ApiServer(folder, answering(known)) as server:
        return CliRunner().invoke(main, ["version", "--kubeconfig", str(server.kubeconfig()), *arguments])


@pytest.fixture(autouse=True)
def commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.commands.version.commit", lambda: "c0ffee")


OLD = {WEBHOOK: labelled("0.0.1"), CONTROLLER: labelled(VERSION)}
TENANT = {WEBHOOK: FORBIDDEN, CONTROLLER: FORBIDDEN}


@cases(
    ("objects", "want"),
    the_same=(
        {WEBHOOK: labelled(VERSION), CONTROLLER: labelled(VERSION)},
        f"webhook {VERSION}, controller {VERSION}",
    ),
    a_part_is_older=(OLD, f"webhook 0.0.1, controller {VERSION}"),
    for_a_tenant=({**TENANT, PUBLISHED: labelled("0.0.1")}, "manifests 0.0.1"),
    for_a_tenant_the_same=({**TENANT, PUBLISHED: labelled(VERSION)}, f"manifests {VERSION}"),
    without_any_right=({**TENANT, PUBLISHED: FORBIDDEN}, "none in namespace gpu-admission that you may read"),
    not_installed=({}, "none in namespace gpu-admission that you may read"),
    without_a_label=(
        {WEBHOOK: {"metadata": {"name": "x"}}},
        "none in namespace gpu-admission that you may read",
    ),
)
def test_what_is_installed(objects: dict[str, Any], want: str, tmp_path: Path) -> None:
    result = of_cluster(tmp_path, objects)

    rows = f"client        {VERSION}, commit c0ffee\ninstallation  {want}\nKubernetes    v1.37.2\n"
    assert (result.exit_code, result.stdout) == (0, rows + DIFFER * ("0.0.1" in want))


def test_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    content = {
        "client": {"version": VERSION, "commit": "c0ffee"},
        "kubernetes": "v1.37.2",
        "installation": {"webhook": "0.0.1", "controller": VERSION},
        "skew": True,
    }
    assert json.loads(of_cluster(tmp_path, OLD, "-o", "json").stdout) == content
    assert yaml.safe_load(of_cluster(tmp_path, OLD, "-o", "yaml").stdout) == content


def test_the_client_alone_needs_no_cluster() -> None:
    result = CliRunner().invoke(main, ["version", "--client", "--kubeconfig", "/nowhere"])

    assert (result.exit_code, result.output) == (0, f"client        {VERSION}, commit c0ffee\n")


def test_without_a_cluster_the_client_is_shown(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["version", "--kubeconfig", str(tmp_path / "none")])

    assert (result.exit_code, result.stdout) == (2, f"client        {VERSION}, commit c0ffee\n")
    assert result.stderr == f"error: kubeconfig {tmp_path / 'none'}: No such file or directory\n"


@cases(
    ("form", "want"),
    text=((), f"client        {VERSION}, commit c0ffee\n"),
    json=(("-o", "json"), f'{{"client": {{"version": "{VERSION}", "commit": "c0ffee"}}}}'),
    yaml=(("-o", "yaml"), f"client: {{version: {VERSION}, commit: c0ffee}}"),
)
def test_without_a_cluster_it_shows_the_client(tmp_path: Path, form: tuple[str, ...], want: str) -> None:
    result = CliRunner().invoke(main, ["version", "--kubeconfig", str(tmp_path / "none"), *form])

    assert result.stdout == want if not form else yaml.safe_load(result.stdout) == yaml.safe_load(want)
    assert result.stderr == f"error: kubeconfig {tmp_path / 'none'}: No such file or directory\n"
    assert result.exit_code == 2


def test_a_build_without_git_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "PACKAGE", tmp_path / "webhook")

    assert version.commit() == "not recorded: built without Git and without GPU_ADMISSION_COMMIT"


def test_the_option_says_version_and_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.commands.commit", lambda: "c0ffee")

    assert (
        CliRunner().invoke(main, ["--version"]).output == f"gpu-admission, version {VERSION}, commit c0ffee\n"
    )
