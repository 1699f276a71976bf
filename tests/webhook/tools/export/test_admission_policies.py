"""Which objects come of which documents: policies, modes, namespaces, times, versions."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from policies.pods.label_selector import LabelSelector
from policies.registry import RULES, RULES_BY_ID
from policies.rule import Rule
from policies.rules.gpu_requests import GPURequestsOptions
from tests.builders import JSON, gpu_container, pod
from tests.cases import cases
from tests.policies.rules.requests import findings
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_directory, load_objects
from webhook.configuration.yaml_documents import YamlDocument, load_documents
from webhook.tools.export.admission_policies import AdmissionPolicies, ExportOptions, export_policies, header

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ALL_OFF = "gpu-requests: {mode: disabled}, gpu-toleration: {mode: disabled}, gpu-isolation: {mode: disabled}"


def policy(name: str, spec: str, rules: str = "") -> Document:
    (parsed,) = load_documents(f"{{{spec}, rules: {{{rules}}}}}")
    assert isinstance(parsed, YamlDocument)
    return Document("GPUPolicy", name, parsed.data)


def exported(*documents: Document, **options: Any) -> AdmissionPolicies:
    configuration = load_objects(documents) if documents else load_directory(None)
    return export_policies(configuration, ExportOptions(now=NOW, **options))


def specs(made: AdmissionPolicies, kind: str) -> dict[str, Any]:
    """Return the specs of the objects of a kind by name, without the prefix that all have."""
    found = [each for each in made.objects if each["kind"] == kind]
    return {each["metadata"]["name"].removeprefix("gpu-admission."): each["spec"] for each in found}


def names(made: AdmissionPolicies, kind: str) -> list[str]:
    return list(specs(made, kind))


def actions(made: AdmissionPolicies) -> dict[str, list[str]]:
    found = specs(made, "ValidatingAdmissionPolicyBinding")
    return {name: spec["validationActions"] for name, spec in found.items()}


def expressions(made: AdmissionPolicies, name: str, field: str = "matchConditions") -> dict[str, str]:
    found = specs(made, "ValidatingAdmissionPolicy") | specs(made, "MutatingAdmissionPolicy")
    return {each["name"]: each["expression"].rstrip("\n") for each in found[name].get(field, [])}


def conditions(made: AdmissionPolicies, name: str) -> list[str]:
    return expressions(made, name)["applies"].split(" &&\n")


def test_the_built_in_defaults() -> None:
    made = exported()

    assert names(made, "MutatingAdmissionPolicy") == ["built-in.gpu-toleration"]
    assert actions(made) == {
        "built-in.gpu-isolation.annotated": ["Audit"],
        "built-in.gpu-isolation.exposed": ["Audit"],
        "built-in.gpu-isolation.exposed-ephemeral": ["Audit"],
        "built-in.gpu-requests": ["Deny"],
        "limits": ["Deny"],
        "limits.ephemeral": ["Deny"],
    }
    assert conditions(made, "built-in.gpu-toleration")[0] == "(!(request.namespace in ['kube-system']))"


@cases(("mode", "denied"), enforce=("enforce", "Deny"), warn=("warn", "Warn"), audit=("audit", "Audit"))
def test_modes(mode: str, denied: str) -> None:
    rules = f"gpu-requests: {{mode: {mode}}}, gpu-isolation: {{mode: {mode}}}"
    found = actions(exported(policy("default", "priority: 0", rules)))

    assert found["default.gpu-requests"] == found["default.gpu-isolation.exposed"] == [denied]


def test_a_rule_that_does_not_enforce_adds_nothing_and_that_is_told() -> None:
    made = exported(
        policy("default", "priority: 0", "gpu-toleration: {mode: warn}, gpu-isolation: {mode: audit}")
    )

    assert names(made, "MutatingAdmissionPolicy") == []
    only_adds = "a policy of the API server can add, but not report what it would have added"
    assert [gap for gap in made.unsupported if " of policy default: " in gap] == [
        f"gpu-toleration of policy default: what it adds: mode warn: {only_adds}",
        f"gpu-isolation of policy default: what it adds: mode audit: {only_adds}",
    ]


def test_what_never_comes_of_an_exported_rule() -> None:
    made = exported(policy("default", "priority: 0"))

    assert made.rules == ("gpu-requests", "gpu-toleration", "gpu-isolation")
    assert [gap for gap in made.unsupported if gap.partition(": ")[0] in made.rules] == [
        f"{rule_id}: {what}: {why}"
        for rule_id in made.rules
        for what, why in RULES_BY_ID[rule_id].exported_without.items()
    ]


def test_disabled_rules_come_to_nothing() -> None:
    made = exported(policy("default", "priority: 0", ALL_OFF))

    assert made.objects == ()
    assert made.rules == ()
    why = "every policy disables it, limits nothing by it, or exempts every namespace from it"
    assert made.unsupported == tuple(f"{rule.id}: all of it: {rule.not_exported or why}" for rule in RULES)
    assert sum(gap.endswith(why) for gap in made.unsupported) == 5


LIMITING = {
    "spot": ", nodeSelector: {pool: spot}",
    "gpu-class": ", allowed: [nvidia-t4]",
    "max-runtime": ", max: 8h",
}
"""Options with which a rule has something to say."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_is_exported_or_says_why_not(rule: Rule) -> None:
    made = exported(
        policy("default", "priority: 0", f"{rule.id}: {{mode: enforce{LIMITING.get(rule.id, '')}}}")
    )
    prefix = f"{rule.id}: all of it: "
    left_out = [gap.removeprefix(prefix) for gap in made.unsupported if gap.startswith(prefix)]

    assert left_out == [rule.not_exported] * (rule.id not in made.rules)
    assert rule.id in made.rules or rule.not_exported


