"""What was denied, by Events and by audit logs."""

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from webhook.tools.gpu_hours import Counts
from webhook.tools.status.denials import denials_in_events, pods_in_logs
from webhook.tools.status.summaries import AuditedPods

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
OURS = 'Error creating: admission webhook "pods.validate.gpu-admission.dev" denied the request: '
OTHER = 'Error creating: admission webhook "policy.example.com" denied the request: no'

SENTENCE = {"remedy": "set nvidia.com/gpu: 2", "message": "exceeded quota"}


def ago(hours: float) -> str:
    return (NOW - timedelta(hours=hours)).isoformat().replace("+00:00", "Z")


def event(message: str, owner: str, namespace: str = "team", **fields: Any) -> JSON:
    kind, name = owner.split("/")
    involved = {"kind": kind, "name": name, "namespace": namespace}
    return {
        "metadata": {},
        "involvedObject": involved,
        "reason": "FailedCreate",
        "message": message,
        **fields,
    }


def test_events_of_one_owner_are_added_up(tmp_path: Path) -> None:
    events = [
        event(OURS + "first\nmore", "Job/train", count=3, firstTimestamp=ago(6), lastTimestamp=ago(2)),
        event(OURS + "last\nmore", "Job/train", count=1, lastTimestamp=ago(1)),
        event(
            OURS + "a series",
            "Job/serve",
            eventTime=ago(5),
            series={"count": 7, "lastObservedTime": ago(0.5)},
        ),
        event(OURS + "old", "Job/old", lastTimestamp=ago(25)),
        event(OTHER, "Job/other", lastTimestamp=ago(1)),
        event("exceeded quota", "Job/native", lastTimestamp=ago(1)),
        event(OURS + "in a year that Python has not", "Job/never", lastTimestamp="0000-01-01T00:00:00Z"),
    ]

    with ApiServer(tmp_path, answering({"/api/v1/namespaces/team/events": events})) as server:
        found = denials_in_events(server.client(), "team", NOW)
        requested = [(request.path, request.query["fieldSelector"]) for request in server.requests]
    assert [(each.owner, each.count, each.first, each.last, each.message) for each in found] == [
        ("Job/serve", 7, NOW - timedelta(hours=5), NOW - timedelta(hours=0.5), "a series"),
        ("Job/train", 4, NOW - timedelta(hours=6), NOW - timedelta(hours=1), "last"),
    ]
    assert requested == [("/api/v1/namespaces/team/events", "type!=Normal")]


CHANGE = OURS.replace("Error creating", "change by system:serviceaccount:kueue-system:kueue")


def test_a_denied_change_is_the_owners_or_the_pods_and_not_both(tmp_path: Path) -> None:
    change = {"reason": "FailedUpdate", "lastTimestamp": ago(1)}
    events = [
        event(CHANGE + "pod team/a: no", "Pod/a", related={"kind": "Job", "name": "train"}, **change),
        event(CHANGE + "pod team/b: no", "Pod/b", related={"kind": "Job", "name": "train"}, **change),
        event(CHANGE + "pod team/b: no", "Job/train", count=2, **change),
        event(CHANGE + "pod team/bare: no", "Pod/bare", **change),
        event(OURS + "pod team/c: no", "Job/other", lastTimestamp=ago(2)),
    ]
    with ApiServer(tmp_path, answering({"/api/v1/namespaces/team/events": events})) as server:
        found = denials_in_events(server.client(), "team", NOW)
    assert [(each.owner, each.count, each.message, each.of_change) for each in found] == [
        ("Job/train", 2, "pod team/b: no", True),
        ("Pod/bare", 1, "pod team/bare: no", True),
        ("Job/other", 1, "pod team/c: no", False),
    ]


@cases(
    ("message", "reason"),
    of_a_full_quota=("exceeded quota: team/default, requested 1 GPU, 8 of 8 used", "QuotaExceeded"),
    of_a_full_team=("exceeded quota: team vision, requested 1 GPU, 8 of 8 used", "QuotaExceeded"),
    of_a_quota_that_is_too_small=(
        "exceeded quota: team/default, 9 GPUs can never fit: the quota grants 8",
        "QuotaCanNeverFit",
    ),
    of_a_spent_budget=("exceeded budget: team/default, 101 of 100 GPU-hours used this month", "BudgetSpent"),
    of_a_quota_that_nobody_counts=("the quota is not counted yet", "gpu-quota"),
)
def test_the_reason_of_a_denial_by_the_quota(tmp_path: Path, message: str, reason: str) -> None:
    """By its sentence, as the Events of controllers have it: the same for all owners and namespaces."""
    events = [event(f"{OURS}{message} [gpu-quota]", owner, lastTimestamp=ago(1)) for owner in OWNERS]

    assert reasons_of(tmp_path, events) == dict.fromkeys(OWNERS, reason)


@cases(
    ("message", "reason"),
    of_a_rule=("containers[0]: set x: 1; must be y [gpu-requests] (and 1 more)", "gpu-requests"),
    in_words_of_the_quota=("exceeded quota: no [gpu-requests]", "gpu-requests"),
    of_no_rule=("cannot be read", ""),
)
def test_the_rule_of_another_denial(tmp_path: Path, message: str, reason: str) -> None:
    assert reasons_of(tmp_path, [event(OURS + message, "Job/a", lastTimestamp=ago(1))]) == {"Job/a": reason}


OWNERS = ("Deployment/a", "Deployment/b")


def reasons_of(tmp_path: Path, events: list[JSON]) -> dict[str, str]:
    with ApiServer(tmp_path, answering({"/api/v1/events": events})) as server:
        return {each.owner: each.reason for each in denials_in_events(server.client(), "", NOW)}


