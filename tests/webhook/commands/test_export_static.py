"""`gpu-admission export --static` and `--check`: what is written, what is refused, and what is said."""

import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, answering, status
from tests.webhook.commands.checked_cluster import cluster
from webhook.commands import main
from webhook.tools.export.admission_policies import ADMISSION_GROUP
from webhook.tools.export.static import FILE, HASHES, MOUNTED_AT, PLUGINS, RELOADS, folder_hashes

GUARDED = ("--release-account", "flux", "--break-glass-group", "breakers")
STORED = status(409, "exists", "AlreadyExists")
CHECKED = ["validating/gpu-admission.yaml", "mutating/gpu-admission.yaml", "admission.yaml"]
FILES = ["README.md", "admission.yaml", "mutating/gpu-admission.yaml", "validating/gpu-admission.yaml"]


def export(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["export", "--now", "2026-11-21T12:00:00Z", *map(str, arguments)])


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def of_version(version: str, **answers: JSON | Answer) -> JSON:
    """Return an API server that compiles all policies, but for `answers` by kind in small letters."""
    kinds = [
        f"{each}admissionpolic{what}" for each in ("validating", "mutating") for what in ("ies", "ybindings")
    ]
    compiled = {f"/apis/{ADMISSION_GROUP}/v1/{kind}": answers.get(kind, {}) for kind in kinds}
    return {**cluster(), **compiled, "/version": {"gitVersion": version}}


def test_without_a_cluster_it_writes_and_says_that_nothing_was_compiled(tmp_path: Path) -> None:
    result = export("--standalone", "--static", tmp_path / "made", *GUARDED)

    assert result.exit_code == 0, result.output
    assert files(tmp_path / "made") == FILES
    assert f"staticManifestsDir: {MOUNTED_AT}/validating" in (tmp_path / "made/admission.yaml").read_text()
    assert result.stdout.splitlines() == [
        "written: validating/gpu-admission.yaml, mutating/gpu-admission.yaml, admission.yaml, README.md; "
        f"{tmp_path}/made/README.md says where API servers read them"
    ]
    assert result.stderr.startswith("warning: not compiled: --config and --standalone ask no API server\n")


def test_the_guard_and_the_exclusions_are_of_the_namespace_of_the_installation(tmp_path: Path) -> None:
    export("--standalone", "--static", tmp_path, "--install-namespace", "platform", *GUARDED)

    written = (tmp_path / FILES[-1]).read_text()
    assert "system:serviceaccount:platform:gpu-admission-controller" in written
    assert "- platform\n" in written
    assert "- gpu-admission\n" not in written


@cases(
    ("version", "answers", "code", "said", "written"),
    compiled=("v1.37.2", {}, 0, "Policies, each with its binding: ", FILES),
    stored_already=("v1.37.2", {"validatingadmissionpolicies": STORED}, 0, "Policies, each with its binding: ", FILES),
    of_a_newer_version=("v1.38.0", {}, 0, "Policies, each with its binding: ", FILES),
    who_may_not=("v1.37.2", {"mutatingadmissionpolicies": status(403, "no", "Forbidden")}, 0, "warning: not compiled: ", FILES),
    an_older_api_server=(
        *("v1.36.3", {}, 2),
        "error: the API server has version 1.36: it must be 1.37 or newer to read policies from files\n",
        [],
    ),
    refused=(
        *("v1.37.2", {"mutatingadmissionpolicies": status(422, "spec.variables[3]: undeclared reference", "Invalid")}, 2),
        "MutatingAdmissionPolicy/gpu-admission.built-in.gpu-toleration: ",
        [],
    ),
)  # fmt: skip
def test_the_api_server_compiles_first(
    version: str, answers: Any, code: int, said: str, written: list[str], tmp_path: Path
) -> None:
    with ApiServer(tmp_path, answering(of_version(version, **answers))) as server:
        result = export("--kubeconfig", server.kubeconfig(), "--static", tmp_path / "made", *GUARDED)

    assert (result.exit_code, files(tmp_path / "made")) == (code, written), result.output
    assert said in result.stderr


@cases(
    ("arguments", "said"),
    both=(["--static", "x", "--check", "."], "--check compares with what --static would write: omit one of them"),
    a_guard_of_nothing=(["--break-glass-group", "x"], "--release-account and --break-glass-group belong to --static and --check"),
    a_guard_of_no_group=(["--static", "x", "--break-glass-group", ""], "'--break-glass-group': must not be empty"),
    a_user_without_a_name=(["--static", "x", "--release-account", " "], "'--release-account': must not be empty"),
    no_directory=(["--static", ""], "'--static': must not be empty"),
    no_namespace=(["--exclude-namespace", "Bad_Name"], '"Bad_Name" must be the name of a namespace'),
    a_guard_that_cannot_be_broken=(
        ["--static", "x", "--release-account", "x"],
        "--release-account names who may change what the guard protects: add --break-glass-group",
    ),
)  # fmt: skip
def test_wrong_usage(arguments: list[str], said: str) -> None:
    result = export("--standalone", *arguments)

    assert (result.exit_code, said in result.stderr) == (2, True)