def test_each_policy_leaves_alone_what_an_earlier_one_governs() -> None:
    made = exported(
        policy("a", "priority: 2, match: {namespaces: [ml, 'ml-*']}"),
        policy("b", "priority: 1, match: {namespaces: ['m*']}"),
        policy("c", "match: {namespaces: ['*']}"),
        policy("d", "priority: -1, match: {namespaces: [never]}"),
    )
    by_a = "request.namespace in ['ml'] || request.namespace.matches(r'^(ml-.*)$')"
    by_a_or_b = "request.namespace in ['ml'] || request.namespace.matches(r'^(ml-.*|m.*)$')"
    found = {name: conditions(made, f"{name}.gpu-requests") for name in "abc"}
    assert found["a"][0] == f"({by_a})"
    assert found["b"][:2] == ["(request.namespace.matches(r'^(m.*)$'))", f"(!({by_a}))"]
    assert found["c"][0] == f"(!({by_a_or_b}))"
    assert not any(
        "request.namespace" in each for each in (*found["a"][1:], *found["b"][2:], *found["c"][1:])
    )
    assert not any(name.startswith(("d.", "built-in.")) for name in names(made, "ValidatingAdmissionPolicy"))


def test_device_plugins_and_exporters_never_get_void() -> None:
    made = exported(policy("default", "priority: 0", "gpu-isolation: {mode: enforce}"))

    condition = expressions(made, "default.gpu-isolation.void")["applies"]
    assert "'/var/lib/kubelet/device-plugins/', '/var/lib/kubelet/pod-resources/'" in condition


def test_times_are_read_when_it_is_exported() -> None:
    exemptions = (
        "exemptions: [{namespaces: [over], reason: r, until: 2026-11-20}, "
        "{namespaces: [legacy], rules: [gpu-requests], reason: r, until: 2026-11-30}]"
    )
    made = exported(policy("default", f"{exemptions}, pausedUntil: 2026-11-21T13:00:00Z"))

    assert set().union(*actions(made).values()) == {"Audit"}
    assert names(made, "MutatingAdmissionPolicy") == []
    assert conditions(made, "default.gpu-requests")[0] == "(!(request.namespace in ['legacy']))"
    assert "request.namespace" not in expressions(made, "default.gpu-isolation.exposed")["applies"]
    assert made.ending == (
        "policy default is paused until 2026-11-21 13:00 UTC: its rules only audit",
        "policy default exempts legacy until the end of 2026-11-30",
    )


def test_a_rule_from_which_every_namespace_is_exempted() -> None:
    made = exported(policy("default", "exemptions: [{namespaces: ['*'], rules: [gpu-requests], reason: r}]"))

    assert not any(".gpu-requests" in name for name in names(made, "ValidatingAdmissionPolicy"))


