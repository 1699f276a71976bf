"""Warnings about valid policies."""

from datetime import UTC, datetime
from typing import Any

import pytest

from policies.policy import Labels
from policies.registry import RULES_BY_ID
from webhook.configuration.advice import glob_contains, globs_meet, policy_advice
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_objects

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ML, TEAM = {"namespaces": ["ml-*"]}, {"matchLabels": {"team": "ml"}}


def advice(
    spec: dict[str, Any], *others: tuple[str, dict[str, Any]], namespaces: dict[str, Labels] | None = None
) -> list[str]:
    documents = [Document("GPUPolicy", "this", spec), *(Document("GPUPolicy", *other) for other in others)]
    reported = policy_advice(load_objects(documents), "this", NOW, namespaces)
    return [f"{path}: {message}" for path, message in reported]


@pytest.mark.parametrize(
    ("spec", "other", "want"),
    [
        pytest.param({"match": ML, "priority": 1}, ("default", {}), [], id="special-before-general"),
        pytest.param(
            {"match": ML},
            ("other", {"match": {"namespaces": ["*-a"]}}),
            ["spec.priority: 0 is also the priority of other, which can match the same namespaces: other governs them, by name"],
            id="tie",
        ),
        pytest.param(
            {"match": ML, "priority": 2},
            ("other", {"match": {"namespaces": ["*-a"]}, "priority": 1}),
            ["spec.match: other can match the same namespaces: this governs them, by priority"],
            id="overlap",
        ),
        pytest.param(
            {"match": ML},
            ("default", {}),
            ["spec.match: this never governs: default comes first wherever it matches"],
            id="this-is-shadowed",
        ),
        pytest.param(
            {"priority": 3},
            ("other", {"match": ML}),
            ["spec.match: other never governs: this comes first wherever it matches"],
            id="this-shadows",
        ),
        pytest.param(
            {"match": ML},
            ("default", {"match": {"namespaceSelector": TEAM}, "priority": 1}),
            ["spec.match: default can match the same namespaces: default governs them, by priority"],
            id="a-selector-leaves-room",
        ),
        pytest.param(
            {"match": {**ML, "namespaceSelector": TEAM}},
            ("default", {"match": {"namespaceSelector": TEAM}, "priority": 1}),
            ["spec.match: this never governs: default comes first wherever it matches"],
            id="the-same-selector-does-not",
        ),
        pytest.param({"match": ML}, ("other", {"match": {"namespaces": ["web-*"]}}), [], id="apart"),
        pytest.param(
            {"pausedUntil": "2026-11-21T12:30:00Z"},
            ("zz", {"match": ML, "priority": 1}),
            ["spec.pausedUntil: until 2026-11-21T12:30:00Z every rule of this policy only audits"],
            id="paused",
        ),
        pytest.param(
            {"pausedUntil": "2026-11-21T12:00:00Z"},
            ("zz", {"match": ML, "priority": 1}),
            ["spec.pausedUntil: has passed: nothing is paused"],
            id="pause-is-over",
        ),
        pytest.param(
            {"exemptions": [{"namespaces": ["a"], "reason": "x", "until": day} for day in ("2026-11-21", "2026-11-20")]},
            ("zz", {"match": ML, "priority": 1}),
            ["spec.exemptions[1].until: has passed: this exemption has ended"],
            id="exemption-has-ended",
        ),
    ],
)  # fmt: skip
def test_advice(spec: dict[str, Any], other: tuple[str, dict[str, Any]], want: list[str]) -> None:
    assert advice(spec, other) == want


EVERYTHING = "covers every namespace of this policy and every rule: the policy has no effect"
PLAIN = "holds a secret in plain text, which whoever may read the policy or the pods can read; name credentialsSecret instead"
RULES = sorted(RULES_BY_ID)