def metrics(directory: Path, *, mutating: str = "", failed: float = 0) -> Answer:
    loaded = folder_hashes(directory)
    if mutating:
        loaded["MutatingAdmissionPolicy"] = mutating
    lines = [
        f'{HASHES}{{apiserver_id_hash="sha256:7",hash="{each}",plugin="{plugin}"}} 1'
        for plugin, each in loaded.items()
    ]
    lines.append(
        f'{RELOADS}{{apiserver_id_hash="sha256:7",plugin="MutatingAdmissionPolicy",status="success"}} 1.7e+09'
    )
    lines.append(
        f'{RELOADS}{{apiserver_id_hash="sha256:7",plugin="MutatingAdmissionPolicy",status="failure"}} {failed}'
    )
    return Answer("\n".join(["# HELP other", "other 1", *lines]).encode())


@pytest.fixture
def made(tmp_path: Path) -> Path:
    with ApiServer(tmp_path, answering(of_version("v1.37.2"))) as server:
        export("--kubeconfig", server.kubeconfig(), "--static", tmp_path / "made", *GUARDED)
    return tmp_path / "made"


@cases("ago", never=None, and_was_repaired=1e7, just_now=0)
def test_the_check_compares_files_and_what_is_loaded(made: Path, ago: float | None, tmp_path: Path) -> None:
    failed = 0 if ago is None else time.time() - ago
    with ApiServer(tmp_path, answering({**cluster(), "/metrics": metrics(made)})) as server:
        same = export("--kubeconfig", server.kubeconfig(), "--check", made, *GUARDED)
    with ApiServer(
        tmp_path, answering({**cluster(), "/metrics": metrics(made, mutating="sha256:9", failed=failed)})
    ) as server:
        other = export("--kubeconfig", server.kubeconfig(), "--check", made, *GUARDED)

    assert (same.exit_code, other.exit_code) == (0, 1), same.output
    assert same.stdout == f"as the configuration in force makes them: {', '.join(CHECKED)}\n"
    assert "asked API server sha256:7: each has its own files" in same.stderr
    refused = "it rejected the newest file, and will not start with it: its log says why"
    why = refused if ago == 0 else "put the folder on its control plane node, where it is read once a minute"
    assert other.stdout.splitlines() == [
        f"plugin MutatingAdmissionPolicy of API server sha256:7: has sha256:9, the folder here "
        f"{folder_hashes(made)['MutatingAdmissionPolicy']}; {why}"
    ]


def test_who_may_not_read_metrics_learns_about_the_files(made: Path, tmp_path: Path) -> None:
    with ApiServer(tmp_path, answering({**cluster(), "/metrics": status(403, "no", "Forbidden")})) as server:
        result = export("--kubeconfig", server.kubeconfig(), "--check", made, *GUARDED)

    assert (result.exit_code, "warning: what API servers have loaded is not known" in result.stderr) == (
        0,
        True,
    )


def test_an_api_server_may_have_no_static_policies(made: Path, tmp_path: Path) -> None:
    with ApiServer(tmp_path, answering({**cluster(), "/metrics": Answer(b"other 1")})) as server:
        result = export("--kubeconfig", server.kubeconfig(), "--check", made, *GUARDED)

    assert result.stderr.splitlines()[0] == "asked API server without static policies: each has its own files"


def test_an_admission_configuration_of_others_stays(tmp_path: Path) -> None:
    own = tmp_path / "admission.yaml"
    own.write_text("kind: AdmissionConfiguration\n")
    result = export("--standalone", "--static", tmp_path, *GUARDED)

    assert [line for line in result.stderr.splitlines() if "not changed" in line] == [
        f"warning: not changed: {own}: add plugin {kind}AdmissionPolicy with staticManifestsDir: {MOUNTED_AT}/{folder}, as "
        "README.md says"
        for kind, folder in (("Validating", "validating"), ("Mutating", "mutating"))
    ]


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = export("--standalone", "--static", tmp_path / "file", *GUARDED)

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(f"error: cannot write {tmp_path}/file: ")


def test_files_of_other_documents_differ(made: Path) -> None:
    result = export("--standalone", "--check", made, *GUARDED, "--exclude-namespace", "mine")

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{made}/{each}/{FILE}: export again with the same options: the configuration in force makes another one"
        for each in PLUGINS.values()
    ]
