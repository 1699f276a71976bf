"""A sum over a log with a hole says so; one over what was not understood is no zero."""

import csv
import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cases import cases
from tests.webhook.tools.gpu_hours.lines import LINE, count, counting, moment, validated, waited, written
from webhook.commands.status import _read_logs
from webhook.commands.usage import usage

HOUR, DAY = 60, 24 * 60


def asked(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner(env={"COLUMNS": None}).invoke(usage, arguments, input=stdin, catch_exceptions=False)


def times(*pairs: tuple[float, float]) -> list[dict[str, str]]:
    return [{"since": moment(a)[:19] + "Z", "until": moment(b)[:19] + "Z"} for a, b in pairs]


HELD = [count("held", "a", 0, at) for at in range(HOUR, 9 * HOUR, HOUR)]
WHOLE = sorted([*counting(0, 9 * HOUR), *HELD], key=lambda line: str(line["time"]))


def without(since: float, until: float, lines: list[LINE] = WHOLE) -> list[LINE]:
    return [line for line in lines if not moment(since) < line["time"] < moment(until)]


@cases(
    ("lines", "gaps"),
    a_whole_log=(WHOLE, []),
    without_any_pod=(counting(0, DAY), []),
    with_a_hole=(without(HOUR, 4 * HOUR), [(HOUR, 4 * HOUR - 0.5)]),
    with_two_holes=(
        without(HOUR, 2 * HOUR, without(5 * HOUR, 6 * HOUR)),
        [(HOUR, 2 * HOUR - 0.5), (5 * HOUR, 6 * HOUR - 0.5)],
    ),
    whose_files_are_named_in_another_order=(
        [*without(-1, 6 * HOUR), *without(0, 2 * HOUR, without(4 * HOUR, DAY))],
        [(0, 2 * HOUR - 0.5), (4 * HOUR, 6 * HOUR - 0.5)],
    ),
    with_a_file_named_twice=([*WHOLE, *WHOLE], []),
    with_a_hole_that_another_controller_fills=(
        [*without(HOUR, 4 * HOUR), *counting(HOUR, 4 * HOUR, "controller-2")],
        [],
    ),
    with_a_hole_that_another_controller_fills_in_part=(
        [*without(HOUR, 4 * HOUR), *counting(HOUR, 2 * HOUR, "controller-2")],
        [(2 * HOUR, 4 * HOUR - 0.5)],
    ),
    of_a_leader_that_was_killed=([*counting(0, 60), *counting(61, 120, "controller-2")], [(60, 61)]),
    in_which_nobody_says_that_he_counts=(HELD, [(HOUR, 8 * HOUR)]),
    with_a_moment_that_is_none=([*WHOLE, counting(0, 0)[0] | {"since": "yesterday"}], []),
    of_a_clock_that_was_put_back=([*counting(0, HOUR), *counting(30, 2 * HOUR)], []),
)
def test_a_log_says_when_nobody_wrote_it(
    tmp_path: Path, lines: list[LINE], gaps: list[tuple[float, float]]
) -> None:
    found = json.loads(asked("-o", "json", written(tmp_path / "audit.jsonl", lines)).stdout)

    assert found["gaps"] == times(*gaps)
    assert found["gapHours"] == pytest.approx(sum(b - a for a, b in gaps) / 60)


@cases(
    ("lines", "arguments", "gaps"),
    that_the_log_has=(WHOLE, (HOUR, 2 * HOUR), []),
    that_begins_before_the_log=(WHOLE, (-HOUR, 2 * HOUR), [(-HOUR, 0)]),
    that_ends_after_the_log=(WHOLE, (HOUR, 12 * HOUR), [(9 * HOUR, 12 * HOUR)]),
    that_is_before_the_log=(WHOLE, (-2 * HOUR, -HOUR), [(-2 * HOUR, -HOUR)]),
    that_is_after_the_log=(WHOLE, (10 * HOUR, 11 * HOUR), [(10 * HOUR, 11 * HOUR)]),
    that_begins_and_ends_in_a_hole=(without(HOUR, 8 * HOUR), (2 * HOUR, 3 * HOUR), [(2 * HOUR, 3 * HOUR)]),
    that_begins_in_a_hole=(without(HOUR, 4 * HOUR), (2 * HOUR, 9 * HOUR), [(2 * HOUR, 4 * HOUR - 0.5)]),
)
def test_a_gap_is_one_of_the_time_that_was_asked_for(
    tmp_path: Path, lines: list[LINE], arguments: tuple[float, float], gaps: list[tuple[float, float]]
) -> None:
    since, until = map(moment, arguments)
    log = written(tmp_path / "audit.jsonl", lines)

    found = json.loads(asked("-o", "json", "--since", since, "--until", until, log).stdout)

    assert found["gaps"] == times(*gaps)


def test_text_and_csv_say_when_nobody_wrote(tmp_path: Path) -> None:
    log = written(tmp_path / "audit.jsonl", without(HOUR, 4 * HOUR))
    arguments = ("--since", moment(0), "--until", moment(12 * HOUR), log)

    text, table = asked(*arguments), asked("-o", "csv", *arguments)

    notes = " ".join(text.stderr.split())
    assert text.exit_code == 0
    assert "The log begins at 2026-11-21T00:00:00Z and ends at 2026-11-21T09:00:00Z." in notes
    assert (
        "No controller wrote for 6.0 h: 2026-11-21T01:00:00Z to 2026-11-21T03:59:30Z, 2026-11-21T09:00:00Z to "
        "2026-11-21T12:00:00Z. What began and ended then is not in the total, and what ended then counts to its last line: how "
        "many GPU-hours are missing is not known."
    ) in notes
    (row,) = csv.DictReader(table.stdout.splitlines())
    assert row["log"] == "2026-11-21T00:00:00Z/2026-11-21T09:00:00Z"
    assert row["gaps"] == (
        "2026-11-21T01:00:00Z/2026-11-21T03:59:30Z 2026-11-21T09:00:00Z/2026-11-21T12:00:00Z"
    )


def test_of_many_gaps_the_text_has_the_longest(tmp_path: Path) -> None:
    lines = [each for start in range(0, 200, 20) for each in counting(start, start + 5 + start / 20)]

    notes = asked(written(tmp_path / "audit.jsonl", lines)).stderr

    assert "2026-11-21T00:05:00Z to 2026-11-21T00:20:00Z" in notes
    assert "and 4 more" in notes


def test_a_leader_that_is_replaced_is_no_news(tmp_path: Path) -> None:
    lines = [*counting(0, 60), *counting(60.75, 120, "controller-2"), *HELD[:2]]

    assert asked(written(tmp_path / "audit.jsonl", lines)).stderr.startswith("1 pod or claim without a line")
    assert "No controller" not in asked(written(tmp_path / "audit.jsonl", lines)).stderr


WITHOUT_SINCE = {key: value for key, value in count("released", "a", 0, 60).items() if key != "since"}


@cases(
    ("lines", "problem"),
    of_the_webhook_alone=([validated("a", 0)] * 6668, "6,668 lines read, none counts a pod"),
    of_lines_that_say_no_time=([WITHOUT_SINCE] * 6668, "6,668 lines read, none counts a pod"),
    of_no_version=([{"event": "released", "pod": "a"}] * 7, "7 lines read, none is of an audit log"),
    of_another_program=([b"started", b"stopped"], "2 lines read, none is of an audit log"),
    that_is_empty=([], "0 lines read, none is of an audit log"),
)
def test_a_log_that_is_not_understood_is_no_zero(
    tmp_path: Path, lines: list[LINE | bytes], problem: str
) -> None:
    log = written(tmp_path / "audit.jsonl", lines)

    text, document = asked(log), asked("-o", "json", log)

    assert (text.exit_code, document.exit_code) == (1, 1)
    assert problem in text.stderr
    assert "total" not in text.stdout
    found = json.loads(document.stdout)
    assert found["usageLines"] == 0
    assert bool(found["fileProblems"]) == ("audit log" in problem)


@cases(
    "lines",
    who_counts_and_found_no_pod=counting(0, 60),
    of_a_pod_that_waited_only=[waited("a", 0, 60)],
    of_pods_before_the_time=[count("released", "a", -120, -60)],
)
def test_a_zero_that_is_understood_is_one(tmp_path: Path, lines: list[LINE]) -> None:
    result = asked("--since", moment(0), written(tmp_path / "audit.jsonl", lines))

    assert (result.exit_code, result.stdout.split()[-3:]) == (0, ["total", "0.00", "0"])


def test_lines_that_lack_a_time_among_others_are_counted(tmp_path: Path) -> None:
    lines = [WITHOUT_SINCE, WITHOUT_SINCE, count("released", "b", 0, 60)]

    result = asked(written(tmp_path / "audit.jsonl", lines))

    assert "2 of 3 lines left out: they cannot be read as lines of an audit log." in result.stderr


def test_a_file_of_something_else_is_named_and_the_others_count(tmp_path: Path) -> None:
    log = written(tmp_path / "audit.jsonl", [count("released", "a", 0, 60)])
    other = written(tmp_path / "syslog", [b"x"] * 3)

    result = asked(log, other)

    assert result.exit_code == 1
    assert result.stdout.split()[-3:] == ["total", "1.00", "1"]
    assert f"error: {other}: 3 lines read, none is of an audit log" in result.stderr


@cases(
    ("name", "packed"),
    packed_without_the_name_of_one=("audit.jsonl", True),
    unpacked_with_the_name_of_a_packed_one=("audit.jsonl.gz", False),
)
def test_a_file_is_packed_if_its_bytes_say_so(tmp_path: Path, name: str, packed: bool) -> None:
    log = Path(written(tmp_path / name, [count("released", "a", 0, 60)]))
    if packed:
        log.write_bytes(gzip.compress(log.read_bytes()))

    assert json.loads(asked("-o", "json", str(log)).stdout)["gpuHours"] == 1
    assert json.loads(asked("-o", "json", stdin=log.read_bytes()).stdout)["gpuHours"] == 1


def test_a_directory_is_an_error_that_names_it(tmp_path: Path) -> None:
    result = asked(str(tmp_path))

    assert (result.exit_code, result.stderr) == (2, f"error: {tmp_path}: Is a directory\n")


def test_status_counts_no_denials_by_what_is_no_audit_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = written(tmp_path / "syslog", [b"started"])

    with pytest.raises(SystemExit) as ended:
        _read_logs([log], [], datetime.now(UTC))

    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {log}: 1 lines read, none is of an audit log\n"
