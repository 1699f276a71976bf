"""Prices of GPU-hours, and tables for spreadsheets."""

import csv
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.cases import cases
from tests.webhook.tools.gpu_hours.lines import LINE, count, counting, written
from webhook.commands import main
from webhook.commands.usage import usage
from webhook.prometheus.client import Prometheus, Sample
from webhook.tools.recorded_use import read_use

L4, T4 = {"class": "nvidia-l4"}, {"class": "nvidia-t4"}
PRICES = "currency: EUR\nclasses:\n  nvidia-l4: 0.333333\n  nvidia-t4: 0.10\n"


def called(folder: Path, lines: list[LINE], *arguments: str, prices: str = PRICES) -> Result:
    log, file = written(folder / "audit.jsonl", lines), folder / "prices.yaml"
    file.write_text(prices)
    command = ["usage", log, "--prices", str(file), *arguments]
    return CliRunner(env={"COLUMNS": None}).invoke(main, command)


def test_a_table_has_amounts_and_their_sum(tmp_path: Path) -> None:
    lines = [
        *counting(0, 120),
        count("released", "a", 0, 60, owner="Job/train", **L4),
        count("released", "b", 0, 120, "2/7", owner="Job/train", **T4),
        count("released", "c", 0, 60, "1/2", owner="Notebook/ana", **T4),
    ]

    result = called(tmp_path, lines, "--by", "namespace", "--by", "class", "--by", "owner")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "NAMESPACE  CLASS      OWNER          GPU-HOURS  OBJECTS           EUR",
        "team       nvidia-l4  Job/train           1.00        1          0.33",
        "team       nvidia-t4  Job/train           0.57        1          0.06",
        "team       nvidia-t4  Notebook/ana        0.50        1          0.05",
        "total                                     2.07        3          0.44",
    ]


def test_a_group_of_several_classes_is_rounded_once(tmp_path: Path) -> None:
    lines = [
        count("released", "a", 0, 60, "1/100", **L4),  # 0.0033 EUR
        count("released", "b", 0, 60, "1/50", **T4),  # 0.0020 EUR
    ]

    found = json.loads(called(tmp_path, lines, "-o", "json").stdout)

    assert (found["amount"], found["groups"][0]["amount"], found["currency"]) == ("0.01", "0.01", "EUR")


def test_the_rows_add_up_to_the_exact_total(tmp_path: Path) -> None:
    """50 times 0.004 EUR: 0.20 EUR, also as one row."""
    lines = [
        count("released", f"{number:02}", 0, 60, "1/25", owner=f"Job/{number:02}", **T4)
        for number in range(50)
    ]

    head, *rows, others, total = [
        line.split()[-1] for line in called(tmp_path, lines, "--by", "owner").stdout.splitlines()
    ]
    assert (head, rows, others, total) == ("EUR", ["0.01"] * 20 + ["0.00"] * 20, "0.00", "0.20")
    assert called(tmp_path, lines).stdout.splitlines()[-1].split()[-1] == "0.20"


def rows_of(result: Result) -> list[dict[str, Any]]:
    return list(csv.DictReader(result.stdout.splitlines()))


def test_csv_has_a_row_for_each_group(tmp_path: Path) -> None:
    lines = [
        count("released", "a", 0, 60, "1/7", **L4),
        count("released", "b", 30, 6030, "1000", **L4),
        count("released", "c", 0, 60, namespace="other", **T4),
        *counting(0, 6030),
    ]

    result = called(
        tmp_path, lines, "-o", "csv", "--by", "namespace", "--by", "class", "--since", "2026-11-21"
    )

    assert result.stdout_bytes.decode() == (
        "namespace,class,since,until,gpuHours,objects,amount,currency,log,gaps\r\n"
        "team,nvidia-l4,2026-11-21T00:00:00Z,2026-11-25T04:30:00Z,100000.142857,2,33333.35,EUR,2026-11-21T00:00:00Z/2026-11-25T04:30:00Z,\r\n"
        "other,nvidia-t4,2026-11-21T00:00:00Z,2026-11-21T01:00:00Z,1.000000,1,0.10,EUR,2026-11-21T00:00:00Z/2026-11-25T04:30:00Z,\r\n"
    )


def test_csv_without_prices_has_no_money(tmp_path: Path) -> None:
    log = written(tmp_path / "audit.jsonl", [count("released", "a", 0, 60)])

    result = CliRunner().invoke(usage, [log, "-o", "csv"])

    assert result.stdout.splitlines()[0] == "namespace,since,until,gpuHours,objects,log,gaps"


@cases(
    ("owner", "cell"),
    equals=('=HYPERLINK("http://x";"y")', '\'=HYPERLINK("http://x","y")'),
    a_semicolon_that_ends_a_cell_in_some_locales=("a;=1", "a,=1"),
    plus=("+1", "'+1"),
    minus=("-1+2", "'-1+2"),
    at=("@SUM(A1)", "'@SUM(A1)"),
    full_width=("\uff1d1", "'\uff1d1"),
    a_line_break=("a\n=1", "a\N{REPLACEMENT CHARACTER}=1"),
    a_tab_before=("\t=1", "\N{REPLACEMENT CHARACTER}=1"),
    quotes_and_commas=('a",b', 'a",b'),
    a_name_of_kubernetes=("Job/train", "Job/train"),
)
def test_no_cell_is_a_formula(tmp_path: Path, owner: str, cell: str) -> None:
    lines = [count("released", "a", 0, 60, owner=owner, **L4)]

    (row,) = rows_of(called(tmp_path, lines, "-o", "csv", "--by", "namespace", "--by", "owner"))

    assert row["owner"] == cell


