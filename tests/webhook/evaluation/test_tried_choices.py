"""Which choices of a finding are offered: those that help. Each is tried on the pod, within bounds of trials and bytes."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from policies.finding import TOO_LARGE, ContactChange, ContactEdit, Edit, Edits, Finding, Reason, Wait
from policies.pods.injected import INJECTION_MISSING
from policies.pods.pod import Pod
from policies.policy import EffectivePolicy
from tests.builders import JSON, container, pod, view
from tests.cases import cases
from webhook.evaluation.decision import DeadlineExceeded, Decision, Outcome, Violation
from webhook.evaluation.tried_choices import MAX_AMOUNTS, MAX_BYTES, MAX_TRIED, MIN_TRIED, with_tried_choices

COLOR = "spec.nodeSelector[color]"
PLACING, SHARING = "gpu-class", "shared-memory"
"""A rule for whose findings other ways are tried, and another one."""
UNCOVERING = Reason("Unread", "nothing reads the field", hides_others=True)
POLICY = EffectivePolicy(name="test", version="1", why="", namespace="team", bound_rules=())


def to(color: str) -> Edits:
    return (Edit(COLOR, color),)


def red(*colors: str, remedy: str = "paint it", **fields: Any) -> Finding:
    """Return what is wrong with a red pod, and the colors that are offered."""
    shared: JSON = {"reason": TOO_LARGE, "rule": SHARING, "path": COLOR, "message": "must not be red"}
    return Finding(**{**shared, **fields}, choices=tuple(map(to, colors)), remedy=remedy)


def heavy(outcome: Outcome, reason: Reason = TOO_LARGE) -> Violation:
    found = Finding(reason=reason, rule=SHARING, path="spec.overhead", message="must not be heavy")
    return Violation(found, outcome)


RED = tuple(
    Violation(red(rule=rule, reason=reason), Outcome.DENIED)
    for rule, reason in ((PLACING, TOO_LARGE), (SHARING, TOO_LARGE), (SHARING, UNCOVERING))
)
FOUND: dict[str, list[tuple[Violation, ...]]] = {
    "red": [RED],
    "crimson": [(), RED],
    "maroon": [(*RED[:1], *RED[:1])],
    "rose": [(Violation(red(), Outcome.WARNED),)],
    "green": [],
    "blue": [(), ()],
    "lead": [(heavy(Outcome.DENIED),)],
    "gold": [(), (heavy(Outcome.DENIED),)],
    "amber": [(heavy(Outcome.WARNED),)],
    "grey": [(heavy(Outcome.AUDITED),)],
    "bare": [(heavy(Outcome.DENIED, INJECTION_MISSING),)],
}
"""What each phase finds of a pod of this color."""


class Findings:
    """Finds what is wrong with a pod by its color, and counts the pods."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, author: Pod) -> Iterator[tuple[Violation, ...]]:
        self.count += 1
        yield from FOUND[author.node_selector["color"]]


def tried(
    *findings: Finding,
    others: tuple[str, ...] = (),
    outcome: Outcome = Outcome.DENIED,
    findings_of: Findings | None = None,
    color: str = "red",
    note: str = "",
    amounts: int = 0,
) -> list[Finding]:
    """Return what is left of findings about a pod of this color with an annotation and extended resources."""
    limits = {f"example.com/x{number}": 1 for number in range(amounts)}
    resources = {"limits": {"cpu": 1, **limits}, "requests": {"cpu": 1, **limits}}
    author = view(
        pod(container(resources=resources), nodeSelector={"color": color}, annotations={"note": note})
    )
    decision = Decision(policy=POLICY, violations=tuple(Violation(each, outcome) for each in findings))
    found = with_tried_choices(decision, author, findings_of or Findings(), lambda: map(to, others))
    assert {each.outcome for each in found.violations} == {outcome}
    return [each.finding for each in found.violations]


@cases(
    ("finding", "want"),
    one_that_helps=(red("green"), red("green")),
    several_that_help=(red("green", "blue"), red("green", "blue")),
    one_that_leaves_the_finding=(red("crimson"), red(remedy="")),
    one_beside_one_that_leaves_it=(red("crimson", "green"), red("green", remedy="")),
    one_that_brings_another_denial=(red("lead"), red(remedy="")),
    one_that_a_later_phase_denies=(red("gold", "blue"), red("blue", remedy="")),
    another_denial_was_only_hidden=(red("lead", reason=UNCOVERING), red("lead", reason=UNCOVERING)),
    one_that_brings_a_warning=(red("amber"), red("amber")),
    one_without_a_warning_is_better=(red("amber", "green"), red("green", remedy="")),
    one_that_brings_one_more_of_what_is_wrong=(red("maroon"), red(remedy="")),
    what_is_only_logged_does_not_count=(red("grey", "green"), red("grey", "green")),
    what_will_be_injected_does_not_count=(red("bare"), red("bare")),
    other_ways_are_for_other_rules=(red("crimson"), red(remedy="")),
)
def test_only_choices_that_help_are_offered(finding: Finding, want: Finding) -> None:
    assert tried(finding, others=("green",)) == [want]


