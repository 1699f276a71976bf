"""GPU-hours from audit logs: what counts, from when to when, and for whom."""

import gzip
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.webhook.tools.audit.lines import LINE, count, moment, validated, written
from webhook.commands.usage import usage
from webhook.tools.audit.reading import LONGEST_LINE


def requested(*arguments: str, stdin: bytes | None = None) -> dict[str, Any]:
    """Return what `gpu-admission usage -o json` prints."""
    result = CliRunner(env={"COLUMNS": None}).invoke(
        usage, ["-o", "json", *arguments], input=stdin, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def hours(found: dict[str, Any]) -> dict[str, str]:
    return {group[found["by"]]: group["gpuHours"] for group in found["groups"]}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([count("released", "a", 0, 90)], "3/2", id="from-its-creation-to-its-end"),
        pytest.param(
            [count("held", "a", 0, 30), count("held", "a", 0, 60)], "1", id="without-an-end-to-its-last-line"
        ),
        pytest.param(
            [count("held", "a", 0, 60), count("released", "a", 0, 90)], "3/2", id="held-and-released-once"
        ),
        pytest.param(
            [count("released", "a", 0, 90), count("released", "a", 0, 91)],
            "3/2",
            id="released-by-two-leaders-once",
        ),
        pytest.param(
            [count("released", "a", 0, 90), count("held", "a", 0, 60)],
            "3/2",
            id="whatever-the-order-of-the-files",
        ),
        pytest.param(
            [count("held", "a", 0, 60), count("held", "a", 0, 30)], "1", id="of-lines-in-any-order-the-latest"
        ),
        pytest.param(
            [count("held", "a", 0, 30, "4"), count("released", "a", 0, 60, "2")],
            "2",
            id="by-the-demand-of-its-last-line",
        ),
        pytest.param([count("released", "a", 0, 60, "2/7")], "2/7", id="parts-of-cards-exactly"),
        pytest.param([validated("a", 0)], "0", id="nothing-for-what-was-only-admitted"),
        pytest.param(
            [validated("a", 0), count("released", "a", 0, 60)], "1", id="admission-and-release-once"
        ),
        pytest.param(
            [count("released", "a", 0, 60), count("released", "b", 0, 60)], "2", id="the-sum-of-two-pods"
        ),
        pytest.param(
            [count("released", name, 0, 60, name) for name in ("2", "1/7", "2/7", "3/4")],
            "89/28",
            id="the-sum-of-parts-exactly",
        ),
        pytest.param([count("released", "a", 60, 0)], "0", id="nothing-where-clocks-disagree"),
    ],
)
def test_what_an_object_is_counted(tmp_path: Path, lines: list[LINE], expected: str) -> None:
    assert requested(written(tmp_path / "audit.jsonl", lines))["gpuHours"] == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(("--since", moment(60)), "1", id="since"),
        pytest.param(("--until", moment(30)), "1/2", id="until"),
        pytest.param(("--since", moment(30), "--until", moment(45)), "1/4", id="between"),
        pytest.param(("--since", moment(120)), "0", id="after-its-end"),
        pytest.param(("--since", "100000d"), "2", id="days-ago"),
    ],
)
def test_only_what_lies_in_the_time_counts(tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    log = written(tmp_path / "audit.jsonl", [count("released", "a", 0, 120)])

    found = requested(log, *arguments)
    assert found["gpuHours"] == expected
    assert len(found["groups"]) == (expected != "0")


def submitted(kind: str, name: str, user: str) -> LINE:
    return validated(name, 0, kind=kind, user=user, demand=None, objectUid="")


CONTROLLER = "system:serviceaccount:kube-system:job-controller"


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("namespace", "team"),
        ("owner", "team/Job/train"),
        ("class", "nvidia-l4"),
        ("user", "(not in the log)"),
    ],
)
def test_hours_are_added_up_by(tmp_path: Path, by: str, expected: str) -> None:
    end = count("released", "a", 0, 60, owner="Job/train", **{"class": "nvidia-l4"})

    assert hours(requested("--by", by, written(tmp_path / "audit.jsonl", [end]))) == {expected: "1"}


@pytest.mark.parametrize(
    ("author", "owner", "lines", "expected"),
    [
        pytest.param("ada", "Job/train", [], "ada", id="who-created-the-pod"),
        pytest.param(
            CONTROLLER, "Job/train", [submitted("Job", "train", "bob")], "bob", id="who-wrote-its-owner"
        ),
        pytest.param(
            CONTROLLER,
            "Job/train",
            [submitted("Job", "train", CONTROLLER)],
            CONTROLLER,
            id="a-controller-if-nobody-else-is-known",
        ),
        pytest.param(
            CONTROLLER,
            "ReplicaSet/serve-5d9f",
            [submitted("Deployment", "serve", "bob")],
            "bob",
            id="who-wrote-the-deployment",
        ),
    ],
)
def test_the_user_of_a_pod(tmp_path: Path, author: str, owner: str, lines: list[LINE], expected: str) -> None:
    pod = [validated("a", 0, user=author), count("released", "a", 0, 60, owner=owner)]

    assert hours(requested("--by", "user", written(tmp_path / "audit.jsonl", [*lines, *pod]))) == {
        expected: "1"
    }


