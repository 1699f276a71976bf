"""The text and JSON of `gpu-admission rightsize`, and what it refuses."""

from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from policies.gpus.mapping_spec import NVIDIA_GPU
from tests.cases import cases
from tests.webhook.commands.rightsizing import report
from tests.webhook.tools.rightsize.peaks import H100, MIG, peaks
from webhook.commands import main
from webhook.commands.output import Screen
from webhook.commands.rightsize import print_text
from webhook.commands.sizes_document import sizes_document
from webhook.tools.prices import Prices

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "usage.md"
PRICES = Prices("EUR", None, {H100: Fraction("3.95")})


@pytest.fixture(autouse=True)
def as_into_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def test_the_text_is_that_of_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(Screen(), report(peaks("9.2", "0.1"), PRICES), PRICES)

    assert capsys.readouterr().out == PAGE.read_text().partition("```text\n")[2].partition("```")[0]


def test_an_idle_workload_and_missing_series_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(Screen(), report(peaks("1", "0.01"), by_hour=False), None)

    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == (
        "  set nvidia.com/mig-1g.10gb: 1 instead of nvidia.com/gpu: 1: saves 1877.14 of 2190 GPU-hours a month"
    )
    assert lines[3] == "    no GPU of it worked in this time: ask whether it is needed at all"
    assert lines[-1] == (
        "Prometheus has no series gpu_admission:gpu_use:max1h: the peaks are the largest of all values that it keeps. The "
        "chart's recording rules make that series, which is cheaper to keep and to read"
    )


def test_of_many_workloads_the_first_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(peaks("9.2", "0.1"))
    print_text(Screen(), replace(found, workloads=found.workloads * 42), None)

    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(("ml-training ", "and "))] == [
        *["ml-training Deployment/chat: 3 pods with nvidia.com/gpu: 1"] * 40,
        "and 2 more: see -o json",
    ]


def test_json_has_numbers_and_every_suggestion() -> None:
    found = sizes_document(report(peaks("9.2", "0.1"), PRICES), PRICES)

    (workload,) = found.pop("workloads")
    (suggestion,) = workload.pop("suggestions")
    assert found == {
        "windowHours": 336,
        "byHour": True,
        "currency": "EUR",
        "saved": "6487.88",
        "savedGPUHours": 1642.5,
        "fitting": 4,
        "notJudged": {"measured for less than 24 h": 2},
        "omitted": (),
    }
    assert workload == {
        "namespace": "ml-training",
        "owner": "Deployment/chat",
        "pods": 3,
        "class": H100,
        "resource": NVIDIA_GPU,
        "gpus": 1,
        "peakMemoryGiB": 9.2,
        "peakUse": 0.1,
        "gpuHours": 2190.0,
        "idle": False,
    }
    assert (
        suggestion["resource"],
        suggestion["gpuHours"],
        suggestion["savedGPUHours"],
        suggestion["saved"],
    ) == (
        f"{MIG}1g.20gb",
        547.5,
        1642.5,
        "6487.88",
    )


@cases(
    ("arguments", "want"),
    no_prometheus=([], "--prometheus-url is required: peaks are read from there"),
    a_namespace_and_all=(["-A", "-n", "ml"], "-A means all namespaces: omit -n"),
    no_window=(["--window", "0d"], '"0d" is not valid: write days or hours, 14d or 36h, at most 365d.'),
    a_window_in_other_words=(["--window", "two weeks"], '"two weeks" is not valid'),
    a_window_of_years=(["--window", "366d"], '"366d" is not valid'),
    prices_that_are_not_there=(
        ["-A", "--prometheus-url", "http://localhost:1", "--prices", "/nowhere.yaml"],
        "error: /nowhere.yaml: No such file or directory 1 problem; nothing was done",
    ),
)
def test_what_cannot_work_is_refused(arguments: list[str], want: str) -> None:
    result = CliRunner().invoke(main, ["rightsize", *arguments])

    assert result.exit_code == 2
    assert want in " ".join(result.stderr.split())