def test_rows_of_csv_add_up_to_the_printed_total(tmp_path: Path) -> None:
    lines = [
        count("released", str(number), 0, number * 1.37, "1/7", owner=f"Job/{number % 50}", **L4)
        for number in range(1, 500)
    ]

    table = called(tmp_path, lines, "--by", "owner").stdout.splitlines()
    rows = rows_of(called(tmp_path, lines, "-o", "csv", "--by", "owner"))

    assert sum(Decimal(row["amount"]) for row in rows) == Decimal(table[-1].split()[-1])
    assert len(rows) == 50


class PodPeaks(Prometheus):
    """Knows a pod of which 3 of 4 values of a day were 1, and one with a value that is no number."""

    def __init__(self) -> None:
        super().__init__("http://localhost")
        self.asked: list[tuple[str, datetime | None]] = []

    def query(self, promql: str, at: datetime | None = None) -> list[Sample]:
        self.asked.append((promql, at))
        is_sum = "sum_over_time" in promql
        return [
            Sample({"namespace": "team", "pod": "a"}, 3 if is_sum else 4),
            Sample({"namespace": "team", "pod": "nan"}, float("nan") if is_sum else 4),
        ]


def test_use_is_read_a_day_at_a_time() -> None:
    prometheus, end = PodPeaks(), datetime(2026, 11, 22, 6, tzinfo=UTC)

    assert read_use(prometheus, datetime(2026, 11, 21, tzinfo=UTC), end) == {("team", "a"): 0.75}
    sums, counts = (
        f'sum by (namespace, pod) ({name}(gpu_admission:gpu_use:ratio{{job=""}}'
        for name in ("sum_over_time", "count_over_time")
    )
    assert prometheus.asked == [
        (f"{sums}[86400s]))", end),
        (f"{counts}[86400s]))", end),
        (f"{sums}[21600s]))", datetime(2026, 11, 21, 6, tzinfo=UTC)),
        (f"{counts}[21600s]))", datetime(2026, 11, 21, 6, tzinfo=UTC)),
    ]


MEASURED = {("team", "a"): 0.75, ("team", "d"): 0.0, ("team", "s"): 0.5}


@pytest.fixture
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.commands.usage.read_use", lambda *_: MEASURED)


def holding(pod: str, gpus: str, resource: str = "nvidia.com/gpu", **tweaks: Any) -> LINE:
    return count(
        "released", pod, 0, 60, **{"demand": {"gpus": gpus, f"resources/{resource}": gpus}, **tweaks}
    )


USE_LINES = [
    holding("a", "4"),
    holding("b", "2"),
    holding("d", "1"),
    holding("a", "1", kind="ResourceClaim", objectUid="claim"),
    holding("s", "1", "nvidia.com/gpu.shared"),
]
WITH_USE = ("--since", "2026-11-21", "--prometheus-url", "http://localhost")


@pytest.mark.usefixtures("_measured")
def test_held_hours_are_used_idle_or_unknown(tmp_path: Path) -> None:
    """4 × 0.75 used, 4 × 0.25 + 1 idle; the pod without a series, the claim and the shared card are unknown."""
    log = written(tmp_path / "audit.jsonl", USE_LINES)

    result = CliRunner(env={"COLUMNS": None}).invoke(usage, [log, *WITH_USE])

    assert result.stdout.splitlines() == [
        "NAMESPACE   GPU-HOURS        USED        IDLE     UNKNOWN  OBJECTS",
        "team             9.00        3.00        2.00        4.00        5",
        "total            9.00        3.00        2.00        4.00        5",
    ]


@pytest.mark.usefixtures("_measured")
def test_use_as_csv_and_json(tmp_path: Path) -> None:
    (row,) = rows_of(
        called(tmp_path, USE_LINES, "-o", "csv", *WITH_USE, prices="currency: EUR\ndefault: 1\n")
    )
    found = json.loads(
        CliRunner().invoke(usage, [str(tmp_path / "audit.jsonl"), "-o", "json", *WITH_USE]).stdout
    )

    names = ("gpuHours", "gpuHoursUsed", "gpuHoursIdle", "gpuHoursUnknown")
    assert [row[name] for name in (*names, "amount")] == [
        "9.000000",
        "3.000000",
        "2.000000",
        "4.000000",
        "9.00",
    ]
    assert (
        [found[name] for name in names]
        == [found["groups"][0][name] for name in names]
        == [9.0, 3.0, 2.0, 4.0]
    )


def test_use_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    result = called(tmp_path, USE_LINES, "--since", "1h", "--prometheus-url", "http://127.0.0.1:1")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "error: Prometheus at http://127.0.0.1:1 refused the connection" in result.stderr
