"""GPU-hours from audit logs: what counts, from when to when, and for whom."""

import gzip
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cases import cases
from tests.webhook.tools.gpu_hours.lines import LINE, count, counting, moment, validated, waited, written
from webhook.commands.usage import usage
from webhook.tools.gpu_hours import LONGEST_LINE


def requested(*arguments: str, stdin: bytes | None = None) -> dict[str, Any]:
    """Return what `gpu-admission usage -o json` prints."""
    result = CliRunner(env={"COLUMNS": None}).invoke(
        usage, ["-o", "json", *arguments], input=stdin, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def hours(found: dict[str, Any]) -> dict[str, str]:
    return {"/".join(group[by] for by in found["by"]): group["gpuHoursExact"] for group in found["groups"]}


@cases(
    ("lines", "expected"),
    from_its_creation_to_its_end=([count("released", "a", 0, 90)], "3/2"),
    without_an_end_to_its_last_line=([count("held", "a", 0, 30), count("held", "a", 0, 60)], "1"),
    without_an_end_while_its_controller_writes_lines=(
        [count("held", "a", 0, 30), count("released", "b", 60, 90, "0")],
        "3/2",
    ),
    without_an_end_not_by_lines_of_another_controller=(
        [count("held", "a", 0, 30), count("released", "b", 60, 90, "0", replica="controller-2")],
        "1/2",
    ),
    without_an_end_until_its_controller_leaves_it_out=(
        [count("held", "a", 0, 60), count("held", "b", 0, 120, "0")],
        "1",
    ),
    new_and_running=([count("held", "a", 0, 1, first=True), count("released", "b", 60, 60, "0")], "1"),
    new_ones_do_not_end_the_others=(
        [count("held", "a", 0, 30), count("held", "b", 60, 60, "0", first=True)],
        "1",
    ),
    held_and_released_once=([count("held", "a", 0, 60), count("released", "a", 0, 90)], "3/2"),
    released_by_two_leaders_once=([count("released", "a", 0, 90), count("released", "a", 0, 91)], "3/2"),
    whatever_the_order_of_the_files=([count("released", "a", 0, 90), count("held", "a", 0, 60)], "3/2"),
    of_lines_in_any_order_the_latest=([count("held", "a", 0, 60), count("held", "a", 0, 30)], "1"),
    by_the_demand_of_its_last_line=(
        [count("held", "a", 0, 30, "4"), count("released", "a", 0, 60, "2")],
        "2",
    ),
    a_pod_that_waited_for_quota_from_its_start=(
        [waited("a", 0, 60), count("held", "a", 0, 60, first=True), count("released", "a", 0, 90)],
        "1/2",
    ),
    a_pod_that_waited_and_runs=([count("held", "a", 0, 70), waited("a", 0, 60)], "1/6"),
    nothing_for_a_pod_that_never_held=([waited("a", 0, 60)], "0"),
    nothing_for_what_was_only_admitted=([validated("a", 0), *counting(0, 60)], "0"),
    admission_and_release_once=([validated("a", 0), count("released", "a", 0, 60)], "1"),
    the_sum_of_parts_exactly=(
        [count("released", name, 0, 60, name) for name in ("2", "1/7", "2/7", "3/4")],
        "89/28",
    ),
    nothing_where_clocks_disagree=([count("released", "a", 60, 0)], "0"),
)
def test_what_an_object_is_counted(tmp_path: Path, lines: list[LINE], expected: str) -> None:
    assert requested(written(tmp_path / "audit.jsonl", lines))["gpuHoursExact"] == expected


@cases(
    ("arguments", "expected"),
    since=(("--since", moment(60)), "1"),
    until=(("--until", moment(30)), "1/2"),
    between=(("--since", moment(30), "--until", moment(45)), "1/4"),
    after_its_end=(("--since", moment(120)), "0"),
    days_ago=(("--since", "100000d"), "2"),
    since_a_date=(("--since", "2026-11-21"), "2"),
    until_a_date=(("--until", "2026-11-21"), "0"),
)
def test_only_what_lies_in_the_time_counts(tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    log = written(tmp_path / "audit.jsonl", [count("released", "a", 0, 120)])

    found = requested(log, *arguments)
    assert found["gpuHoursExact"] == expected
    assert len(found["groups"]) == (expected != "0")


def test_hours_are_a_number_and_exact() -> None:
    found = requested(stdin=json.dumps(count("released", "a", 0, 60, "506651/90")).encode())

    assert (found["gpuHours"], found["gpuHoursExact"]) == (pytest.approx(5629.4556), "506651/90")
    assert found["groups"] == [
        {
            "namespace": "team",
            "since": moment(0)[:19] + "Z",
            "until": moment(60)[:19] + "Z",
            "gpuHours": found["gpuHours"],
            "gpuHoursExact": "506651/90",
            "objects": 1,
        }
    ]


def test_hours_are_added_up_by_each_combination(tmp_path: Path) -> None:
    lines = [
        count("released", "a", 0, 60, **{"class": "nvidia-l4"}),
        count("released", "b", 0, 60, "2", **{"class": "nvidia-t4"}),
        count("released", "c", 0, 60, "4", namespace="other", **{"class": "nvidia-t4"}),
    ]
    log, by = written(tmp_path / "audit.jsonl", lines), ("--by", "namespace", "--by", "class")

    assert hours(requested(*by, log)) == {
        "other/nvidia-t4": "4",
        "team/nvidia-t4": "2",
        "team/nvidia-l4": "1",
    }
    head, first, *_ = CliRunner(env={"COLUMNS": None}).invoke(usage, [*by, log]).stdout.splitlines()
    assert head == "NAMESPACE  CLASS       GPU-HOURS  OBJECTS"
    assert first == "other      nvidia-t4        4.00        1"


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
        ("team", "(no team)"),
    ],
)
def test_hours_are_added_up_by(tmp_path: Path, by: str, expected: str) -> None:
    end = count("released", "a", 0, 60, owner="Job/train", **{"class": "nvidia-l4"})

    assert hours(requested("--by", by, written(tmp_path / "audit.jsonl", [end]))) == {expected: "1"}


