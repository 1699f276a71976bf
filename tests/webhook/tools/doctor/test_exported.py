"""Policies of `gpu-admission export` in a cluster with a GPU stack."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from policies.pods.label_selector import LabelSelector, Requirement
from tests.builders import JSON
from tests.cases import cases
from tests.gpu_stacks import AGENTS
from tests.webhook.cluster.apiserver import Answer, status
from tests.webhook.tools.doctor.objects import ADMISSION, NAMESPACES, namespace
from tests.webhook.tools.installed_clusters import NOW, assert_found, checked
from webhook.configuration.documents import POLICY, Document
from webhook.configuration.loader import load_objects
from webhook.tools.export.admission_policies import ExportOptions, export_policies
from webhook.tools.export.static import HASHES, RELOADS

VALIDATING, DAEMONSETS = f"{ADMISSION}/validatingadmissionpolicies", "/apis/apps/v1/daemonsets"
DOCUMENTS = "/apis/gpu-admission.dev/v1alpha1/gpupolicies"
ENFORCED: JSON = {"rules": {"gpu-isolation": {"mode": "enforce"}}}
EXEMPTING: JSON = {**ENFORCED, "exemptions": [{"namespaces": ["gpu-operator"], "reason": "the GPU stack"}]}


def installation(spec: JSON, exported: JSON, agents: Iterable[str], *excluded: str) -> dict[str, Any]:
    """Return a cluster with this GPUPolicy, what was exported of that one, and DaemonSets in gpu-operator."""
    names = Requirement("kubernetes.io/metadata.name", "NotIn", excluded)
    selector = LabelSelector(match_expressions=(names,) if excluded else ())
    made = export_policies(
        load_objects([Document(POLICY, "default", exported)]), ExportOptions(now=NOW, selector=selector)
    )
    return {
        DOCUMENTS: [{"metadata": {"name": "default", "uid": "p"}, "spec": spec}],
        VALIDATING: [each for each in made.objects if each["kind"] == "ValidatingAdmissionPolicy"],
        DAEMONSETS: [
            {"metadata": {"name": name, "namespace": "gpu-operator"}, "spec": {"template": AGENTS[name]}}
            for name in agents
        ],
        NAMESPACES: [namespace("gpu-operator")],
    }


def denies(*names: str) -> str:
    return (
        f"exported-policies-deny: Namespace/gpu-operator DaemonSets ({len(names)}, such as {min(names)}) cannot start: the "
        "exported gpu-isolation of GPUPolicy/default denies their pods, and gives others, such as CUDA validators, "
        "NVIDIA_VISIBLE_DEVICES=void\n"
        "where only administrators create pods in it: export with --exclude-namespace gpu-operator, or after adding "
        "{namespaces: [gpu-operator], rules: [gpu-isolation], reason: the GPU stack} to spec.exemptions of GPUPolicy/default"
    )


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_of_a_vendor_that_the_exported_policies_deny(name: str, tmp_path: Path) -> None:
    assert_found("exported-policies", installation(ENFORCED, ENFORCED, [name]), [denies(name)], tmp_path)


@cases(
    ("objects", "want"),
    all_of_them_in_one_finding=(installation(ENFORCED, ENFORCED, AGENTS), [denies(*AGENTS)]),
    its_namespace_is_exempted=(installation(EXEMPTING, EXEMPTING, AGENTS), []),
    its_namespace_is_excluded=(installation(ENFORCED, ENFORCED, AGENTS, "gpu-operator"), []),
    the_rule_only_audits=(installation({}, {}, AGENTS), []),
    nothing_is_exported=({**installation(ENFORCED, ENFORCED, AGENTS), VALIDATING: []}, []),
)
def test_where_the_stack_starts(objects: dict[str, Any], want: list[str], tmp_path: Path) -> None:
    assert_found("exported-policies", objects, want, tmp_path)


def test_an_exemption_that_was_not_exported(tmp_path: Path) -> None:
    objects = installation(EXEMPTING, ENFORCED, AGENTS)
    version = load_objects([Document(POLICY, "default", EXEMPTING)]).version

    (found,) = checked("exported-policies", objects, tmp_path).findings

    assert (found.id, found.object, found.message, found.remedy) == (
        "exported-policies-outdated",
        "validatingadmissionpolicies (6)",
        f"not of configuration {version}, which is in force",
        "run gpu-admission export again, and apply what it writes",
    )


def loaded(failed: str) -> Answer:
    of = '{apiserver_id_hash="sha256:7",plugin="ValidatingAdmissionPolicy"'
    lines = [f'{HASHES}{of},hash="sha256:9"}} 1', f'{RELOADS}{of},status="success"}} 1.7e+09']
    return Answer("\n".join([*lines, f'{RELOADS}{of},status="failure"}} {failed}']).encode())


def test_files_that_an_api_server_refused(tmp_path: Path) -> None:
    refused = (
        "static-policies-rejected: ValidatingAdmissionPolicy of API server sha256:7 rejected its newest file of policies, and "
        "will not start with it: the last good one is in force\n"
        "run gpu-admission export --static again for its control plane node; its log says what is wrong"
    )

    assert_found("exported-policies", {"/metrics": loaded(str(time.time()))}, [refused], tmp_path)


LOADED = (
    "API server sha256:7, the one that answered, has ValidatingAdmissionPolicy sha256:9 from files; "
    "compare its folder by gpu-admission export --check",
)


@cases(
    ("metrics", "notes", "not_checked"),
    loaded=(loaded("0"), LOADED, []),
    loaded_again_after_it_was_refused=(loaded("1.75e+09"), LOADED, []),
    who_may_not=(
        status(403, "no", "Forbidden"),
        (),
        ["you may not get /metrics, which say what files the API server has"],
    ),
)
def test_which_api_server_was_asked(
    metrics: Answer, notes: tuple[str, ...], not_checked: list[str], tmp_path: Path
) -> None:
    result = checked("exported-policies", {"/metrics": metrics}, tmp_path)

    assert (result.notes, [each.why for each in result.not_checked]) == (notes, not_checked)
    assert result.findings == ()