def test_a_dry_run_and_a_denial_are_not_admitted(tmp_path: Path) -> None:
    lines = [validated("a", 0, dryRun=True), validated("b", 0, verdict="denied"), validated("c", 0)]

    assert requested(written(tmp_path / "audit.jsonl", lines))["onlyAdmitted"] == 1


@pytest.mark.parametrize(
    ("line", "unreadable"),
    [
        pytest.param(b"2026-11-21 INFO gpu_admission: started", 1, id="a-line-of-another-log"),
        pytest.param(b'{"time":"2026-11-21T00:00:00Z","phase":"count","ki', 1, id="cut-short"),
        pytest.param(b'{"phase":"count"}', 1, id="without-fields"),
        pytest.param(b'{"phase":"count","kind":1,"time":2,"verdict":[]}', 1, id="of-other-types"),
        pytest.param(b'\xff\xfe{"phase":"count"}', 1, id="of-other-bytes"),
        pytest.param(b'{"time":"\xff","phase":"count"}', 1, id="of-other-bytes-in-a-text"),
        pytest.param(
            b'{"phase":"count","pod":' + b"[" * 9_000 + b"]" * 9_000 + b"}", 1, id="nested-too-deeply"
        ),
        pytest.param(b'{"level":"info","message":"started"}', 0, id="of-a-log-in-json"),
        pytest.param(b"", 0, id="empty"),
        pytest.param(b"x" * (2 * LONGEST_LINE), 1, id="longer-than-any"),
    ],
)
def test_a_line_that_cannot_be_read_is_counted_and_spoils_nothing(
    tmp_path: Path, line: bytes, unreadable: int
) -> None:
    log = written(
        tmp_path / "audit.jsonl", [count("released", "a", 0, 60), line, count("released", "b", 0, 60)]
    )

    found = requested(log)

    assert (found["gpuHours"], found["unreadableLines"]) == ("2", unreadable)


@pytest.mark.parametrize(
    "tweaks",
    [
        pytest.param({"since": "yesterday"}, id="a-time-that-is-none"),
        pytest.param({"demand": {"gpus": "a lot"}}, id="an-amount-that-is-none"),
        pytest.param({"demand": {"gpus": "1/0"}}, id="a-division-by-zero"),
        pytest.param({"since": "9" * 5000}, id="a-time-without-end"),
    ],
)
def test_a_value_that_is_not_valid_is_counted_and_spoils_nothing(tmp_path: Path, tweaks: LINE) -> None:
    lines = [{**count("released", "a", 0, 60), **tweaks}, count("released", "b", 0, 60)]

    found = requested(written(tmp_path / "audit.jsonl", lines))

    assert (found["gpuHours"], found["unreadableLines"]) == ("1", 1)


def test_packed_rotated_and_piped_logs_are_one_log(tmp_path: Path) -> None:
    older = written(tmp_path / "audit.jsonl.1", [count("held", "a", 0, 60)])
    packed = tmp_path / "audit.jsonl.2.gz"
    packed.write_bytes(gzip.compress(Path(older).read_bytes()))
    newest = written(tmp_path / "audit.jsonl", [count("released", "a", 0, 90)])

    found = requested(str(packed), older, "-", stdin=Path(newest).read_bytes())

    assert (found["gpuHours"], found["lines"], found["openEnded"]) == ("3/2", 3, 0)


def test_a_packed_log_that_was_cut_counts_as_far_as_it_goes(tmp_path: Path) -> None:
    lines = [count("released", str(number), 0, 60) for number in range(2000)]
    path = Path(written(tmp_path / "audit.jsonl", lines))
    packed = tmp_path / "audit.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes())[:-2000])

    found = requested(str(packed))

    assert 0 < Fraction(found["gpuHours"]) < 2000
    assert found["unreadableLines"] >= 1


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    result = CliRunner(env={"COLUMNS": None}).invoke(usage, [str(tmp_path / "missing.jsonl")])

    assert result.exit_code == 2
    assert result.stderr == f"error: {tmp_path / 'missing.jsonl'}: No such file or directory\n"


def test_text_has_the_groups_the_total_and_what_is_not_known(tmp_path: Path) -> None:
    lines: list[LINE | bytes] = [
        count("released", "a", 0, 90),
        count("released", "d", 0, 60),
        count("held", "b", 0, 60, "2", namespace="other"),
        validated("c", 0),
        b"nothing",
    ]

    result = CliRunner(env={"COLUMNS": None}).invoke(usage, [written(tmp_path / "audit.jsonl", lines)])

    assert result.stdout.splitlines() == [
        "NAMESPACE   GPU-HOURS     PODS",
        "team             2.50        2",
        "other            2.00        1",
        "total            4.50        3",
    ]
    assert result.stderr.splitlines() == [
        "1 pod or claim without a line that says when it ended: each counts to its last line.",
        "1 pod or claim was admitted, but in no line of the controller, and not counted.",
        "1 of 5 lines could not be read.",
    ]