def test_hours_of_a_class_that_is_not_known(tmp_path: Path) -> None:
    log = written(tmp_path / "audit.jsonl", [count("released", "a", 0, 60)])

    assert hours(requested("--by", "class", log)) == {"(class not known)": "1"}


def test_hours_of_namespaces_are_added_up_by_team(tmp_path: Path) -> None:
    lines = [
        count("released", name, 0, 60, namespace=f"vision-{name}", team="team-vision") for name in ("a", "b")
    ]
    log = written(tmp_path / "audit.jsonl", [*lines, count("released", "c", 0, 60)])

    assert hours(requested("--by", "team", log)) == {"team-vision": "2", "(no team)": "1"}


@cases(
    ("author", "owner", "lines", "expected"),
    who_created_the_pod=("ada", "Job/train", [], "ada"),
    who_wrote_its_owner=(CONTROLLER, "Job/train", [submitted("Job", "train", "bob")], "bob"),
    a_controller_if_nobody_else_is_known=(
        CONTROLLER,
        "Job/train",
        [submitted("Job", "train", CONTROLLER)],
        CONTROLLER,
    ),
    who_wrote_the_deployment=(
        CONTROLLER,
        "ReplicaSet/serve-5d9f",
        [submitted("Deployment", "serve", "bob")],
        "bob",
    ),
)
def test_the_user_of_a_pod(tmp_path: Path, author: str, owner: str, lines: list[LINE], expected: str) -> None:
    pod = [validated("a", 0, user=author), count("released", "a", 0, 60, owner=owner)]

    assert hours(requested("--by", "user", written(tmp_path / "audit.jsonl", [*lines, *pod]))) == {
        expected: "1"
    }


def test_a_dry_run_and_a_denial_are_not_admitted(tmp_path: Path) -> None:
    lines = [validated("a", 0, dryRun=True), validated("b", 0, verdict="denied"), validated("c", 0)]

    assert requested(written(tmp_path / "audit.jsonl", [*lines, *counting(0, 1)]))["onlyAdmitted"] == 1


RELEASED = count("released", "c", 0, 60)


@cases(
    ("line", "unreadable"),
    a_line_of_another_log=(b"2026-11-21 INFO gpu_admission: started", 1),
    cut_short=(b'{"time":"2026-11-21T00:00:00Z","phase":"count","ki', 1),
    of_other_types=(b'{"phase":"count","kind":1,"time":2,"verdict":[]}', 1),
    of_other_bytes=(b'\xff\xfe{"phase":"count"}', 1),
    of_other_bytes_in_a_text=(b'{"time":"\xff","phase":"count"}', 1),
    nested_too_deeply=(b'{"phase":"count","pod":' + b"[" * 9_000 + b"]" * 9_000 + b"}", 1),
    of_a_log_in_json=(b'{"level":"info","message":"started"}', 0),
    empty=(b"", 0),
    longer_than_any=(b"x" * (2 * LONGEST_LINE), 1),
    of_a_time_that_is_none=({**RELEASED, "since": "yesterday"}, 1),
    of_an_amount_that_is_none=({**RELEASED, "demand": {"gpus": "a lot"}}, 1),
    of_a_division_by_zero=({**RELEASED, "demand": {"gpus": "1/0"}}, 1),
    of_a_time_without_end=({**RELEASED, "since": "9" * 5000}, 1),
)
def test_a_line_that_cannot_be_read_is_counted_and_spoils_nothing(
    tmp_path: Path, line: bytes | LINE, unreadable: int
) -> None:
    log = written(
        tmp_path / "audit.jsonl", [count("released", "a", 0, 60), line, count("released", "b", 0, 60)]
    )

    found = requested(log)

    assert (found["gpuHours"], found["unreadableLines"]) == (2, unreadable)


def test_packed_rotated_and_piped_logs_are_one_log(tmp_path: Path) -> None:
    older = written(tmp_path / "audit.jsonl.1", [count("held", "a", 0, 60)])
    packed = tmp_path / "audit.jsonl.2.gz"
    packed.write_bytes(gzip.compress(Path(older).read_bytes()))
    newest = written(tmp_path / "audit.jsonl", [count("released", "a", 0, 90)])

    found = requested(str(packed), older, "-", stdin=Path(newest).read_bytes())

    assert (found["gpuHours"], found["lines"], found["openEnded"]) == (1.5, 3, 0)


def test_a_packed_log_that_was_cut_counts_as_far_as_it_goes_and_is_an_error(tmp_path: Path) -> None:
    lines = [count("released", str(number), 0, 60) for number in range(2000)]
    path = Path(written(tmp_path / "audit.jsonl", lines))
    packed = tmp_path / "audit.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes())[:-2000])

    result = CliRunner(env={"COLUMNS": None}).invoke(usage, ["-o", "json", str(packed)])

    found, problem = (
        json.loads(result.stdout),
        f"{packed}: its gzip data is truncated or damaged: only what comes before that is read",
    )
    assert 0 < Fraction(found["gpuHours"]) < 2000
    assert (result.exit_code, found["fileProblems"], result.stderr) == (1, [problem], f"error: {problem}\n")


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    result = CliRunner(env={"COLUMNS": None}).invoke(usage, [str(tmp_path / "missing.jsonl")])

    assert result.exit_code == 2
    assert result.stderr == f"error: {tmp_path / 'missing.jsonl'}: No such file or directory\n"
