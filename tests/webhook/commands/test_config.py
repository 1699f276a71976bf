import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from policies.registry import RULES
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from webhook.commands import main

HEAD = "apiVersion: gpu-admission.dev/v1alpha1\n"
DEFAULT = f"""\
{HEAD}kind: GPUPolicy
metadata: {{name: default}}
spec:
  exemptions:
  - {{namespaces: [kube-system, gpu-operator], reason: GPU stack}}
  - {{namespaces: [legacy], rules: [gpu-requests], reason: migration, until: 2027-01-31}}
  rules:
    gpu-requests: {{mode: warn, maxPerContainer: 8}}
"""
TRAINING = f"""\
{HEAD}kind: GPUPolicy
metadata: {{name: training}}
spec:
  priority: 10
  match: {{namespaces: ["ml-*"]}}
  pausedUntil: 2027-01-01T12:00:00+02:00
  templates: enforce
  rules:
    gpu-isolation: {{mode: disabled}}
"""
CARDS = f"""\
{HEAD}kind: GPUClass
metadata: {{name: nvidia-t4}}
spec: {{memoryGiB: 15}}
---
{HEAD}kind: GPUClass
metadata: {{name: own-card}}
spec: {{memoryGiB: 5}}
---
{HEAD}kind: GPUResourceMapping
metadata: {{name: own}}
spec:
  resources: [{{pattern: example.com/card, measure: devices}}]
  fractionAnnotations: [{{key: example.com/part, measure: fraction}}]
  workloadKinds: [{{group: example.com, kind: Job, pods: [{{path: spec.template}}]}}]
"""
BEFORE, AFTER = ["--now", "2026-12-31T00:00:00Z"], ["--now", "2027-02-01T00:00:00Z"]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    for name, text in (("default", DEFAULT), ("training", TRAINING), ("cards", CARDS)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return str(tmp_path)


def config(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, ["config", *arguments])


def lines(*arguments: str) -> list[str]:
    result = config(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.splitlines()


def document(*arguments: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(config(*arguments, "-o", "json").stdout)
    return shown


def test_text_shows_policies_in_the_order_of_precedence(directory: str) -> None:
    shown = lines(directory, *BEFORE)

    assert [line for line in shown if line.startswith("policy ")] == [
        "policy training (training.yaml:1)",
        "policy default (default.yaml:1)",
    ]
    for want in (
        "  governs ml-* with priority 10",
        "  paused until 2027-01-01 10:00 UTC: every rule only audits",
        "  templates of workloads: enforce",
        "  governs * with priority 0",
        "  exempt kube-system, gpu-operator from all rules: GPU stack",
        "  exempt legacy from gpu-requests until the end of 2027-01-31: migration",
        "class nvidia-t4 (cards.yaml:1): replaces the built-in class",
        "class own-card (cards.yaml:6): added",
        "resource mapping own (cards.yaml:11) adds example.com/card (devices), annotation",
    ):
        assert want in shown
    assert shown[-1].startswith("valid, version ")
    assert max(len(line) for line in shown) <= 80


def test_text_shows_all_that_a_resource_mapping_adds(tmp_path: Path) -> None:
    fields = {
        "deviceClasses": [{"pattern": "cards.example.com"}, {"pattern": "nic.*", "measure": "nothing"}],
        "unknownDeviceClasses": "deny",
        "fractionSchedulers": ["kai-scheduler"],
        "otherSchedulers": [{"schedulerName": "vram-scheduler", "annotationPrefixes": ["example.com/vram-"]}],
        "workloadKinds": [{"group": "example.com", "kind": "TrainingJob"}, {"group": "", "kind": "Batch"}],
    }
    for name, spec in (("all", fields), ("none", {})):
        text = f"{HEAD}kind: GPUResourceMapping\nmetadata: {{name: {name}}}\nspec: {json.dumps(spec)}\n"
        (tmp_path / f"{name}.yaml").write_text(text)

    shown = " ".join(line.strip() for line in lines(str(tmp_path)))

    assert (
        "resource mapping all (all.yaml:1) adds device class cards.example.com (devices), device class nic.* (nothing), "
        "unknown device classes (deny), fraction scheduler kai-scheduler, scheduler vram-scheduler, "
        "workload kind TrainingJob (example.com), workload kind Batch (core) resource mapping none "
        "(none.yaml:1) adds nothing valid, version "
    ) in shown


def test_text_shows_whom_to_ask_and_where_modes_are_from(tmp_path: Path) -> None:
    (tmp_path / "default.yaml").write_text(f'{DEFAULT}  help: "#gpu-help"\n')

    shown = lines(str(tmp_path), *BEFORE)

    assert "  help: #gpu-help" in shown
    assert [" ".join(line.split()) for line in shown if line.startswith("  gpu-")][:3] == [
        "gpu-requests warn, from default; maxPerContainer: 8",
        "gpu-class enforce, built-in",
        "gpu-toleration enforce, built-in",
    ]


def test_what_is_over_is_marked(directory: str) -> None:
    shown = lines(directory, *AFTER)

    assert "  pause until 2027-01-01 10:00 UTC has ended" in shown
    assert "  EXPIRED: exempt legacy from gpu-requests until the end of 2027-01-31:" in shown


def test_requested_namespaces(directory: str) -> None:
    shown = document(directory, "-n", "ml-a", "-n", "legacy", "-n", "kube-system", *BEFORE)

    ml, legacy, system = shown["namespaces"]
    assert (ml["policy"], ml["why"]) == ("training", "matches ml-* with priority 10, before default")
    assert (legacy["policy"], legacy["why"]) == ("default", "matches * with priority 0")
    for namespace, rule, mode, because in (
        (ml, "gpu-requests", "audit", "paused until 2027-01-01 10:00 UTC"),
        (ml, "gpu-isolation", "disabled", None),
        (legacy, "gpu-requests", "disabled", "exempted: migration"),
        (legacy, "gpu-toleration", "enforce", None),
        (system, "gpu-toleration", "disabled", "exempted: GPU stack"),
    ):
        assert {"id": rule, "mode": mode, "because": because} in namespace["rules"]


def test_an_exemption_that_is_over_does_not_hold(directory: str) -> None:
    (namespace,) = document(directory, "-n", "legacy", *AFTER)["namespaces"]
    assert {"id": "gpu-requests", "mode": "warn", "because": None} in namespace["rules"]


def test_namespaces_in_text(directory: str) -> None:
    shown = lines(directory, "-n", "legacy", *BEFORE)
    start = shown.index("namespace legacy")
    assert shown[start + 1] == "  policy default: matches * with priority 0"
    assert shown[start + 2].split() == ["gpu-requests", "disabled", "(exempted:", "migration)"]


def test_json(directory: str) -> None:
    shown = document(directory, *BEFORE)

    training = shown["policies"][0]
    assert training.items() >= {"name": "training", "from": "training.yaml:1", "priority": 10}.items()
    assert (training["namespaces"], training["paused"], training["templates"]) == (["ml-*"], True, "enforce")
    rules = {rule["id"]: rule for rule in training["rules"]}
    assert list(rules) == [rule.id for rule in RULES]
    assert rules["gpu-requests"]["changed"] == ["maxPerContainer"]
    assert rules["gpu-requests"]["options"]["maxPerContainer"] == 8
    assert rules["gpu-isolation"]["from"] == "training"
    assert shown["policies"][1]["exemptions"][1] == {
        "namespaces": ["legacy"],
        "namespaceSelector": None,
        "rules": ["gpu-requests"],
        "reason": "migration",
        "until": "2027-01-31",
        "expired": False,
    }
    assert shown["classes"] == [
        {"name": "nvidia-t4", "from": "cards.yaml:1", "replacesBuiltIn": True},
        {"name": "own-card", "from": "cards.yaml:6", "replacesBuiltIn": False},
    ]
    assert shown["resourceMappings"] == [
        {
            "name": "own",
            "from": "cards.yaml:11",
            "resources": [{"pattern": "example.com/card", "measure": "devices"}],
            "fractionAnnotations": [{"key": "example.com/part", "measure": "fraction"}],
            "fractionSchedulers": [],
            "otherSchedulers": [],
            "deviceClasses": [],
            "unknownDeviceClasses": None,
            "workloadKinds": [{"group": "example.com", "kind": "Job", "pods": [{"path": "spec.template"}]}],
        }
    ]


LABELLED = f"""\
{HEAD}kind: GPUPolicy
metadata: {{name: ml}}
spec: {{match: {{namespaces: [ml-*], namespaceSelector: {{matchLabels: {{team: ml}}}}}}}}
"""


@cases(
    ("text", "want"),
    what_no_policy_matches_is_left_to_the_built_in_defaults=(
        TRAINING,
        [
            "built-in defaults",
            "  governs every namespace that no policy matches",
            "  exempt kube-system from all rules: the cluster's own components",
        ],
    ),
    behind_a_policy_for_every_namespace_none_is_reached=(
        f"{DEFAULT}---\n{TRAINING.replace('10', '-1')}",
        ["  never reached: default comes first and matches every namespace"],
    ),
    labels_are_shown_and_a_namespace_is_taken_to_have_none=(
        LABELLED,
        [
            "built-in defaults",
            "  governs ml-* labelled team=ml with priority 0",
            "  policy built-in: no policy matches this namespace",
        ],
    ),
)
def test_which_namespaces_policies_govern(tmp_path: Path, text: str, want: list[str]) -> None:
    (tmp_path / "p.yaml").write_text(text)

    shown = lines(str(tmp_path), "-n", "ml-a")

    assert [line for line in want if line not in shown] == []
    assert ("built-in defaults" in shown) is ("built-in defaults" in want)


def test_limits_by_class_that_are_not_held_are_warned_about(tmp_path: Path) -> None:
    quota = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUQuota
metadata: {name: default, namespace: team}
spec: {hard: {classes: {nvidia-t4: "1"}}, unclassifiedPods: TotalOnly}
"""
    (tmp_path / "quota.yaml").write_text(quota)

    shown = config(str(tmp_path), "-o", "json")

    assert shown.exit_code == 0, shown.output
    warning = "quota.yaml:2: spec.unclassifiedPods: TotalOnly lets pods that pin no class exceed hard.classes"
    assert [each[: len(warning)] for each in json.loads(shown.stdout)["warnings"]] == [warning]
    assert f"\nwarning: {warning}" in config(str(tmp_path)).stdout.replace("\n  ", " ")


def test_teams_that_share_namespaces_are_warned_about(tmp_path: Path) -> None:
    team = """
apiVersion: gpu-admission.dev/v1alpha1
kind: ClusterGPUQuota
metadata: {name: NAME}
spec: {hard: {gpus: 1}, namespaces: {names: [GLOB]}}
"""
    for name, glob in {"a": '"vision-*"', "b": "vision-prod"}.items():
        (tmp_path / f"{name}.yaml").write_text(team.replace("NAME", name).replace("GLOB", glob))

    shown = config(str(tmp_path), "-o", "json")

    told = "a namespace that both match belongs to b"
    assert json.loads(shown.stdout)["warnings"] == [
        f"a.yaml:2: spec.namespaces.names[0]: overlaps vision-prod of ClusterGPUQuota b: {told}",
        f"b.yaml:2: spec.namespaces.names[0]: overlaps vision-* of ClusterGPUQuota a: {told}",
    ]


def test_problems_are_reported_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(DEFAULT.replace("warn", "off"))
    (tmp_path / "b.yaml").write_text("x: [")

    result = config(str(tmp_path))

    assert result.exit_code == 2
    assert result.stdout == ""
    first, second, last = result.stderr.splitlines()
    assert first.startswith(
        "error: a.yaml:9: GPUPolicy/default spec.rules.gpu-requests.mode: must be one of "
    )
    assert second.startswith("error: b.yaml:1: while parsing a flow ")
    assert last == "2 problems; the configuration is not valid"


KINDS = "/apis/gpu-admission.dev/v1alpha1"


def stored(name: str, spec: dict[str, Any], accepted: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": name, "generation": 2},
        "spec": spec,
        "status": {} if accepted is None else {"accepted": accepted},
    }


def of_cluster(folder: Path, policies: list[dict[str, Any]], *arguments: str) -> Result:
    """Run `config` on a cluster of these policies, without the kind GPUResourceMapping, and with one namespace."""
    objects = {
        f"{KINDS}/gpupolicies": policies,
        f"{KINDS}/gpuclasses": [],
        "/api/v1/namespaces/ml-serving": {"metadata": {"name": "ml-serving", "labels": {"tier": "gold"}}},
    }
    with ApiServer(folder, answering(objects)) as server:
        return config("--kubeconfig", str(server.kubeconfig()), *arguments)


GOLD = {"match": {"namespaceSelector": {"matchLabels": {"tier": "gold"}}}}


def test_what_a_cluster_has_in_force_is_shown_by_the_labels_of_its_namespaces(tmp_path: Path) -> None:
    result = of_cluster(tmp_path, [stored("gold", GOLD)], "-n", "ml-serving", "-o", "json")

    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert shown["namespaces"][0]["policy"] == "gold"
    assert [(policy["name"], policy["from"]) for policy in shown["policies"]] == [
        ("gold", "GPUPolicy/gold"),
        ("built-in", "built-in"),
    ]
    assert shown["problems"] == []


def test_what_was_in_force_before_a_mistake_is_shown_with_the_mistake(tmp_path: Path) -> None:
    result = of_cluster(tmp_path, [stored("gold", {**GOLD, "priorty": 1}, accepted=GOLD)])

    assert result.exit_code == 2
    assert "policy gold (GPUPolicy/gold)\n  governs * labelled tier=gold with priority 0\n" in result.stdout
    assert "\nin force: version " in result.stdout
    assert "valid" not in result.stdout
    assert result.stderr == (
        "error: GPUPolicy/gold spec.priorty: unknown field; did you mean priority?\n"
        "1 problem; the stored documents are not in force; the last valid ones are shown\n"
    )


@cases(
    ("arguments", "want"),
    no_such_namespace=(("-n", "elsewhere"), "error: no /api/v1/namespaces/elsewhere\n"),
    a_directory_as_well=(("some-directory",), "DIRECTORY must not be combined with --kubeconfig"),
)
def test_what_cannot_be_shown_of_a_cluster(arguments: tuple[str, ...], want: str, tmp_path: Path) -> None:
    result = of_cluster(tmp_path, [], *arguments)

    assert result.exit_code == 2
    assert want in result.stderr
    assert result.stdout == ""


def test_json_of_documents_that_are_not_valid(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"{HEAD}kind: GPUPolicy\nmetadata: {{name: a}}\nspec: {{x: 1}}\n")
    shown = config(str(tmp_path), "-o", "json")

    problem = (
        "a.yaml:4: GPUPolicy/a spec.x: unknown field: must be one of priority, match, pausedUntil, exemptions, "
        "templates, help, rules"
    )
    assert (shown.exit_code, shown.stderr) == (
        2,
        f"error: {problem}\n1 problem; the configuration is not valid\n",
    )
    assert json.loads(shown.stdout) == {
        "version": None,
        "policies": [],
        "namespaces": [],
        "classes": [],
        "resourceMappings": [],
        "warnings": [],
        "problems": [problem],
    }
