"""Warnings about valid policies."""

from datetime import UTC, datetime
from typing import Any

from policies.policy import Labels
from policies.registry import RULES_BY_ID
from tests.cases import cases
from webhook.configuration.advice import glob_contains, globs_meet, policy_warnings
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_objects

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ML, TEAM = {"namespaces": ["ml-*"]}, {"matchLabels": {"team": "ml"}}


def advice(
    spec: dict[str, Any], *others: tuple[str, dict[str, Any]], namespaces: dict[str, Labels] | None = None
) -> list[str]:
    documents = [Document("GPUPolicy", "this", spec), *(Document("GPUPolicy", *other) for other in others)]
    reported = policy_warnings(load_objects(documents), "this", NOW, namespaces)
    return [f"{path}: {message}" for path, message in reported]


@cases(
    ("spec", "other", "want"),
    special_before_general=({"match": ML, "priority": 1}, ("default", {}), []),
    tie=({"match": ML}, ("other", {"match": {"namespaces": ["*-a"]}}),
        ["spec.priority: 0 is also the priority of other, which can match the same namespaces: other governs them, by name"]),
    overlap=({"match": ML, "priority": 2}, ("other", {"match": {"namespaces": ["*-a"]}, "priority": 1}),
        ["spec.match: other can match the same namespaces: this governs them, by priority"]),
    this_is_shadowed=({"match": ML}, ("default", {}),
        ["spec.match: this never governs: default comes first wherever it matches; "
         "give this a spec.priority above 0, or delete it"]),
    this_shadows=({"priority": 3}, ("other", {"match": ML}),
        ["spec.match: other never governs: this comes first wherever it matches; "
         "give other a spec.priority above 3, or delete it"]),
    a_selector_leaves_room=({"match": ML}, ("default", {"match": {"namespaceSelector": TEAM}, "priority": 1}),
        ["spec.match: default can match the same namespaces: default governs them, by priority"]),
    the_same_selector_does_not=({"match": {**ML, "namespaceSelector": TEAM}},
        ("default", {"match": {"namespaceSelector": TEAM}, "priority": 1}),
        ["spec.match: this never governs: default comes first wherever it matches; "
         "give this a spec.priority above 1, or delete it"]),
    apart=({"match": ML}, ("other", {"match": {"namespaces": ["web-*"]}}), []),
    paused=({"pausedUntil": "2026-11-21T12:30:00Z"}, ("zz", {"match": ML, "priority": 1}),
        ["spec.pausedUntil: until 2026-11-21 12:30 UTC every rule of this policy only audits"]),
    pause_is_over=({"pausedUntil": "2026-11-21T12:00:00Z"}, ("zz", {"match": ML, "priority": 1}),
        ["spec.pausedUntil: has passed: nothing is paused"]),
    exemption_has_ended=(
        {"exemptions": [{"namespaces": ["a"], "reason": "x", "until": day} for day in ("2026-11-21", "2026-11-20")]},
        ("zz", {"match": ML, "priority": 1}), ["spec.exemptions[1].until: has passed: this exemption has ended"]),
)  # fmt: skip
def test_advice(spec: dict[str, Any], other: tuple[str, dict[str, Any]], want: list[str]) -> None:
    assert advice(spec, other) == want


EVERYTHING = "covers every namespace of this policy and every rule: the policy has no effect"
PLAIN = "holds a secret in plain text, which all users who may read the policy or pods can see; name credentialsSecret instead"
RULES = sorted(RULES_BY_ID)


def exempt(*namespaces: str, **more: Any) -> dict[str, Any]:
    return {"exemptions": [{"namespaces": list(namespaces), "reason": "x", **more}]}


@cases(
    ("spec", "want"),
    everything=(exempt("*"), [f"spec.exemptions[0]: {EVERYTHING}"]),
    beside_others=(exempt("kube-*", "**"), [f"spec.exemptions[0]: {EVERYTHING}"]),
    all_that_is_matched=(exempt("ml-*") | {"match": ML}, [f"spec.exemptions[0]: {EVERYTHING}"]),
    each_rule_by_name=(exempt("*", rules=RULES), [f"spec.exemptions[0]: {EVERYTHING}"]),
    of_one_rule=(exempt("*", rules=["gpu-quota"]), []),
    of_no_rule=(exempt("*", rules=[]), []),
    some_of_what_is_matched=(exempt("*-a") | {"match": ML}, []),
    by_labels=(exempt("*", namespaceSelector=TEAM), []),
    named_namespaces=(exempt("kube-system", "gpu-operator"), []),
    over=(
        exempt("*", until="2026-11-20"),
        ["spec.exemptions[0].until: has passed: this exemption has ended"],
    ),
)
def test_an_exemption_of_everything(spec: dict[str, Any], want: list[str]) -> None:
    assert advice(spec) == want


@cases(
    ("source", "variable", "value", "is_secret"),
    token=("hf", "HF_TOKEN", "hf_abcdefghijklmnop", True),
    key=("s3", "AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG", True),
    password_of_a_proxy=("https", "HTTPS_PROXY", "http://fetcher:hunter2@proxy:3128", True),
    password=("s3", "DB_PASSWORD", "hunter22", True),
    proxy=("https", "HTTPS_PROXY", "http://proxy:3128", False),
    key_of_something_else=("s3", "AWS_KMS_KEY_PREFIX", "models/llama", False),
    region=("s3", "AWS_REGION", "eu-central-1", False),
    path_of_a_token=("s3", "AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token", False),
    path_of_a_key=("gs", "GOOGLE_APPLICATION_CREDENTIALS", "/keys/key.json", False),
    switch=("hf", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", False),
    reference_to_a_variable=("hf", "HF_TOKEN", "$(HUB_TOKEN)", False),
    empty=("hf", "HF_TOKEN", "", False),
)
def test_a_literal_secret(source: str, variable: str, value: str, is_secret: bool) -> None:
    spec = {"rules": {"model-warming": {"sources": {source: {"env": {variable: value}}}}}}
    path = f"spec.rules.model-warming.sources.{source}.env[{variable}]"

    assert advice(spec) == ([f"{path}: {PLAIN}"] if is_secret else [])


def test_namespaces_that_do_not_exist() -> None:
    there: dict[str, Labels] = {"ml-a": (("team", "web"),), "web": ()}
    spec = {"match": {"namespaces": ["ml-*", "mll"], "namespaceSelector": TEAM}}

    assert advice(spec, namespaces=there) == [
        'spec.match.namespaces[1]: "mll" matches no existing namespace',
        "spec.match.namespaceSelector: matches no existing namespace",
    ]
    assert advice(spec) == []


@cases(
    ("one", "other", "meet", "contains"),
    everything=("*", "ml-*", True, True),
    part=("ml-*", "*", True, False),
    empty_rest=("ml-*", "ml-", True, True),
    crossing=("ml-*", "*-a", True, False),
    one_character=("ml-?", "ml-*", True, False),
    one_character_fits=("ml-?", "ml-a", True, True),
    two_characters_do_not=("ml-?", "ml-ab", False, False),
    set=("ml-[ab]", "ml-a", True, True),
    of_a_set=("ml-a", "ml-[ab]", True, False),
    several_wildcards=("a*b*c", "axbyc", True, True),
    apart=("web", "ml", False, False),
    other_end=("*-a", "ml-b", False, False),
)
def test_globs(one: str, other: str, meet: bool, contains: bool) -> None:
    assert globs_meet(one, other) is meet
    assert globs_meet(other, one) is meet
    assert glob_contains(one, other) is contains