def test_the_events_of_replicasets_are_their_deployments(tmp_path: Path) -> None:
    """During an update a Deployment has two ReplicaSets that are denied."""

    def replicaset(*owners: JSON) -> JSON:
        return {"metadata": {"name": "x", "ownerReferences": owners}}

    deployment = replicaset({"kind": "Deployment", "name": "chat", "controller": True})
    served = {
        "/api/v1/namespaces/team/events": [
            event(OURS + "old", "ReplicaSet/chat-5d9f8c7b6d", count=2, lastTimestamp=ago(2)),
            event(OURS + "new", "ReplicaSet/chat-7c6b5d4f9d", count=3, lastTimestamp=ago(1)),
            event(OURS + "again", "ReplicaSet/chat-7c6b5d4f9d", lastTimestamp=ago(1.5)),
            event(OURS + "own", "ReplicaSet/written", lastTimestamp=ago(3)),
            event(OURS + "gone", "ReplicaSet/gone-7c6b5d4f9d", lastTimestamp=ago(4)),
            event(OURS + "dots", "ReplicaSet/..", lastTimestamp=ago(5)),
        ],
        "/apis/apps/v1/namespaces/team/replicasets/chat-5d9f8c7b6d": deployment,
        "/apis/apps/v1/namespaces/team/replicasets/chat-7c6b5d4f9d": deployment,
        "/apis/apps/v1/namespaces/team/replicasets/written": replicaset(),
    }
    with ApiServer(tmp_path, answering(served)) as server:
        found = denials_in_events(server.client(), "team", NOW)
        assert len(server.requests) == 5

    assert [(each.owner, each.count, each.message) for each in found] == [
        ("Deployment/chat", 6, "new"),
        ("ReplicaSet/written", 1, "own"),
    ]


def line(owner: str = "Job/train", hours: float = 1, **fields: Any) -> str:
    found = [
        {"rule": "gpu-quota", "outcome": "denied", "reason": "QuotaExceeded"} | SENTENCE,
        {"rule": "spot", "outcome": "warned", "reason": "SpotWithoutCheckpoint"},
    ]
    said = {"time": ago(hours), "phase": "validate", "kind": "Pod", "namespace": "team", "name": "train-0"}
    return json.dumps(
        {**said, "verdict": "denied", "owner": owner, "findings": found, **fields}, separators=(",", ":")
    )


def test_audit_logs_have_every_denial(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(
        "\n".join(
            (
                line(),
                line(hours=2),
                line(owner="", name="alone"),
                line(hours=30),
                line(time="yesterday"),
                line(time="2026-11-22T11:00:00"),
                line(dryRun=True),
                line(verdict="allowed"),
                line(kind="ResourceClaim"),
                line(namespace="other"),
                '{"verdict":"denied", cut short',
            )
        )
    )
    with gzip.open(tmp_path / "b.log.gz", "wt") as packed:
        packed.write(line(hours=0.5, findings=[]))
    lines = Counts()
    found, _ = pods_in_logs([str(tmp_path / "a.log"), str(tmp_path / "b.log.gz")], ["team"], NOW, lines)
    assert found[0].first == NOW - timedelta(hours=2)
    assert [(each.owner, each.count, each.reason, each.message) for each in found] == [
        ("Job/train", 3, "", "denied by the webhook"),
        ("Pod/alone", 1, "QuotaExceeded", "set nvidia.com/gpu: 2; exceeded quota"),
    ]
    assert lines.unreadable == 1


AUDITED = [{"rule": "gpu-requests", "outcome": "audited"}, {"rule": "gpu-quota", "outcome": "audited"}]
REMARK = {"rule": "parallelism", "outcome": "audited", "severity": "warning"}
WARNED = {"rule": "placement", "outcome": "warned"}


@cases(
    ("found", "denied", "by_rule"),
    nothing=([], 0, {}),
    a_warning_in_any_mode=([REMARK, WARNED], 0, {}),
    by_one_rule=([AUDITED[0], REMARK], 1, {"gpu-requests": 1}),
    twice_by_one_rule=([AUDITED[0], AUDITED[0]], 1, {"gpu-requests": 1}),
    by_two_rules=(AUDITED, 1, {"gpu-quota": 1, "gpu-requests": 1}),
)
def test_what_only_audited_is_counted_by_pod(
    found: list[dict[str, str]], denied: int, by_rule: dict[str, int], tmp_path: Path
) -> None:
    create = {"operation": "CREATE", "verdict": "allowed"}
    (tmp_path / "a.log").write_text(
        "\n".join(
            (
                line(hours=170, findings=[], **create),
                line(hours=3, findings=found, **create),
                line(hours=3, findings=found, **create, phase="mutate"),
                line(hours=2, operation="CREATE", phase="mutate"),
                line(hours=1, findings=AUDITED, operation="UPDATE", verdict="allowed"),
                line(hours=1, findings=AUDITED, **create, dryRun=True),
                line(hours=1, findings=AUDITED, **create, namespace="other"),
                line(hours=1, findings=AUDITED, **create, kind="GPUQuota"),
            )
        )
    )
    audited = pods_in_logs([str(tmp_path / "a.log")], ["team"], NOW, Counts()).audited

    assert audited == AuditedPods(
        since=NOW - timedelta(hours=170),
        until=NOW - timedelta(hours=2),
        pods=3,
        denied=denied,
        by_rule=by_rule,
    )


def test_a_log_without_pods_counts_none(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(line(kind="GPUQuota", operation="CREATE"))
    assert pods_in_logs([str(tmp_path / "a.log")], [], NOW, Counts()) == ((), None)