def test_a_choice_that_makes_no_pod_is_not_offered() -> None:
    unreadable = Finding(
        reason=TOO_LARGE,
        rule=SHARING,
        path=COLOR,
        message="must not be red",
        choices=((Edit("spec.containers", "none"),), to("green")),
    )

    assert tried(unreadable) == [red("green", remedy="")]


@cases(
    ("finding", "others", "want"),
    the_first_that_helps=(red("crimson"), ("crimson", "lead", "green", "blue"), red("green", remedy="")),
    where_nothing_was_offered=(red(), ("green",), red("green", remedy="")),
    one_with_a_warning_is_not_taken=(red("crimson"), ("amber", "blue"), red("blue", remedy="")),
    no_choice_is_offered_where_none_helps=(red("crimson"), ("lead", "maroon"), red(remedy="")),
    a_warning_is_better_than_a_denial=(red("crimson"), ("lead", "amber", "gold"), red("amber", remedy="")),
    what_no_finding_offers_is_tried_once=(
        red("crimson"),
        ("crimson",) * MAX_TRIED + ("green",),
        red("green", remedy=""),
    ),
    words_stay_where_nothing_was_offered_and_nothing_helps=(red(), ("lead",), red()),
    not_where_a_choice_helps=(red("blue"), ("green",), red("blue")),
    not_where_one_of_several_helps=(red("crimson", "blue"), ("green",), red("blue", remedy="")),
    not_where_waiting_helps=(red(awaits=Wait()), ("green",), red(awaits=Wait())),
    not_for_what_will_be_injected=(
        red(reason=INJECTION_MISSING),
        ("green",),
        red(reason=INJECTION_MISSING),
    ),
)
def test_other_ways_are_tried_where_no_choice_helps(
    finding: Finding, others: tuple[str, ...], want: Finding
) -> None:
    (found,) = tried(replace(finding, rule=PLACING), others=others)

    assert found == replace(want, rule=PLACING)


def heavier(*advised: str, rule: str = SHARING) -> Violation:
    """Return a denial, which offers colors."""
    return Violation(
        replace(heavy(Outcome.DENIED).finding, rule=rule, choices=tuple(map(to, advised))), Outcome.DENIED
    )


FOUND |= {
    "bronze": [(heavier("green"),)],
    "iron": [(heavier("bronze"),)],
    "rust": [(heavier("rust"),)],
    "own": [(heavier(rule=PLACING),)],
}
NODES = ContactEdit("Node", value="a")


@cases(
    ("changes", "want"),
    the_pod_is_admitted=([(NODES, *to("green"))], [(NODES, *to("green"))]),
    its_own_rule_waits_for_the_change=([(NODES, *to("own"))], [(NODES, *to("own"))]),
    without_edits=([(NODES,)], [(NODES,)]),
    another_rule_demands_more=([(NODES, *to("bronze"))], [(NODES, *to("bronze"), *to("green"))]),
    and_then_more=([(NODES, *to("iron"))], [(NODES, *to("iron"), *to("bronze"), *to("green"))]),
    it_does_not_end=([(NODES, *to("rust"))], []),
    nothing_corrects_it=([(NODES, *to("lead"))], []),
    of_two_one_does_not_help=([(NODES, *to("green")), (NODES, *to("lead"))], []),
)
def test_questions_name_all_that_the_pod_then_needs(
    changes: list[ContactChange], want: list[ContactChange]
) -> None:
    asking = red(rule=PLACING, ask_contact="for nodes of a", contact_choices=tuple(changes))

    (found,) = tried(asking)

    assert found == replace(asking, ask_contact="for nodes of a" if want else "", contact_choices=tuple(want))


def test_what_is_only_logged_is_not_tried() -> None:
    findings_of = Findings()

    assert tried(red("crimson"), outcome=Outcome.AUDITED, findings_of=findings_of) == [red("crimson")]
    assert findings_of.count == 0


def test_a_warning_is_tried_too() -> None:
    assert tried(red("rose", "green"), color="rose", outcome=Outcome.WARNED) == [red("green", remedy="")]


