"""The policy that governs a namespace, and the exemptions that cover it, by names and labels."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from policies.policy import Labels
from policies.rule import Mode
from tests.webhook.configuration.test_loader import policy, write
from webhook.configuration.loader import load_directory


@pytest.mark.parametrize(
    ("namespace", "labels", "asks", "want"),
    [
        pytest.param("ml-a", (("team", "ml"),), True, "labelled", id="name-and-label"),
        pytest.param("ml-a", (("team", "web"),), True, "default", id="name-alone"),
        pytest.param("web", (("team", "ml"),), False, "default", id="label-alone"),
        pytest.param("exempt", (), True, "exempting", id="exemptions-ask-too"),
        pytest.param("first", (), False, "first", id="decided-before-any-label-matters"),
    ],
)
def test_labels_and_names_choose_together(
    tmp_path: Path, namespace: str, labels: Labels, asks: bool, want: str
) -> None:
    selector = "namespaceSelector: {matchLabels: {team: ml}}"
    write(
        tmp_path,
        a=policy(f'{{priority: 1, match: {{namespaces: ["ml-*", first], {selector}}}}}', name="labelled"),
        b=policy("{}"),
        c=policy("{priority: 2, match: {namespaces: [first]}}", name="first"),
        d=policy(
            f"{{priority: 2, match: {{namespaces: [exempt]}}, exemptions: [{{namespaces: ['*'], reason: x, {selector}}}]}}",
            name="exempting",
        ),
    )
    policies = load_directory(tmp_path).policies

    assert policies.asks_labels(namespace) is asks
    assert policies.for_namespace(namespace, labels).name == want


@pytest.mark.parametrize(
    ("globs", "exempted"),
    [
        pytest.param("ml-a", True, id="its-name"),
        pytest.param("ml-*", True, id="a-glob"),
        pytest.param("other, ml-a", True, id="one-of-several"),
        pytest.param("ml-old", False, id="another-namespace"),
        pytest.param("ml", False, id="the-beginning-of-its-name"),
    ],
)
def test_an_exemption_by_name(tmp_path: Path, globs: str, exempted: bool) -> None:
    write(tmp_path, p=policy(f"{{exemptions: [{{namespaces: [{globs}], reason: migration}}]}}"))

    effective = load_directory(tmp_path).policies.for_namespace("ml-a")

    assert [exemption.reason for exemption in effective.exemptions] == ["migration"] * exempted
    now = datetime(2026, 11, 21, tzinfo=UTC)
    assert (effective.exemption("gpu-class", now) is not None) is exempted


def test_an_exemption_by_label(tmp_path: Path) -> None:
    exemption = "{namespaces: ['*'], reason: ours, namespaceSelector: {matchLabels: {team: ml}}}"
    write(tmp_path, p=policy(f"{{exemptions: [{exemption}]}}"))
    policies, now = load_directory(tmp_path).policies, datetime(2026, 11, 21, tzinfo=UTC)

    assert policies.for_namespace("a", (("team", "ml"),)).mode_of("gpu-requests", now) is Mode.DISABLED
    assert policies.for_namespace("a", (("team", "web"),)).mode_of("gpu-requests", now) is Mode.ENFORCE