def test_limits_by_class_are_those_of_the_classes_to_which_a_pod_pins_itself_or_the_largest() -> None:
    made = exported(
        policy("default", "priority: 0", "gpu-requests: {maxPerPod: {nvidia-t4: 2, nvidia.com/gpu: 1}}")
    )

    totals = expressions(made, "default.gpu-requests", "variables")["wrongTotals"]
    totals = " ".join(totals.split())
    assert "name in ['nvidia.com/gpu'] ? [variables.pins ? [{ 'nvidia-" in totals
    assert "'nvidia-l4': 1, " in totals
    assert "'nvidia-t4': 2" in totals
    assert (
        "].map(by, variables.pinned.filter(c, c in by).map(c, by[c]))[0] : []].map(each, each.size() == 0 ? 2 : "
        "each.exists(most, most < 0) ? -1 : each.max())[0] : name in ['nvidia.com/gpu'] ? 1 : -1"
    ) in totals


def test_the_words_of_a_denial() -> None:
    rules = "gpu-requests: {maxPerContainer: 8, maxPerPod: 16}"
    found = expressions(
        exported(policy("default", "priority: 0", rules)), "default.gpu-requests", "variables"
    )

    for words in (
        "'set ' + name + ': ' + string(most) + ' or less; must be at most ' + string(most) + ' per container by policy'",
        "'set ' + name + ': 1, or request a slice of a GPU (MIG) or a time-sliced share; must be a whole number of GPUs'",
    ):
        assert words in found["wrongAmounts"]
    remedy = "'request ' + name + ': ' + string(most) + ' or less'"
    why = (
        "'the pod needs ' + string(total) + ' ' + name + ' at one time: must be at most ' + string(most) + "
        "' per pod by policy'"
    )
    assert f"'spec' + ': ' + {remedy} + '; ' + {why} + ' [gpu-requests]'" in found["wrongTotals"]


@cases(
    ("pod_", "written"),
    half_a_gpu=(pod(gpu_container("0.5")), "wrongAmounts"),
    more_than_a_container_may_have=(pod(gpu_container("9")), "wrongAmounts"),
    more_than_a_pod_may_have=(pod(gpu_container("8"), gpu_container("8"), gpu_container("1")), "wrongTotals"),
)
def test_a_denial_has_the_words_of_the_rule(pod_: JSON, written: str) -> None:
    rules = "gpu-requests: {maxPerContainer: 8, maxPerPod: 16}"
    policies = exported(policy("default", "priority: 0", rules))
    (denial, *_) = findings(pod_, GPURequestsOptions(max_per_container=8, max_per_pod=16))

    must = re.search(r"must.*?(?=, not |$)", denial.message)

    assert must is not None
    words = re.sub(r"\b(8|16)\b", "' + string(most) + '", must[0])
    assert words in expressions(policies, "default.gpu-requests", "variables")[written]


def test_the_comment_before_the_objects() -> None:
    made = exported(
        policy("default", "exemptions: [{namespaces: [legacy], reason: r, until: 2026-11-30}]", ALL_OFF)
    )

    assert header(made).splitlines()[:8] == [
        (
            "# Rules of gpu-admission as policies of the API server itself, from configuration 5cba4e1f49f8 as of "
            "2026-11-21T12:00:00Z."
        ),
        "# Generated by `gpu-admission export`: change the GPUPolicy documents and export again.",
        (
            "# Remove all of it: kubectl delete -l "
            "app.kubernetes.io/part-of=gpu-admission,app.kubernetes.io/component=admission-policies \\"
        ),
        (
            "#   "
            "validatingadmissionpolicies,validatingadmissionpolicybindings,mutatingadmissionpolicies,mutatingadmissionpolicybindings"
        ),
        "#",
        "# Policies, each with its binding: 0. Rules in here: none.",
        "# CEL has no clock. Export again when this ends:",
        "# - policy default exempts legacy until the end of 2026-11-30",
    ]


def test_the_header_says_what_is_not_in_here() -> None:
    assert header(exported(policy("default", "priority: 0"))).splitlines()[6] == "# Not in here:"


@cases(
    ("name", "variable", "part"),
    an_annotation=(
        "built-in.gpu-isolation.annotated",
        "findings0",
        "'metadata.annotations[' + key + ']' + ",
    ),
    the_card_of_a_name=("built-in.gpu-toleration", "cards", "card == '*' ? variables.requested[i] : card"),
)
def test_a_part_of_a_variable(name: str, variable: str, part: str) -> None:
    assert part in expressions(exported(), name, "variables")[variable]


