"""What pages show of a large cluster: the list of quotas that the address asks for, holders, and no empty parts."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.cases import cases
from tests.webhook.commands.rightsizing import report as right_size
from tests.webhook.tools.console.shown import (
    BY_NAME,
    DENIALS,
    HARD,
    NOW,
    QUOTAS,
    names,
    pending,
    quota,
    shown,
    status,
    teams,
)
from tests.webhook.tools.rightsize.peaks import peaks
from webhook.quota.documents import PlaceInLine, WaitingPods
from webhook.tools.console import app as console
from webhook.tools.console.app import Observer
from webhook.tools.console.proposals import DenialProposals, ObjectProposal
from webhook.tools.doctor.check import failure, warning
from webhook.tools.rightsize.workloads import SizeReport
from webhook.tools.status.report import InstallationStatus
from webhook.tools.status.summaries import DeniedOwner, QuotaHolder, QuotaRow
from webhook.tools.stored_objects import StoredObjectVerdict
from webhook.tools.why.explanation import Answer, Explanation, NodeFit
from webhook.tools.why.problems import OwnerProblem, OwnerProblems


@cases(
    ("query", "want"),
    fifty_with_problems_first=({}, teams(497, 495, 499, 496, 494, *range(45))),
    fifty_by_name=(BY_NAME, teams(*range(50))),
    the_last_page=({"page": "10", **BY_NAME}, teams(*range(450, 500))),
    a_page_that_is_not_there=({"page": "99", **BY_NAME}, teams(*range(450, 500))),
    a_page_that_is_no_number=({"page": "two", **BY_NAME}, teams(*range(50))),
    searched=({"search": " M-49 ", **BY_NAME}, teams(*range(490, 500))),
    searched_by_holder=({"search": "llama"}, teams(498)),
    nothing_found=({"search": "<b>"}, []),
    only_problems=({"problems": "1", **BY_NAME}, teams(495, 496, 497, 499)),
    only_problems_the_worst_first=({"problems": "1"}, teams(497, 495, 499, 496)),
    the_fullest_of_those_found=({"search": "49", "sort": "fullest first"}, teams(499)),
    of_an_order_that_is_not_known=({"sort": "x", "search": "49"}, teams(497, 495, 499, 496, 494)),
    the_most_pending_first=({"sort": "most pending first"}, teams(494, 0)),
)
def test_the_quotas_that_the_address_asks_for(query: Mapping[str, str], want: list[str]) -> None:
    assert names(shown("/", query))[: len(want) or 1] == want


def test_links_to_other_pages_keep_what_was_asked_for() -> None:
    text = shown("/", {"search": "team", "sort": "most denied first", "page": "2"})

    assert re.findall(r'rel="(\w+)" href="([^"]+)"', text)[-2:] == [
        ("prev", "?search=team&amp;sort=most+denied+first#quotas"),
        ("next", "?search=team&amp;sort=most+denied+first&amp;page=3#quotas"),
    ]
    assert "500 of 500 namespaces, 4 with problems" in text
    assert "<option selected>most denied first" in text


def test_a_few_quotas_need_no_search() -> None:
    text = shown("/", {}, status(QUOTAS[:10]))

    assert "search" not in text.partition("<footer>")[0]
    assert len(names(text)) == 10


def test_denials_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[int] = []

    def offers(
        _self: object, denials: Sequence[DeniedOwner], _now: datetime
    ) -> dict[DeniedOwner, ObjectProposal]:
        offered.append(len(denials))
        return {}

    monkeypatch.setattr(DenialProposals, "of", offers)
    text = shown("/denials", {"page": "3"})

    assert (text.count('class="card denied"'), offered) == (20, [20])


def test_denials_by_namespace_begin_with_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DenialProposals, "of", lambda *_: {})
    denials = [
        DeniedOwner(
            namespace=f"team-{n % 60:02}", owner=f"Job/{n}", count=n, first=NOW, last=NOW, message="no"
        )
        for n in range(120)
    ]
    text = shown("/denials", {}, msgspec.structs.replace(status(), denials=tuple(denials)))
    sums = text.partition('id="sums-title"')[2]

    assert re.findall(r'href="/quotas/team-(\d+)".*?<b>(\d+)</b>', sums, re.DOTALL) == [
        (f"{n}", f"{2 * n + 60}") for n in range(59, 49, -1)
    ]
    assert "and 50 more" in sums


def test_of_many_findings_the_first_errors_are_shown() -> None:
    found = [warning("untainted-gpu-node", f"Node {n}", "must have a taint", "taint it") for n in range(500)]
    installation = InstallationStatus(
        findings=(*found, failure("crd-missing", "CRD/a", "is not there", "apply"))
    )
    card = shown("/", {}, msgspec.structs.replace(status(), installation=installation))
    card = card.partition('id="installation"')[2].partition("</section>")[0]

    assert re.findall(r"(CRD/a|Node \d+) ", card) == ["CRD/a", *(f"Node {n}" for n in range(9))]
    assert "and 491 more: gpu-admission doctor has all" in card


def test_of_many_nodes_the_first_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Explanation(
        kind="Pod",
        namespace="team",
        name="a",
        at=NOW,
        answer=Answer.PENDING,
        summary="it waits",
        nodes=tuple(NodeFit(name=f"a100-{n}", kind="", free=None, allocatable={}) for n in range(500)),
    )
    monkeypatch.setattr(console, "_why_content", lambda *_: {"found": found})
    text = shown("/why", {"object": "pod/a"})

    assert re.findall(r">(a100-\d+)<", text) == [f"a100-{n}" for n in range(10)]
    assert "and 490 more: gpu-admission why -o json has all" in text


def test_the_page_of_a_quota_has_the_first_and_a_link_to_all() -> None:
    owners = tuple(pending("team", f"Job/{n}") for n in range(100))
    denials = tuple(msgspec.structs.replace(each, namespace="team") for each in DENIALS)
    found = msgspec.structs.replace(status((quota(0, namespace="team", pending=owners),)), denials=denials)
    text = shown("/quotas/team", {}, found)

    assert len(re.findall(r"<strong>Job/\d+</strong>", text)) == 2 * 10
    assert re.findall(r'href="/why\?namespace=team">10 of (\d+): more in Why\?<', text) == ["100", "120"]


def test_a_holder_whose_gpus_are_not_known_is_shown_by_what_is() -> None:
    """The status of a GPUQuota names the largest five of each dimension."""
    rows = tuple(QuotaRow(key=key, hard=HARD, used=HARD) for key in ("gpus", "classes/nvidia-l4"))
    holders = (
        QuotaHolder(name="Job/train", held={"gpus": Fraction(4)}),
        QuotaHolder(name="Job/sixth", held={"classes/nvidia-l4": Fraction(23, 7)}),
    )
    text = shown("/quotas/team", {}, status((quota(0, namespace="team", rows=rows, holders=holders),)))

    cells = re.findall(r'<td class="number"><b>([^<]+)</b>(?: <span class="soft">([^<]+))?', text)
    assert cells == [("4", ""), ("3.29", "nvidia-l4")]


PROBLEMS = tuple(
    OwnerProblem(
        answer=Answer.PENDING if number % 2 else Answer.DENIED,
        namespace="ml",
        owner=f"Job/job-{number}",
        count=number,
        first=NOW,
        last=NOW,
        message=f"exceeded {number}",
    )
    for number in range(120)
)


@cases(
    ("query", "rows", "said"),
    a_page=({}, 50, "120 of 120"),
    the_last_page=({"page": "3"}, 20, "page 3 of 3"),
    searched_by_owner=({"search": "job-11"}, 11, "11 of 120"),
    searched_by_message=({"search": "EXCEEDED 119"}, 1, "1 of 120"),
    nothing_found=({"search": "<b>"}, 0, "Nothing has these words."),
)
def test_what_is_denied_or_pending_is_listed_and_searched(
    monkeypatch: pytest.MonkeyPatch, query: Mapping[str, str], rows: int, said: str
) -> None:
    found = OwnerProblems(namespace="home", at=NOW, since=NOW, problems=PROBLEMS)
    monkeypatch.setattr(console, "read_problems", lambda *_: found)
    text = shown("/why", query)

    assert text.count('<a class="name" href="/why?object=') == rows
    assert said in text


@cases(
    ("asked", "omitted", "title"),
    an_administrator=("", (), "all namespaces"),
    a_tenant=("", ("list pods in all namespaces",), "home"),
    one_namespace=("ml", (), "ml"),
)
def test_what_is_listed_without_an_object(
    monkeypatch: pytest.MonkeyPatch, asked: str, omitted: tuple[str, ...], title: str
) -> None:
    def read(_api: Any, namespace: str, _now: datetime) -> OwnerProblems:
        lacking = () if namespace else omitted
        return OwnerProblems(namespace=namespace, at=NOW, since=NOW, problems=PROBLEMS[:1], omitted=lacking)

    monkeypatch.setattr(console, "read_problems", read)
    text = shown("/why", {"namespace": asked})

    assert f"Denied or pending in {title}<" in text
    assert '<a class="name" href="/why?object=Job/job-0&amp;namespace=ml"' in text
    assert ('in <a href="/quotas/ml">ml</a>' in text) is (title == "all namespaces")


def test_the_page_of_a_quota_has_its_long_lists_in_the_main_column() -> None:
    found = status((quota(0, namespace="team", pending=(pending("team", "Job/a"),)),))
    main, beside = shown("/quotas/team", {}, found).split('<div class="stack">')[1:]

    assert re.findall(r'<section class="card" id="(\w+)"', main) == ["chart", "pending", "denials"]
    assert re.findall(r'<section class="card" id="(\w+)"', beside) == ["holders"]


@cases(
    ("injected", "want"),
    a_stored_pod_has_everything=((), False),
    a_template=((("plus", "+x"),), True),
)
def test_what_the_webhook_adds_is_shown_where_it_adds_something(
    monkeypatch: pytest.MonkeyPatch, injected: tuple[tuple[str, str], ...], want: bool
) -> None:
    found = Explanation(
        kind="Pod", namespace="team", name="a", at=NOW, answer=Answer.RUNNING, summary="it runs"
    )
    offer = ObjectProposal(
        title="Pod/a", verdict=StoredObjectVerdict.ACCEPTED, is_accepted=True, injected=injected
    )
    monkeypatch.setattr(console, "_why_content", lambda *_: {"found": found, "offer": offer})

    assert ("What the webhook adds" in shown("/why", {"object": "pod/a"})) is want


def test_every_page_of_quotas_says_that_no_controller_leads() -> None:
    found = msgspec.structs.replace(status(), figures_until=NOW)
    said = [
        "not counted now: no controller leads; gpu-admission doctor says why." in shown(path, {}, found)
        for path in ("/", "/quotas/team-001")
    ]
    assert said == [True, True]
    assert "no controller has led" not in shown("/", {})


@cases(
    ("no_room", "want"),
    room=("", 0),
    none_now=("exceeded quota: a/default, requested 2 GPUs, 8 of 8 used", 1),
)
def test_a_correction_that_the_rules_accept_may_wait_for_the_quota(
    monkeypatch: pytest.MonkeyPatch, no_room: str, want: int
) -> None:
    offer = ObjectProposal(
        title="Job/0",
        verdict=StoredObjectVerdict.DENIED,
        is_accepted=True,
        no_room=no_room,
        correction=(("plus", "+x"),),
    )
    monkeypatch.setattr(DenialProposals, "of", lambda *_: {DENIALS[0]: offer})
    text = shown("/denials", {})

    assert "The rules accept Job/0 with this change:" in text
    assert text.count(f"With it, the quota has no room now: {no_room}.") == want


LINE = WaitingPods(
    pods=9,
    since="2026-11-22T06:02:00Z",
    demand={"gpus": Fraction(9)},
    next=(
        PlaceInLine(
            name="train-0",
            gang="Job/train",
            pods=8,
            place=1,
            since="2026-11-22T06:02:00Z",
            demand={"gpus": Fraction(8)},
            reason="Next",
            message="next in line, needs 8 GPUs, 5 of 16 free; largest holders: Job/<llama> 8",
        ),
    ),
)


@cases(
    ("path", "part", "link"),
    overview=("/", "waiting", '<a class="name" href="/quotas/team-001"'),
    of_a_namespace=(
        "/quotas/team-001",
        "line",
        '<a class="name" href="/why?object=Job/train&amp;namespace=team-001"',
    ),
)
def test_who_waits_in_line_and_what_frees_it(path: str, part: str, link: str) -> None:
    text = shown(path, {}, status((quota(1, waiting=LINE), quota(2))))
    card = text.partition(f'id="{part}"')[2].partition("</section>")[0]

    assert link in card
    assert "next in line, needs 8 GPUs, 5 of 16 free; largest holders: Job/&lt;llama&gt; 8" in card
    assert "9 GPUs" in card


def test_where_nobody_waits_there_is_no_line() -> None:
    assert 'id="waiting"' not in shown("/", {}, status((quota(2),)))
    assert 'id="line"' not in shown("/quotas/team-002", {}, status((quota(2),)))


NOTHING_SMALLER = SizeReport(hours=336, by_hour=True, workloads=(), fitting=0, unjudged={}, omitted=())


@cases(
    ("observed", "want"),
    a_workload_that_could_be_smaller=(
        (right_size(peaks("9.2", "0.1")), ""),
        [
            "1642.5 GPU-hours a month",
            "<strong>Deployment/chat</strong>",
            "set nvidia.com/mig-1g.20gb: 1 instead of nvidia.com/gpu: 1: saves 1642.5 of 2190 GPU-hours a month",
            "peak memory 9.2 GiB × 1.25 = 11.5 of 20 GiB",
        ],
    ),
    nothing_to_make_smaller=((NOTHING_SMALLER, ""), ["No workload could be smaller."]),
    nothing_read_yet=((None, ""), ["Peaks are being read."]),
    a_prometheus_that_is_away=(
        (None, "Prometheus at https://p did not answer"),
        ["Prometheus at https://p did not answer"],
    ),
)
def test_a_card_of_workloads_that_could_be_smaller(
    observed: tuple[SizeReport | None, str], want: list[str]
) -> None:
    sizes = SimpleNamespace(observation=lambda *, waits: observed if not waits else None)

    card = (
        shown("/", {}, sizes=cast(Observer[SizeReport], sizes))
        .partition('id="sizes"')[2]
        .partition("</section>")[0]
    )

    assert [each for each in want if each not in card] == []


def test_without_a_prometheus_the_page_says_nothing_of_sizes() -> None:
    assert 'id="sizes"' not in shown("/", {})