def test_one_of_two_equal_findings_goes() -> None:
    """Items of a list are compared by their number: those behind a removed one move up."""
    first, second = (red(path=f"spec.tolerations[{index}]") for index in range(2))
    left = {"red": [first, second], "green": [first], "crimson": [first, second]}

    def findings_of(author: Pod) -> list[list[Violation]]:
        return [[Violation(each, Outcome.DENIED) for each in left[author.node_selector["color"]]]]

    offered = replace(first, choices=(to("green"), to("crimson")))
    decision = Decision(
        policy=POLICY, violations=tuple(Violation(each, Outcome.DENIED) for each in (offered, second))
    )
    author = view(pod(nodeSelector={"color": "red"}))
    found = with_tried_choices(decision, author, findings_of, lambda: ())

    assert [each.finding for each in found.violations] == [
        replace(first, choices=(to("green"),), remedy=""),
        second,
    ]


MANY = tuple(f"crimson-{number}" for number in range(MAX_TRIED))
FOUND.update(dict.fromkeys(MANY, FOUND["crimson"]))


@cases(
    ("findings", "others", "want"),
    as_many_choices_as_are_tried=([red(*MANY)], (), [red(remedy="")]),
    one_more_is_not_offered=([red("blue", *MANY[1:], "green")], (), [red("blue", remedy="")]),
    what_helps_is_not_tried_in_vain=(
        [red("blue", *MANY[2:], "green")],
        (),
        [red("blue", "green", remedy="")],
    ),
    findings_share_the_bound=(
        [red(*MANY[1:]), red("green", "blue", rule=PLACING)],
        (),
        [red(remedy=""), red("green", rule=PLACING, remedy="")],
    ),
    the_last_other_way=([red(rule=PLACING)], (*MANY[1:], "green"), [red("green", rule=PLACING, remedy="")]),
    one_other_way_more=([red(rule=PLACING)], (*MANY, "green"), [red(rule=PLACING)]),
)
def test_trials_are_bounded(findings: list[Finding], others: tuple[str, ...], want: list[Finding]) -> None:
    findings_of = Findings()

    assert tried(*findings, others=others, findings_of=findings_of) == want
    assert findings_of.count <= MAX_TRIED + 1  # the pod itself


ROOM = 1_000
"""More bytes than the pod has without its annotation."""


@cases(
    ("note", "choices", "want"),
    two_of_half_of_the_bytes=((MAX_BYTES - ROOM) // 2, ("crimson", "green"), red("green", remedy="")),
    one_more_and_all_are_offered_untried=(
        (MAX_BYTES - ROOM) // 2,
        ("crimson", "maroon", "green"),
        red("crimson", "maroon", "green"),
    ),
    as_large_as_all_trials=(MAX_BYTES - ROOM, ("crimson",), red(remedy="")),
    larger_than_all_trials=(MAX_BYTES, ("crimson",), red("crimson")),
    as_many_as_are_no_longer_few=(
        (MAX_BYTES - ROOM) // MIN_TRIED - ROOM,
        (*MANY[: MIN_TRIED - 1], "green", "crimson"),
        red("green", remedy=""),
    ),
)
def test_bytes_of_all_trials_are_bounded(note: int, choices: tuple[str, ...], want: Finding) -> None:
    assert tried(red(*choices), note="x" * note) == [want]


@cases(
    ("amounts", "choices", "is_tried"),
    none=(0, MAX_TRIED, True),
    one_resource=(1, MAX_TRIED, True),
    half_of_the_resources_one_choice_for_each=(MAX_AMOUNTS // 2, 2, True),
    half_of_the_resources_and_one_choice_more=(MAX_AMOUNTS // 2, 3, False),
)
def test_resources_of_all_trials_are_bounded(amounts: int, choices: int, is_tried: bool) -> None:
    offered = red(*MANY[:choices])

    assert tried(offered, amounts=amounts) == [red(remedy="") if is_tried else offered]


def test_a_pod_that_cannot_be_read_again_is_not_tried() -> None:
    too_large = msgspec.Raw(b"1e400")  # nobody reads it where it stands
    author = view(pod(container(env=[{"name": "A", "valueFrom": too_large}]), nodeSelector={"color": "red"}))
    decision = Decision(policy=POLICY, violations=(Violation(red("crimson"), Outcome.DENIED),))

    assert with_tried_choices(decision, author, Findings(), lambda: ()) == decision


def test_trials_end_with_the_time() -> None:
    def findings_of(_: Pod) -> list[tuple[Violation, ...]]:
        raise DeadlineExceeded

    decision = Decision(policy=POLICY, violations=(Violation(red("crimson"), Outcome.DENIED),))
    with pytest.raises(DeadlineExceeded):
        with_tried_choices(decision, view(pod(nodeSelector={"color": "red"})), findings_of, lambda: ())
