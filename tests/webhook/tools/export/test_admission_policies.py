"""Which objects come of which documents: policies, modes, namespaces, times, versions."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from policies.registry import RULES, RULES_BY_ID
from policies.rule import Rule
from webhook.configuration.loader import load_directory
from webhook.tools.export.admission_policies import AdmissionPolicies, ExportOptions, export_policies

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HEAD = "apiVersion: gpu-admission.dev/v1alpha1\nkind: GPUPolicy\n"
ALL_OFF = "gpu-requests: {mode: disabled}, gpu-toleration: {mode: disabled}, gpu-isolation: {mode: disabled}"


def policy(name: str, spec: str, rules: str = "") -> str:
    return f"{HEAD}metadata: {{name: {name}}}\nspec: {{{spec}, rules: {{{rules}}}}}\n"


@pytest.fixture
def exported(tmp_path: Path) -> Any:
    def export(*documents: str, **options: Any) -> AdmissionPolicies:
        (tmp_path / "p.yaml").write_text("---\n".join(documents))
        return export_policies(
            load_directory(tmp_path if documents else None), ExportOptions(now=NOW, **options)
        )

    return export


def names(made: AdmissionPolicies, kind: str = "") -> list[str]:
    return [
        each["metadata"]["name"].removeprefix("gpu-admission.")
        for each in made.objects
        if each["kind"] == kind
    ]


def actions(made: AdmissionPolicies) -> dict[str, list[str]]:
    return {
        each["metadata"]["name"].removeprefix("gpu-admission."): each["spec"]["validationActions"]
        for each in made.objects
        if each["kind"] == "ValidatingAdmissionPolicyBinding"
    }


def conditions(made: AdmissionPolicies, name: str) -> dict[str, str]:
    (found,) = [
        each for each in made.objects
        if each["metadata"]["name"] == f"gpu-admission.{name}" and not each["kind"].endswith("Binding")
    ]  # fmt: skip
    return {each["name"]: each["expression"] for each in found["spec"].get("matchConditions", [])}


def test_the_built_in_defaults(exported: Any) -> None:
    made = exported()

    assert names(made, "MutatingAdmissionPolicy") == ["built-in.gpu-toleration"]
    assert actions(made) == {
        "built-in.gpu-isolation.advice": ["Audit"],
        "built-in.gpu-isolation.annotated": ["Audit"],
        "built-in.gpu-isolation.exposed": ["Audit"],
        "built-in.gpu-isolation.exposed-ephemeral": ["Audit"],
        "built-in.gpu-requests": ["Deny"],
    }
    assert (
        conditions(made, "built-in.gpu-toleration")["not-exempted"]
        == "!(request.namespace in ['kube-system'])"
    )


@pytest.mark.parametrize(
    ("mode", "denied", "advised"),
    [
        pytest.param("enforce", "Deny", "Warn", id="enforce"),
        pytest.param("warn", "Warn", "Warn", id="warn"),
        pytest.param("audit", "Audit", "Audit", id="audit"),
    ],
)
def test_modes(exported: Any, mode: str, denied: str, advised: str) -> None:
    rules = f"gpu-requests: {{mode: {mode}}}, gpu-isolation: {{mode: {mode}}}"
    found = actions(exported(policy("default", "priority: 0", rules)))

    assert found["default.gpu-requests"] == found["default.gpu-isolation.exposed"] == [denied]
    assert found["default.gpu-isolation.advice"] == [advised]


def test_a_rule_that_does_not_enforce_adds_nothing_and_that_is_told(exported: Any) -> None:
    made = exported(
        policy("default", "priority: 0", "gpu-toleration: {mode: warn}, gpu-isolation: {mode: audit}")
    )

    assert names(made, "MutatingAdmissionPolicy") == []
    reported = [str(gap) for gap in made.unsupported if gap.policy == "default"]
    assert len(reported) == 2
    assert all("what it adds: mode" in gap for gap in reported)


def test_disabled_rules_come_to_nothing(exported: Any) -> None:
    made = exported(policy("default", "priority: 0", ALL_OFF))

    assert made.objects == ()
    assert made.rules == ()
    assert all(gap.what == "all of it" for gap in made.unsupported)
    assert {gap.rule for gap in made.unsupported} == set(RULES_BY_ID)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_is_exported_or_says_why_not(exported: Any, rule: Rule) -> None:
    options = "mode: enforce, nodeSelector: {pool: spot}" if rule.id == "spot" else "mode: enforce"
    made = exported(policy("default", "priority: 0", f"{rule.id}: {{{options}}}"))
    left_out = [gap.why for gap in made.unsupported if (gap.rule, gap.what) == (rule.id, "all of it")]

    assert left_out == [rule.not_exported] * (rule.id not in made.rules)
    assert rule.id in made.rules or rule.not_exported


def test_rules_that_are_not_asked_for_are_named(exported: Any) -> None:
    made = exported(rules=("gpu-requests",))

    assert made.rules == ("gpu-requests",)
    assert "gpu-toleration: all of it: left out by --rules" in map(str, made.unsupported)


def test_each_policy_leaves_alone_what_an_earlier_one_governs(exported: Any) -> None:
    made = exported(
        policy("a", "priority: 2, match: {namespaces: [ml, 'ml-*']}"),
        policy("b", "priority: 1, match: {namespaces: ['m*']}"),
        policy("c", "match: {namespaces: ['*']}"),
        policy("d", "priority: -1, match: {namespaces: [never]}"),
    )
    governed = {
        name: {
            key: value
            for key, value in conditions(made, f"{name}.gpu-requests").items()
            if key.startswith("governed")
        }
        for name in "abc"
    }

    assert governed == {
        "a": {"governed-by-a": "request.namespace in ['ml'] || request.namespace.matches(r'^(ml-.*)$')"},
        "b": {
            "governed-by-b": "request.namespace.matches(r'^(m.*)$')",
            "governed-by-no-earlier-policy": (
                "!(request.namespace in ['ml'] || request.namespace.matches(r'^(ml-.*)$'))"
            ),
        },
        "c": {
            "governed-by-no-earlier-policy": (
                "!(request.namespace in ['ml'] || request.namespace.matches(r'^(ml-.*|m.*)$'))"
            )
        },
    }
    assert not any(name.startswith(("d.", "built-in.")) for name in names(made, "ValidatingAdmissionPolicy"))


def test_device_plugins_and_exporters_never_get_void(exported: Any) -> None:
    made = exported(policy("default", "priority: 0", "gpu-isolation: {mode: enforce}"))

    condition = conditions(made, "default.gpu-isolation.void")["not-of-the-gpu-stack"]
    assert "'/var/lib/kubelet/device-plugins/', '/var/lib/kubelet/pod-resources/'" in condition


def test_times_are_read_when_it_is_exported(exported: Any) -> None:
    exemptions = (
        "exemptions: [{namespaces: [over], reason: r, until: 2026-11-20}, "
        "{namespaces: [legacy], rules: [gpu-requests], reason: r, until: 2026-11-30}]"
    )
    made = exported(policy("default", f"{exemptions}, pausedUntil: 2026-11-21T13:00:00Z"))

    assert set().union(*actions(made).values()) == {"Audit"}
    assert names(made, "MutatingAdmissionPolicy") == []
    assert conditions(made, "default.gpu-requests")["not-exempted"] == "!(request.namespace in ['legacy'])"
    assert "not-exempted" not in conditions(made, "default.gpu-isolation.exposed")
    assert made.ending == (
        "policy default is paused until 2026-11-21T13:00:00+00:00: its rules only audit",
        "policy default exempts legacy until the end of 2026-11-30",
    )


def test_a_rule_from_which_every_namespace_is_exempted(exported: Any) -> None:
    made = exported(policy("default", "exemptions: [{namespaces: ['*'], rules: [gpu-requests], reason: r}]"))

    assert not any(".gpu-requests" in name for name in names(made, "ValidatingAdmissionPolicy"))


def test_an_older_api_server_gets_no_mutations(exported: Any) -> None:
    made = exported(mutations=None)

    assert {each["kind"] for each in made.objects} == {
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
    assert "gpu-toleration: what it adds: needs MutatingAdmissionPolicy" in str(
        list(map(str, made.unsupported))
    )


def test_limits_and_tolerations_that_cel_cannot_tell_apart(exported: Any) -> None:
    made = exported(
        policy("default", "priority: 0", "gpu-requests: {maxPerPod: {nvidia-t4: 2, nvidia.com/gpu: 1}}")
    )

    assert {(each.rule, each.what) for each in made.unsupported} >= {
        ("gpu-requests", "limits by class"),
        ("gpu-toleration", "tolerations for devices by DRA"),
    }
    [pods] = [each for each in made.objects if each["metadata"]["name"].endswith("default.gpu-requests")][:1]
    totals = next(each["expression"] for each in pods["spec"]["variables"] if each["name"] == "totals")
    assert "name in ['nvidia.com/gpu'] ? 2 : name in ['nvidia.com/gpu'] ? 1 : -1" in totals


def test_what_every_object_has(exported: Any) -> None:
    made = exported(policy("default", "priority: 0"), excluded=("kube-system", "gpu-admission"))

    for each in made.objects:
        assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "gpu-admission"
        assert each["metadata"]["annotations"]["gpu-admission.dev/description"]
        if each["kind"].endswith("Binding"):
            assert each["spec"]["policyName"] == each["metadata"]["name"]
        else:
            (excluding,) = each["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
            assert excluding["values"] == ["kube-system", "gpu-admission"]
            assert each["spec"]["failurePolicy"] == "Fail"


def test_it_is_the_same_every_time(exported: Any) -> None:
    documents = [policy("b", "match: {namespaces: [x]}"), policy("default", "priority: 0")]

    assert msgspec.json.encode(exported(*documents)) == msgspec.json.encode(exported(*documents))


def test_long_names_are_cut_and_stay_apart(exported: Any) -> None:
    made = exported(policy("p" * 253, "priority: 0"))
    found = names(made, "ValidatingAdmissionPolicy")

    assert len(found) == len(set(found)) == 5
    assert all(len(f"gpu-admission.{name}") <= 253 for name in found)


def test_labels_of_namespaces_are_asked_where_they_are_known(exported: Any) -> None:
    selector = (
        "{matchLabels: {team: ml}, matchExpressions: [{key: a/b, operator: NotIn, values: [low, high]}]}"
    )
    made = exported(
        policy("chosen", f"priority: 1, match: {{namespaces: ['m*'], namespaceSelector: {selector}}}"),
        policy(
            "default",
            "exemptions: [{namespaces: ['*'], namespaceSelector: {matchLabels: {old: ''}}, reason: r}]",
        ),
    )
    variables = {
        each["metadata"]["name"]: {
            variable["name"]: variable["expression"] for variable in each["spec"]["variables"]
        }
        for each in made.objects
        if each["kind"] == "ValidatingAdmissionPolicy"
    }
    labels = "namespaceObject.metadata.?labels"
    selected = (
        f"({labels}[?'team'] == optional.of('ml') && "
        f"!['low', 'high'].exists(value, {labels}[?'a/b'] == optional.of(value)))"
    )

    assert (
        conditions(made, "chosen.gpu-requests")["governed-by-chosen"]
        == "request.namespace.matches(r'^(m.*)$')"
    )
    assert variables["gpu-admission.chosen.gpu-requests"]["holds"] == selected
    assert variables["gpu-admission.default.gpu-requests"]["holds"] == (
        f"!((request.namespace.matches(r'^(m.*)$')) && {selected}) &&\n"
        f"!((true) && ({labels}[?'old'] == optional.of('')))"
    )
    assert all(each["findings"].startswith("!variables.holds ? [] :") for each in variables.values())