def exempt(*namespaces: str, **more: Any) -> dict[str, Any]:
    return {"exemptions": [{"namespaces": list(namespaces), "reason": "x", **more}]}


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param(exempt("*"), [f"spec.exemptions[0]: {EVERYTHING}"], id="everything"),
        pytest.param(exempt("kube-*", "**"), [f"spec.exemptions[0]: {EVERYTHING}"], id="beside-others"),
        pytest.param(
            exempt("ml-*") | {"match": ML}, [f"spec.exemptions[0]: {EVERYTHING}"], id="all-that-is-matched"
        ),
        pytest.param(exempt("*", rules=RULES), [f"spec.exemptions[0]: {EVERYTHING}"], id="each-rule-by-name"),
        pytest.param(exempt("*", rules=["gpu-quota"]), [], id="of-one-rule"),
        pytest.param(exempt("*", rules=[]), [], id="of-no-rule"),
        pytest.param(exempt("*-a") | {"match": ML}, [], id="some-of-what-is-matched"),
        pytest.param(exempt("*", namespaceSelector=TEAM), [], id="by-labels"),
        pytest.param(exempt("kube-system", "gpu-operator"), [], id="named-namespaces"),
        pytest.param(
            exempt("*", until="2026-11-20"),
            ["spec.exemptions[0].until: has passed: this exemption has ended"],
            id="ended",
        ),
    ],
)
def test_an_exemption_of_everything(spec: dict[str, Any], want: list[str]) -> None:
    assert advice(spec) == want


@pytest.mark.parametrize(
    ("source", "variable", "value", "is_secret"),
    [
        pytest.param("hf", "HF_TOKEN", "hf_abcdefghijklmnop", True, id="token"),
        pytest.param("s3", "AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG", True, id="key"),
        pytest.param(
            "https", "HTTPS_PROXY", "http://fetcher:hunter2@proxy:3128", True, id="password-of-a-proxy"
        ),
        pytest.param("s3", "DB_PASSWORD", "hunter22", True, id="password"),
        pytest.param("https", "HTTPS_PROXY", "http://proxy:3128", False, id="proxy"),
        pytest.param("s3", "AWS_KMS_KEY_PREFIX", "models/llama", False, id="key-of-something-else"),
        pytest.param("s3", "AWS_REGION", "eu-central-1", False, id="region"),
        pytest.param(
            "s3", "AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token", False, id="path-of-a-token"
        ),
        pytest.param("gs", "GOOGLE_APPLICATION_CREDENTIALS", "/keys/key.json", False, id="path-of-a-key"),
        pytest.param("hf", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", False, id="switch"),
        pytest.param("hf", "HF_TOKEN", "$(HUB_TOKEN)", False, id="reference-to-a-variable"),
        pytest.param("hf", "HF_TOKEN", "", False, id="empty"),
    ],
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


@pytest.mark.parametrize(
    ("one", "other", "meet", "contains"),
    [
        pytest.param("*", "ml-*", True, True, id="everything"),
        pytest.param("ml-*", "*", True, False, id="part"),
        pytest.param("ml-*", "ml-serving", True, True, id="name"),
        pytest.param("ml-*", "ml-", True, True, id="empty-rest"),
        pytest.param("ml-*", "*-a", True, False, id="crossing"),
        pytest.param("ml-?", "ml-*", True, False, id="one-character"),
        pytest.param("ml-?", "ml-a", True, True, id="one-character-fits"),
        pytest.param("ml-?", "ml-ab", False, False, id="two-characters-do-not"),
        pytest.param("ml-[ab]", "ml-a", True, True, id="set"),
        pytest.param("ml-a", "ml-[ab]", True, False, id="of-a-set"),
        pytest.param("a*b*c", "axbyc", True, True, id="several-wildcards"),
        pytest.param("web", "ml", False, False, id="apart"),
        pytest.param("*-a", "ml-b", False, False, id="other-end"),
    ],
)
def test_globs(one: str, other: str, meet: bool, contains: bool) -> None:
    assert globs_meet(one, other) is meet
    assert globs_meet(other, one) is meet
    assert glob_contains(one, other) is contains