DENYING = {
    "gpu-requests": "GPU requests are whole numbers, and at most what the policy allows.",
    "gpu-isolation.exposed": (
        "No container sees GPUs that it did not request, by a variable, files of the node or an annotation."
    ),
    "gpu-isolation.exposed-ephemeral": "No ephemeral container sees GPUs, by a variable or files of the node.",
    "gpu-isolation.annotated": (
        "No annotation that names devices of the node is set on a pod after its creation."
    ),
    "limits": "Pods are no longer than the rules read.",
    "limits.ephemeral": "Ephemeral containers are no longer than the rules read.",
}
CHANGING = {
    "gpu-toleration": (
        "Pods that ask for a GPU tolerate the taints of GPU nodes; what is tolerated already is not added."
    ),
    "gpu-isolation.void": (
        "Containers that request no GPU get NVIDIA_VISIBLE_DEVICES=void, unless they set the variable themselves."
    ),
    "gpu-isolation.void-ephemeral": (
        "Ephemeral containers, which cannot request a GPU, get NVIDIA_VISIBLE_DEVICES=void."
    ),
}


def test_what_the_objects_say_of_themselves() -> None:
    made = exported(policy("default", "priority: 0", "gpu-isolation: {mode: enforce}"))
    described = {
        each["metadata"]["name"].removeprefix("gpu-admission.").removeprefix("default."): each["metadata"][
            "annotations"
        ]["gpu-admission.dev/description"]
        for each in made.objects
    }
    messages = {
        name.removeprefix("default."): [each["message"] for each in spec["validations"]]
        for name, spec in specs(made, "ValidatingAdmissionPolicy").items()
    }

    assert described == {**DENYING, **CHANGING}
    assert messages == {name: [f"{text} [{name.partition('.')[0]}]"] for name, text in DENYING.items()}


def test_what_every_object_has() -> None:
    made = exported(policy("default", "priority: 0"), selector=LabelSelector({"gpus": "yes"}))

    for each in made.objects:
        assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "gpu-admission"
        assert each["metadata"]["annotations"]["gpu-admission.dev/description"]
        if each["kind"].endswith("Binding"):
            assert each["spec"]["policyName"] == each["metadata"]["name"]
        else:
            assert each["spec"]["matchConstraints"]["namespaceSelector"] == {
                "matchExpressions": [{"key": "gpus", "operator": "In", "values": ("yes",)}]
            }
            assert each["spec"]["failurePolicy"] == "Fail"
            assert len(each["spec"].get("matchConditions", [])) <= 1, "an API server evaluates all"


def test_long_names_are_cut_and_stay_apart() -> None:
    found = names(exported(policy("p" * 253, "priority: 0")), "ValidatingAdmissionPolicy")

    assert len(found) == len(set(found)) == 6
    assert all(len(f"gpu-admission.{name}") <= 253 for name in found)


def test_labels_of_namespaces_are_asked_where_they_are_known() -> None:
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
    labels = "namespaceObject.metadata.?labels"
    selected = (
        f"({labels}[?'team'] == optional.of('ml') && "
        f"!['low', 'high'].exists(value, {labels}[?'a/b'] == optional.of(value)))"
    )

    assert conditions(made, "chosen.gpu-requests")[0] == "(request.namespace.matches(r'^(m.*)$'))"
    assert specs(made, "ValidatingAdmissionPolicy")["chosen.gpu-requests"]["matchConstraints"][
        "namespaceSelector"
    ] == {
        "matchExpressions": [
            {"key": "team", "operator": "In", "values": ("ml",)},
            {"key": "a/b", "operator": "NotIn", "values": ("low", "high")},
        ]
    }
    assert expressions(made, "default.gpu-requests", "variables")["holds"] == (
        f"!((request.namespace.matches(r'^(m.*)$')) && {selected}) &&\n"
        f"!((true) && ({labels}[?'old'] == optional.of('')))"
    )
    for name in (each for each in names(made, "ValidatingAdmissionPolicy") if each.startswith("default.")):
        assert expressions(made, name, "variables")["findings0"].startswith("!variables.holds ? [] :")
