"""The policy that governs a namespace, and the exemptions that cover it, by names and labels."""

from datetime import UTC, datetime
from pathlib import Path

from policies.policy import Labels
from policies.rule import Mode
from tests.cases import cases
from tests.webhook.configuration.written import policy, write
from webhook.configuration.loader import load_directory


@cases(
    ("namespace", "labels", "asks", "want"),
    name_and_label=("ml-a", (("team", "ml"),), True, "labelled"),
    name_alone=("ml-a", (("team", "web"),), True, "default"),
    label_alone=("web", (("team", "ml"),), False, "default"),
    exemptions_ask_too=("exempt", (), True, "exempting"),
    decided_before_any_label_matters=("first", (), False, "first"),
)
def test_labels_and_names(tmp_path: Path, namespace: str, labels: Labels, asks: bool, want: str) -> None:
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

    assert policies.depends_on_labels(namespace) is asks
    assert policies.for_namespace(namespace, labels).name == want


@cases(
    ("globs", "exempted"),
    its_name=("ml-a", True),
    a_glob=("ml-*", True),
    one_of_several=("other, ml-a", True),
    another_namespace=("ml-old", False),
    the_beginning_of_its_name=("ml", False),
)
def test_an_exemption_by_name(tmp_path: Path, globs: str, exempted: bool) -> None:
    write(tmp_path, p=policy(f"{{exemptions: [{{namespaces: [{globs}], reason: migration}}]}}"))

    effective = load_directory(tmp_path).policies.for_namespace("ml-a")

    assert [exemption.reason for exemption in effective.exemptions] == ["migration"] * exempted
    now = datetime(2026, 11, 21, tzinfo=UTC)
    assert (effective.exemption("gpu-class", now) is not None) is exempted


def test_an_exemption_by_label(tmp_path: Path) -> None:
    exemption = "{namespaces: ['*'], reason: ours, namespaceSelector: {matchLabels: {team: ml}}}"
    write(tmp_path, p=policy(f"{{match: {{namespaces: [a]}}, exemptions: [{exemption}]}}"))
    policies, now = load_directory(tmp_path).policies, datetime(2026, 11, 21, tzinfo=UTC)

    assert policies.for_namespace("a", (("team", "ml"),)).mode_of("gpu-requests", now) is Mode.DISABLED
    assert policies.for_namespace("a", (("team", "web"),)).mode_of("gpu-requests", now) is Mode.ENFORCE
    assert policies.depends_on_labels("a")
    assert not policies.depends_on_labels("governed-by-no-document")
