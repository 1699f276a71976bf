"""Owners of pods and PodDisruptionBudgets, read from API servers that answer as the tests say."""

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from policies.pods.label_selector import LabelSelector
from policies.pods.pod import OwnerReference
from tests.builders import JSON, uid
from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, status
from webhook.cluster.namespaces import MAX_PDBS_BYTES, pdb_selectors_by
from webhook.configuration.loader import load_directory
from webhook.evaluation.facts import OwnerUnread
from webhook.serving import owner_deadlines
from webhook.serving.owner_deadlines import OwnerDeadlines

KINDS = load_directory(None).workload_kinds
JOB = KINDS["batch", "Job"]


def reference(name: str = "train", **tweaks: Any) -> OwnerReference:
    fields = {"api_version": "batch/v1", "kind": "Job", "name": name, "uid": uid("train"), "controller": True}
    return OwnerReference(**{**fields, **tweaks})


def body(document: JSON) -> Answer:
    return Answer(json.dumps(document).encode())


TRAIN = body({"metadata": {"uid": uid("train")}, "spec": {"activeDeadlineSeconds": 600}})


def always(answer: Answer = TRAIN) -> Callable[[Request], Answer]:
    return lambda _request: answer


def test_a_deadline_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ApiServer(tmp_path, always()) as server:
        owners = OwnerDeadlines(server.client())
        found = [owners.lookup(monotonic() + 10)("team", reference(), JOB) for _ in range(3)]
        read = [each.path for each in server.requests]
        monkeypatch.setattr(owner_deadlines, "monotonic", lambda: monotonic() + owner_deadlines.CACHE_SECONDS)
        owners.lookup(monotonic() + 100)("team", reference(), JOB)

    assert found == [600] * 3
    assert read == ["/apis/batch/v1/namespaces/team/jobs/train"]
    assert len(server.requests) == 2


DEEP = b"[" * 5_000 + b"]" * 5_000


def test_a_deeply_nested_job_does_not_hide_its_deadline(tmp_path: Path) -> None:
    document = b'{"metadata":{"uid":"%s"},"spec":{"activeDeadlineSeconds":600,"a":%s}}'
    answer = Answer(document % (uid("train").encode(), DEEP))
    with ApiServer(tmp_path, always(answer)) as server:
        assert OwnerDeadlines(server.client()).lookup(monotonic() + 10)("team", reference(), JOB) == 600


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_deadlines, "MAX_OWNERS", 2)
    with ApiServer(tmp_path, always()) as server:
        owners = OwnerDeadlines(server.client())
        for name in ("a", "b", "c", "c", "a"):
            owners.lookup(monotonic() + 10)("team", reference(name), JOB)

    assert [each.path[-1] for each in server.requests] == ["a", "b", "c", "a"]


@cases(
    ("owner", "answer", "reads"),
    a_job_without_deadline=(reference(), body({"metadata": {"uid": uid("train")}, "spec": {}}), 1),
    another_job_of_that_name=(reference(), body({"metadata": {"uid": "x"}, "spec": {"activeDeadlineSeconds": 9}}), 1),
    no_such_job=(reference(), status(404, "not found", "NotFound"), 1),
    a_name_that_no_job_has=(reference("../../secrets"), TRAIN, 0),
    a_uid_that_no_job_has=(reference(uid="x" * 1_000_000), TRAIN, 0),
    a_version_that_none_has=(reference(api_version=f"batch/{'v' * 1_000_000}"), TRAIN, 0),
)  # fmt: skip
def test_no_deadline(tmp_path: Path, owner: OwnerReference, answer: Answer, reads: int) -> None:
    with ApiServer(tmp_path, always(answer)) as server:
        assert OwnerDeadlines(server.client()).lookup(monotonic() + 10)("team", owner, JOB) is None

    assert len(server.requests) == reads


@cases(
    ("answer", "seconds", "want"),
    no_right=(status(403, 'jobs "train" is forbidden', "Forbidden"), 10, "is forbidden"),
    not_json=(Answer(b"<html>"), 10, "malformed"),
    nested_too_deeply_and_not_json=(Answer(b'{"metadata":' * 10_000), 10, "malformed"),
    no_time=(TRAIN, 0, "no time was left to ask the API server"),
)
def test_what_cannot_be_read(tmp_path: Path, answer: Answer, seconds: float, want: str) -> None:
    with ApiServer(tmp_path, always(answer)) as server:
        lookup = OwnerDeadlines(server.client()).lookup(monotonic() + seconds)
        with pytest.raises(OwnerUnread, match=want):
            lookup("team", reference(), JOB)


SELECTOR: JSON = {"matchLabels": {"app": "chat"}}


def page(*budgets: JSON, **metadata: Any) -> Answer:
    return body({"metadata": metadata, "items": [{"spec": each} for each in budgets]})


CHAT = LabelSelector(match_labels={"app": "chat"})


@cases(
    ("answer", "seconds", "want"),
    one=(page({"selector": SELECTOR}), 10, (CHAT,)),
    one_without_selector_selects_nothing=(page({}, {"selector": SELECTOR}), 10, (CHAT,)),
    none=(page(), 10, ()),
    more_than_a_page=(page({"selector": SELECTOR}, **{"continue": "more"}), 10, None),
    one_that_is_nested_too_deeply=(
        Answer(b'{"metadata":{},"items":[{"status":%s,"spec":{}}]}' % DEEP),
        10,
        (),
    ),
    as_large_as_is_read=(Answer(b'{"metadata":{}}'.ljust(MAX_PDBS_BYTES)), 10, ()),
    too_large=(Answer(b'{"metadata":{}}'.ljust(MAX_PDBS_BYTES + 1)), 10, None),
    no_right=(status(403, "forbidden", "Forbidden"), 10, None),
    not_json=(Answer(b"<html>"), 10, None),
    no_time=(page(), 0, None),
)
def test_budgets(tmp_path: Path, answer: Answer, seconds: float, want: object) -> None:
    with ApiServer(tmp_path, always(answer)) as server:
        assert pdb_selectors_by(server.client(), "team", monotonic() + seconds) == want
