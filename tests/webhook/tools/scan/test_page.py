"""The page of a scan: it needs nothing else, and what a cluster says cannot become part of it."""

import re
from fractions import Fraction

import msgspec

from tests.webhook.commands.rightsizing import report as right_size
from tests.webhook.tools.rightsize.peaks import peaks
from tests.webhook.tools.scan.evaluated import EMPTY_REPORT, NOTHING_PROPOSED
from webhook.cluster.capacity import ClassCapacity
from webhook.tools.scan.report import (
    Effect,
    FoundProblem,
    NamespaceUse,
    PlannedChange,
    Remark,
    page,
)

HOSTILE = '<script>alert("x")</script>'
REPORT = msgspec.structs.replace(
    EMPTY_REPORT,
    omitted=("list nodes",),
    pods=3,
    gpu_pods=2,
    workloads=1,
    pod_effects={Effect.DENIED: 1},
    rules={"gpu-class": {Effect.DENIED: 1}},
    problems=(
        FoundProblem(
            namespace="team", owner=HOSTILE, rule="gpu-class", effect=Effect.DENIED, sentence=HOSTILE, pods=1, is_written=True
        ),
    ),
    changes=(PlannedChange(namespace="team", owner="Pod/a", rule="gpu-class", change=HOSTILE, pods=1),),
    left_out=4,
    namespaces=(
        NamespaceUse(
            namespace="team", policy="default", pods=3, gpu_pods=2, effects={},
            gpus=Fraction(2), classes={"l4": Fraction(2)}, resources={},
        ),
    ),
    classes={"": ClassCapacity(nodes=1)},
    unread=(Remark(subject="Resource x/y", message=HOSTILE, remedy=""),),
    proposal=msgspec.structs.replace(NOTHING_PROPOSED, files={"gpuquotas.yaml": HOSTILE}, denied=0),
)  # fmt: skip


def test_it_needs_nothing_else() -> None:
    text = page(REPORT)

    assert re.findall(r"<(?:script|link|img|iframe|base|form)\b", text) == []
    assert re.findall(r"(?:src|href)=|url\(|@import|https?://", text) == []
    assert "default-src 'none'" in text
    assert "color-scheme: light dark" in text


def test_texts_of_the_cluster_are_escaped() -> None:
    text = page(REPORT)

    assert HOSTILE not in text
    assert text.count("&lt;script&gt;") == 5


def test_it_says_what_is_left_out_and_what_was_tried() -> None:
    text = page(REPORT)

    assert "not read: you may not list nodes" in text
    assert "not shown: 4 more findings and changes" in text
    assert "none of the pods would be denied" in text
    assert "of no known class" in text


def test_of_many_findings_a_click_shows_all_but_the_first() -> None:
    (one,) = REPORT.problems
    many = tuple(msgspec.structs.replace(one, sentence=f"finding {number:03}") for number in range(500))
    shown, _, hidden = page(msgspec.structs.replace(REPORT, problems=many)).partition("480 more findings")

    assert re.findall(r"finding \d+", shown) == [each.sentence for each in many[:20]]
    assert re.findall(r"finding \d+", hidden) == [each.sentence for each in many[20:]]
    assert "more findings<" not in page(msgspec.structs.replace(REPORT, problems=many[:20]))


def test_of_many_namespaces_a_click_shows_all_but_the_largest() -> None:
    (one,) = REPORT.namespaces
    many = tuple(msgspec.structs.replace(one, namespace=f"team-{number:03}") for number in range(500))
    shown, _, hidden = page(msgspec.structs.replace(REPORT, namespaces=many)).partition(
        "450 more, with fewer GPUs"
    )

    assert re.findall(r"team-\d+", shown) == [each.namespace for each in many[:50]]
    assert re.findall(r"team-\d+", hidden) == [each.namespace for each in many[50:]]
    assert "with fewer GPUs" not in page(msgspec.structs.replace(REPORT, namespaces=many[:50]))


def test_workloads_that_could_be_smaller_are_a_paragraph() -> None:
    sizes = right_size(peaks("9.2", "0.1"))
    (workload,) = sizes.workloads
    hostile = msgspec.structs.replace(
        sizes, workloads=(msgspec.structs.replace(workload, owner=HOSTILE),) * 7
    )

    text = page(msgspec.structs.replace(REPORT, right_size=hostile))

    advice = (
        "set nvidia.com/mig-1g.20gb: 1 instead of nvidia.com/gpu: 1: saves 1642.5 of 2190 GPU-hours a month"
    )
    assert (HOSTILE in text, text.count(advice)) == (False, 7)
