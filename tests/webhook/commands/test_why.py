"""What `gpu-admission why` prints of what it found, and what it refuses; what it finds: tests/webhook/tools/why/."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import cluster
from webhook.commands import main, why
from webhook.commands.output import Screen
from webhook.tools.status.summaries import QuotaState
from webhook.tools.why.explanation import (
    Answer,
    Cause,
    Explanation,
    NodeFit,
    ObservedEvent,
    PodState,
    QuotaDemand,
    QuotaFit,
    RuleSentence,
    Source,
)
from webhook.tools.why.problems import OwnerProblem, OwnerProblems

AT = datetime(2027, 1, 1, 12, tzinfo=UTC)
EARLIER = datetime(2027, 1, 1, 7, 13, tzinfo=UTC)
GPU = "nvidia.com/gpu"


def problem(answer: Answer, count: int, owner: str = "Job/train", first: datetime = EARLIER) -> OwnerProblem:
    return OwnerProblem(
        answer=answer,
        namespace="team",
        owner=owner,
        count=count,
        first=first,
        last=AT,
        message="set nvidia.com/gpu\nin limits",
    )


def listing(*problems: OwnerProblem, namespace: str = "team", **given: Any) -> OwnerProblems:
    return OwnerProblems(
        namespace=namespace, at=AT, since=given.pop("since", None), problems=problems, **given
    )


@cases(
    ("found", "want"),
    nothing=(listing(), "team: nothing is denied, or pending for longer than a minute\n"),
    nothing_that_could_be_read=(
        listing(namespace="", omitted=("list pods in all namespaces",)),
        "all namespaces: nothing that could be read is denied, or pending for longer than a minute\n"
        "\n"
        "you may not list pods in all namespaces: what depends on it is not shown\n",
    ),
    of_a_namespace=(
        listing(
            problem(Answer.DENIED, 3),
            problem(Answer.DENIED, 1, "Job/once", AT),
            problem(Answer.DENIED, 0, "Deployment/chat"),
            problem(Answer.PENDING, 2, "Job/late"),
            problem(Answer.GATED, 1, "Pod/gated"),
            since=EARLIER,
        ),
        "team: 5 problems, denials seen since 07:13 UTC\n"
        "\n"
        "  Job/train: denied 3 times, from 07:13 UTC to 12:00 UTC\n"
        "    set nvidia.com/gpu in limits\n"
        "\n"
        "  Job/once: denied once, at 12:00 UTC\n"
        "    set nvidia.com/gpu in limits\n"
        "\n"
        "  Deployment/chat: denied since 07:13 UTC\n"
        "    set nvidia.com/gpu in limits\n"
        "\n"
        "  Job/late: 2 pods pending since 07:13 UTC\n"
        "    set nvidia.com/gpu in limits\n"
        "\n"
        "  Pod/gated: 1 pod gated since 07:13 UTC\n"
        "    set nvidia.com/gpu in limits\n",
    ),
    many_of_all_namespaces=(
        listing(*[problem(Answer.WAITING, 1)] * 52, namespace=""),
        "all namespaces: 52 problems\n" + "\n"
        "  team Job/train: 1 pod waiting since 07:13 UTC\n"
        "    set nvidia.com/gpu in limits\n" * 50 + "\n"
        "  2 more problems: -n NAMESPACE lists all of a namespace, -o json all\n",
    ),
    one_more_than_is_shown=(
        listing(*[problem(Answer.WAITING, 1)] * 51, namespace=""),
        "all namespaces: 51 problems\n" + "\n"
        "  team Job/train: 1 pod waiting since 07:13 UTC\n"
        "    set nvidia.com/gpu in limits\n" * 50 + "\n"
        "  1 more problem: -n NAMESPACE lists all of a namespace, -o json all\n",
    ),
)
def test_what_is_printed_of_problems(
    found: OwnerProblems, want: str, capsys: pytest.CaptureFixture[str]
) -> None:
    why.show_problems(Screen(), found)

    assert capsys.readouterr().out == want


def node(name: str, kind: str, free: int | None, against: tuple[str, ...] = (), number: int = 1) -> NodeFit:
    return NodeFit(
        name=name,
        kind=kind,
        free=None if free is None else {GPU: Fraction(free)},
        allocatable={GPU: Fraction(4)},
        against=against,
        number=number,
    )


def explanation(answer: Answer, summary: str, **given: Any) -> Explanation:
    return Explanation(
        kind="Job", name="train", namespace="team", at=AT, answer=answer, summary=summary, **given
    )


REFUSED = explanation(
    Answer.DENIED,
    "0 of 4 pods exist: rule gpu-class denies them",
    pods_wanted=4,
    reasons=(
        Cause(
            source=Source.POLICY,
            message="must name a class",
            remedy="set the annotation",
            reason="ClassMissing",
            details=("a class of this policy",),
        ),
        Cause(source=Source.QUOTA, message="2 GPUs too many", remedy="request fewer"),
        Cause(source=Source.EVENT, message="Error creating:\nno"),
        Cause(source=Source.CONTROLLER, message="nvidia-a10 is no class", remedy="did you mean nvidia-a100?"),
        Cause(source=Source.POD, message="exit code 1", remedy="read its log"),
    ),
    policy="default",
    verdicts=(
        RuleSentence(outcome="denied", sentence="must name a class", reason="ClassMissing"),
        RuleSentence(outcome="warned", sentence="must have a limit"),
    ),
    requested={GPU: Fraction(2)},
    classes=("nvidia-t4", "nvidia-l4"),
    quota=QuotaFit(is_held=False, state=QuotaState.READY, rows=()),
    nodes=(
        node("a", "nvidia-t4", 1, ("it is cordoned", "1 GPU is missing")),
        node("b", "", 4),
        node("c", "nvidia-l4", 0, ("has 0 of 4 nvidia.com/gpu free, and the pod requests 2",)),
        node("", "nvidia-l4", None, number=3),
    ),
    pods=(
        PodState(name="train-0", phase="Pending", node="a", reason="ImagePullBackOff"),
        PodState(name="train-1", phase="Pending"),
    ),
    pods_total=4,
    events=(
        ObservedEvent(about="Job/train", reason="FailedCreate", message="denied\nit", count=3, last=AT),
        ObservedEvent(about="Pod/train-0", reason="Failed", message="no image", count=1, last=None),
    ),
    omitted=("list nodes",),
    nodes_from="nodes are those that the controller published",
)
SCHEDULER = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
NODES = "  nodes      a (nvidia-t4) 4 of 4 nvidia.com/gpu free\n"
MORE_NODES = "             a (nvidia-t4) 4 of 4 nvidia.com/gpu free\n"


@cases(
    ("found", "want"),
    denied=(
        REFUSED,
        "Job/train in team: denied\n"
        "  0 of 4 pods exist\n"
        "  policy     must name a class\n"
        "             fix first: set the annotation\n"
        "             a class of this policy\n"
        "  quota      2 GPUs too many\n"
        "             then fix: request fewer\n"
        "  event      Error creating: no\n"
        "  controller nvidia-a10 is no class\n"
        "             did you mean nvidia-a100?\n"
        "  pod        exit code 1\n"
        "             fix: read its log\n"
        "\n"
        "what is known\n"
        "  requests   2 nvidia.com/gpu, on nvidia-t4 or nvidia-l4\n"
        "  policy     default: denies the pod, for 1 reason\n"
        "             warned: must have a limit\n"
        "  quota      Ready; the pod itself requests nothing that it limits\n"
        "  nodes      a (nvidia-t4) 1 of 4 nvidia.com/gpu free: it is cordoned, and 1 GPU is missing\n"
        "             b (unknown class) 4 of 4 nvidia.com/gpu free\n"
        "             c (nvidia-l4) has 0 of 4 nvidia.com/gpu free, and the pod requests 2\n"
        "             3 nodes of nvidia-l4, at most ? of 4 nvidia.com/gpu free\n"
        "  pods       train-0 Pending on a: ImagePullBackOff\n"
        "             train-1 Pending\n"
        "             and 2 more\n"
        "  events     12:00 UTC Job/train FailedCreate, 3 times: denied it\n"
        "             Pod/train-0 Failed, 1 time: no image\n"
        "\n"
        "nodes are those that the controller published\n"
        "\n"
        "you may not list nodes: what depends on it is not shown\n",
    ),
    stopped=(
        explanation(Answer.STOPPED, "it is suspended: spec.suspend is true", nodes=()),
        "Job/train in team: stopped\n"
        "  it is suspended: spec.suspend is true\n"
        "\n"
        "what is known\n"
        "  requests   no GPU resource of a node\n"
        "  policy     not known\n"
        "  nodes      no node has one of these classes\n",
    ),
    the_first_of_several_obstacles_is_a_question=(
        explanation(
            Answer.DENIED,
            "no",
            pods_wanted=1,
            reasons=(
                Cause(
                    source=Source.POLICY, message="nvidia-a10 is no class", remedy="did you mean nvidia-a100?"
                ),
                Cause(source=Source.QUOTA, message="2 GPUs too many", remedy="request fewer"),
            ),
        ),
        "Job/train in team: denied\n"
        "  policy     nvidia-a10 is no class\n"
        "             fix first: did you mean nvidia-a100?\n"
        "  quota      2 GPUs too many\n"
        "             then fix: request fewer\n"
        "\n"
        "what is known\n"
        "  requests   no GPU resource of a node\n"
        "  policy     not known\n",
    ),
    a_change_that_was_denied=(
        explanation(
            Answer.DENIED,
            "it keeps its gate",
            policy="default",
            events=(
                ObservedEvent(about="Pod/train", reason="FailedUpdate", message="no", count=2, last=None),
            ),
        ),
        "Job/train in team: denied\n"
        "  it keeps its gate\n"
        "\n"
        "what is known\n"
        "  requests   no GPU resource of a node\n"
        "  policy     default: no rule denies the pod as it is now\n"
        "  events     Pod/train FailedUpdate, 2 times: no\n",
    ),
    what_the_scheduler_says_once=(
        explanation(
            Answer.PENDING,
            f"0 of 2 pods run: Pod train-0 finds no node: {SCHEDULER}",
            pods_wanted=2,
            reasons=(Cause(source=Source.SCHEDULER, message=f"Pod train-0 finds no node: {SCHEDULER}"),),
            pods=(
                PodState(name="train-0", phase="Pending", reason=SCHEDULER),
                PodState(
                    name="train-1", phase="Pending", reason="0/3 nodes are available: 3 Insufficient cpu."
                ),
            ),
            pods_total=2,
            events=(
                ObservedEvent(
                    about="Pod/train-0", reason="FailedScheduling", message=SCHEDULER, count=4, last=None
                ),
            ),
        ),
        "Job/train in team: pending\n"
        "  0 of 2 pods run\n"
        f"  scheduler  Pod train-0 finds no node: {SCHEDULER}\n"
        "\n"
        "what is known\n"
        "  requests   no GPU resource of a node\n"
        "  policy     not known\n"
        "  pods       train-0 Pending\n"
        "             train-1 Pending: 0/3 nodes are available: 3 Insufficient cpu.\n"
        "  events     Pod/train-0 FailedScheduling, 4 times\n",
    ),
    a_quota_that_is_not_counted_now=(
        explanation(Answer.RUNNING, "1 of 1 pods run", figures_until=AT - timedelta(seconds=45)),
        "Job/train in team: running\n"
        "  1 of 1 pods run\n"
        "\n"
        "what is known\n"
        "  requests   no GPU resource of a node\n"
        "  policy     not known\n"
        "             quotas as of 45 s ago (11:59:15 UTC), not counted now: no controller leads; "
        "gpu-admission doctor says why\n",
    ),
    one_pod_that_fits_nowhere=(
        explanation(
            Answer.PENDING,
            "no node has 2 GPUs free",
            pods_wanted=1,
            reasons=(Cause(source=Source.NODES, message="no node has 2 GPUs free", remedy="wait"),),
            policy="default",
            requested={GPU: Fraction(2)},
            nodes=(node("a", "nvidia-t4", 4),) * 12,
        ),
        "Job/train in team: pending\n"
        "  nodes      no node has 2 GPUs free\n"
        "             fix: wait\n"
        "\n"
        "what is known\n"
        "  requests   2 nvidia.com/gpu\n"
        "  policy     default: no rule denies the pod\n"
        f"{NODES}{MORE_NODES * 9}"
        "             and 2 nodes more\n",
    ),
)
def test_what_is_printed_of_an_explanation(
    found: Explanation, want: str, capsys: pytest.CaptureFixture[str]
) -> None:
    why.show(Screen(), found)

    assert capsys.readouterr().out == want


def demand(used: int | None = 7, reserved: int = 0) -> QuotaDemand:
    return QuotaDemand(
        key="gpus",
        hard=Fraction(16),
        used=None if used is None else Fraction(used),
        reserved=Fraction(reserved),
        requested=Fraction(4),
    )


@cases(
    ("quota", "want"),
    it_limits_nothing_of_the_pod=(
        QuotaFit(is_held=False, state=QuotaState.NOT_COUNTED, rows=()),
        ["NotCounted; the pod itself requests nothing that it limits"],
    ),
    others_are_being_created=(
        QuotaFit(is_held=False, state=QuotaState.READY, rows=(demand(reserved=2),)),
        ["gpus: 7 of 16 used and 2 being created; the pod requests 4"],
    ),
    held_for_long=(
        QuotaFit(is_held=True, state=QuotaState.READY, rows=(demand(),), unbound_since=EARLIER),
        [
            "gpus: 7 of 16 used, 4 by this pod",
            "held without a node since 07:13 UTC: nobody else gets it until the pod is deleted",
        ],
    ),
    not_counted=(
        QuotaFit(is_held=False, state=QuotaState.READY, rows=(demand(used=None),)),
        ["gpus: ? of 16 used; the pod requests 4"],
    ),
)
def test_what_a_pod_needs_of_the_quota(quota: QuotaFit, want: list[str]) -> None:
    assert [*why.quota_facts(quota, AT)] == want


def run(folder: Path, *arguments: str) -> Result:
    with ApiServer(folder, answering(cluster())) as server:
        return CliRunner().invoke(main, ["why", *arguments, "--kubeconfig", str(server.kubeconfig())])


def test_an_object_that_is_not_there(tmp_path: Path) -> None:
    result = run(tmp_path, "-n", "team", "pods/train")

    assert (result.exit_code, result.stderr) == (
        2,
        "error: no /api/v1/namespaces/team/pods/train in namespace team; "
        "if its creation was denied, nothing was stored, and only the client that created it got the message\n",
    )


@cases(
    "subject",
    a_name_alone=("train",),
    no_name=("job/",),
    no_kind=("/train",),
    several=("job", "train", "other"),
)
def test_what_names_no_object(tmp_path: Path, subject: tuple[str, ...]) -> None:
    result = run(tmp_path, "-n", "team", *subject)

    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        2,
        "Error: name one object as KIND/NAME or KIND NAME, such as job/train",
    )
