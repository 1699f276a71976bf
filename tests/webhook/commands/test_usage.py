"""What `gpu-admission usage` prints; what counts, and the money: tests/webhook/tools/gpu_hours/."""

from pathlib import Path

from click.testing import CliRunner, Result

from tests.cases import cases
from tests.webhook.tools.gpu_hours.lines import LINE, count, counting, validated, written
from webhook.commands import main

NONE = "NAMESPACE   GPU-HOURS  OBJECTS\ntotal            0.00        0\n"
ONE = "NAMESPACE   GPU-HOURS  OBJECTS\nteam             1.00        1\ntotal            1.00        1\n"
L4, T4 = {"class": "nvidia-l4"}, {"class": "nvidia-t4"}


def run(folder: Path, lines: list[LINE | bytes], *arguments: str) -> Result:
    return CliRunner().invoke(main, ["usage", written(folder / "audit.jsonl", lines), *arguments])


@cases(
    ("lines", "stdout", "stderr"),
    nothing_is_missing=([count("released", "a", 0, 60)], ONE, ""),
    one_of_each=(
        [
            count("released", "b", 0, 30),
            count("held", "a", 30, 60),
            validated("c", 0),
            count("held", "d", 0, 30, demand=None),
            b"nothing",
        ],
        "NAMESPACE   GPU-HOURS  OBJECTS\nteam             1.00        2\ntotal            1.00        2\n",
        "1 pod or claim without a line that says when it ended: each counts as long as the controller that wrote its last "
        "line has further lines.\n"
        "1 pod or claim was admitted, but in no line of the controller, and not counted: never stored, or no controller led "
        "meanwhile.\n"
        "2 of 5 lines left out: they cannot be read as lines of an audit log.\n"
        "The log begins at 2026-11-21T00:30:00Z and ends at 2026-11-21T01:00:00Z.\n"
        "No controller wrote for 0.5 h: 2026-11-21T00:30:00Z to 2026-11-21T01:00:00Z. What began and ended then is not in the "
        "total, and what ended then counts to its last line: how many GPU-hours are missing is not known.\n",
    ),
    several_of_each=(
        [
            count("held", "a", 0, 30),
            count("held", "b", 0, 30),
            validated("c", 0),
            validated("d", 0),
            count("held", "e", 0, 30, demand=None),
            count("held", "f", 0, 30, demand=None),
            b"nothing",
            b"nothing",
        ],
        "NAMESPACE   GPU-HOURS  OBJECTS\nteam             1.00        2\ntotal            1.00        2\n",
        "2 pods and claims without a line that says when it ended: each counts as long as the controller that wrote its last "
        "line has further lines.\n"
        "2 pods and claims were admitted, but in no line of the controller, and not counted: never stored, or no controller "
        "led meanwhile.\n"
        "4 of 8 lines left out: they cannot be read as lines of an audit log.\n",
    ),
    no_controller_wrote=(
        [*counting(0, 60), *counting(120, 180)],
        NONE,
        "The log begins at 2026-11-21T00:00:00Z and ends at 2026-11-21T03:00:00Z.\n"
        "No controller wrote for 1.0 h: 2026-11-21T01:00:00Z to 2026-11-21T02:00:00Z. What began and ended then is not in "
        "the total, and what ended then counts to its last line: how many GPU-hours are missing is not known.\n",
    ),
    many_times_no_controller_wrote=(
        [line for hour in range(0, 16, 2) for line in counting(hour * 60, hour * 60 + 60, every=30)],
        NONE,
        "The log begins at 2026-11-21T00:00:00Z and ends at 2026-11-21T15:00:00Z.\n"
        "No controller wrote for 7.0 h: 2026-11-21T01:00:00Z to 2026-11-21T02:00:00Z, "
        "2026-11-21T03:00:00Z to 2026-11-21T04:00:00Z, 2026-11-21T05:00:00Z to 2026-11-21T06:00:00Z, "
        "2026-11-21T07:00:00Z to 2026-11-21T08:00:00Z, 2026-11-21T09:00:00Z to 2026-11-21T10:00:00Z and 2 more. "
        "What began and ended then is not in the total, and what ended then counts to its last line: how many GPU-hours are "
        "missing is not known.\n",
    ),
)
def test_what_is_printed(tmp_path: Path, lines: list[LINE | bytes], stdout: str, stderr: str) -> None:
    result = run(tmp_path, lines)

    assert (result.exit_code, result.stdout, result.stderr) == (0, stdout, stderr)


def test_of_many_groups_the_largest_are_printed(tmp_path: Path) -> None:
    names = [f"Job/{each:02}" for each in range(42)]

    result = run(tmp_path, [count("released", name, 0, 60, owner=name) for name in names], "--by", "owner")

    assert result.stdout.splitlines() == [
        f"{'OWNER':<30}   GPU-HOURS  OBJECTS",
        *(f"{f'team/{name}':<30}        1.00        1" for name in names[:40]),
        "… and 2 more (-o json has all)        2.00        2",
        f"{'total':<30}       42.00       42",
    ]


def test_no_line_counts_a_pod(tmp_path: Path) -> None:
    result = run(tmp_path, [validated("a", 0)])

    assert (result.exit_code, result.stdout, result.stderr) == (
        1,
        "",
        "1 pod or claim was admitted, but in no line of the controller, and not counted: never stored, or no controller led "
        "meanwhile.\n"
        "error: 1 lines read, none counts a pod\n",
    )


@cases(
    ("prices", "want"),
    classes_without_a_price=(
        "currency: EUR\nclasses: {nvidia-h100: 4}\n",
        "error: {}: default: Required value: 1 GPU-hours are of pods whose class is not known\n"
        "error: {}: classes.nvidia-l4: Required value, or default: 2.5 GPU-hours are of this class\n"
        "2 problems; no amount is printed\n",
    ),
    a_file_that_is_wrong=(
        "currency: EUR\ndefault: -1\n",
        'error: {}:2: default: must be a price such as 2.50, with at most 6 decimals, not "-1"\n'
        "1 problem; nothing was done\n",
    ),
)
def test_prices_that_cannot_be_used(tmp_path: Path, prices: str, want: str) -> None:
    lines: list[LINE | bytes] = [count("released", "a", 0, 150, **L4), count("released", "b", 0, 60)]
    file = tmp_path / "prices.yaml"
    file.write_text(prices)

    result = run(tmp_path, lines, "--prices", str(file))

    assert (result.exit_code, result.stdout, result.stderr) == (2, "", want.format(file, file))


def test_classes_that_the_prices_do_not_name(tmp_path: Path) -> None:
    lines: list[LINE | bytes] = [count("released", "a", 0, 60, **L4), count("released", "b", 0, 60, **T4)]
    file = tmp_path / "prices.yaml"
    file.write_text("currency: EUR\ndefault: 1\nclasses: {nvidia-t4: 2}\n")

    result = run(tmp_path, lines, "--prices", str(file))

    assert (result.exit_code, result.stderr) == (
        0,
        "1 GPU-hours have the default price, since the prices do not name their classes: nvidia-l4.\n",
    )
