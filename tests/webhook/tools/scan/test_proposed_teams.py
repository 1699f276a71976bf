"""The ClusterGPUQuotas that a scan proposes: for namespaces that hold GPUs and share a label of a team."""

from fractions import Fraction

import msgspec
import pytest
from msgspec.structs import replace

from policies.policy import Labels
from tests.cases import cases
from tests.webhook.tools.scan.built_in import BUILT_IN
from tests.webhook.tools.scan.evaluated import evaluated_pod
from webhook.commands import scan_text
from webhook.commands.output import Screen
from webhook.configuration.yaml_documents import YamlDocument, load_documents
from webhook.quota.team_documents import decode_team
from webhook.tools.scan.proposal import Draft
from webhook.tools.scan.proposed_teams import HeldGPUs, proposed_teams
from webhook.tools.scan.tally import Tally


def holds(namespace: str, gpus: str, largest: str = "1") -> HeldGPUs:
    return HeldGPUs(namespace, Fraction(gpus), Fraction(largest))


def labelled(**values: str) -> dict[str, Labels]:
    """Return labels by namespace, each as `key=value key=value`."""
    return {
        name.replace("_", "-"): tuple(tuple(each.split("=")) for each in text.split())  # type: ignore[misc]
        for name, text in values.items()
    }


TWO = [holds("vision-cv", "5/2"), holds("vision-prod", "8", "4")]


@cases(
    ("holders", "labels", "want"),
    what_they_hold_and_the_largest_pod_once_more=(
        TWO,
        labelled(vision_cv="team=vision", vision_prod="team=vision"),
        {"vision": ({"team": "vision"}, "15")},
    ),
    the_key_may_have_a_prefix=(
        TWO,
        labelled(vision_cv="example.com/Cost-Center=4711", vision_prod="example.com/Cost-Center=4711"),
        {"4711": ({"example.com/Cost-Center": "4711"}, "15")},
    ),
    a_team_of_one_namespace_is_none=(TWO, labelled(vision_cv="team=vision", vision_prod="team=audio"), {}),
    a_label_that_names_no_team=(TWO, labelled(vision_cv="stage=dev", vision_prod="stage=dev"), {}),
    a_value_that_is_no_name=(TWO, labelled(vision_cv="team=Vision", vision_prod="team=Vision"), {}),
    labels_that_may_not_be_read=(TWO, {}, {}),
    of_two_labels_the_one_of_more_namespaces=(
        [*TWO, holds("audio-a", "1"), holds("audio-b", "1")],
        labelled(
            vision_cv="team=vision department=research",
            vision_prod="team=vision department=research",
            audio_a="department=sales",
            audio_b="department=sales",
        ),
        {
            "research": ({"department": "research"}, "15"),
            "sales": ({"department": "sales"}, "3"),
        },
    ),
)
def test_teams_by_a_label(
    holders: list[HeldGPUs], labels: dict[str, Labels], want: dict[str, tuple[dict[str, str], str]]
) -> None:
    found = proposed_teams(holders, labels)

    assert {
        each.name: (each.spec["namespaces"]["selector"]["matchLabels"], each.spec["hard"]["gpus"])
        for each in found
    } == want


def holding(*namespaces: str) -> Tally:
    tally = Tally()
    for name in namespaces:
        evaluation = replace(evaluated_pod("train"), namespace=name)
        tally.add_pod(evaluation, {"gpus": Fraction(2)}, requests_gpus=True)
    return tally


LABELS = labelled(vision_cv="team=vision", vision_prod="team=vision")


def test_a_proposal_has_teams_in_a_file_that_can_be_applied(capsys: pytest.CaptureFixture[str]) -> None:
    draft = Draft(BUILT_IN, holding("vision-cv", "vision-prod"), (), (), labels=LABELS)

    found = draft.proposal(None)

    assert found.teams == {"vision": 6}
    text = found.files["clustergpuquotas.yaml"]
    assert text.splitlines()[0] == (
        "# What the namespaces with this label hold, rounded up, and the largest pod once more. Does it name teams?"
    )
    [document] = load_documents(text)
    assert isinstance(document, YamlDocument)
    record = decode_team(msgspec.json.encode(document.data))
    assert (record.name, record.problem, record.hard) == ("vision", "", {"gpus": Fraction(6)})
    scan_text._proposal(Screen(), found, None)
    assert "  1 ClusterGPUQuota: vision 6\n" in capsys.readouterr().out


@pytest.mark.parametrize("labels", [None, {}], ids=["there-are-teams-already", "nothing-in-common"])
def test_a_proposal_without_teams_has_no_file_of_them(labels: dict[str, Labels] | None) -> None:
    found = Draft(BUILT_IN, holding("vision-cv", "vision-prod"), (), (), labels=labels).proposal(None)

    assert found.teams == {}
    assert "clustergpuquotas.yaml" not in found.files


def test_a_quota_in_a_team_grants_no_more_than_the_team_leaves_it() -> None:
    bounds = {"vision-cv": Fraction(3), "vision-prod": Fraction(64)}

    found = Draft(BUILT_IN, holding("vision-cv", "vision-prod"), (), (), bounds=bounds).proposal(None)

    assert found.quotas == {"vision-cv": 3, "vision-prod": 4}
    _, said, _ = found.files["gpuquotas.yaml"].split("\n", 2)
    assert said == "# Less in vision-cv: no more than their ClusterGPUQuota leaves them."
