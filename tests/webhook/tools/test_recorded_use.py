"""Peaks and averages of a real Prometheus, from series as the recording rules write them, over days."""

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest

from tests.prometheus import prometheus
from webhook.prometheus.client import Prometheus
from webhook.prometheus.recorded_series import MEMORY, MEMORY_BY_HOUR, USE, USE_BY_HOUR
from webhook.tools.recorded_use import GIB, PodPeaks, read_peaks, read_use

pytestmark = pytest.mark.processes

NOW = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
DAY = timedelta(days=1)
Series = Iterable[tuple[datetime, float]]


def written(name: str, pod: str, gpu: str, values: Series, more: str = "") -> Iterator[str]:
    """Yield lines of OpenMetrics."""
    for at, value in values:
        yield f'{name}{{namespace="ml",pod="{pod}",gpu="{gpu}"{more}}} {value} {at.timestamp():.0f}\n'


def hourly(hours: int, usual: float, peak: float) -> Series:
    """Yield a value for each of the last hours; in one of the middle it is the peak."""
    return [
        (NOW - timedelta(hours=each), peak if each == hours // 2 else usual)
        for each in reversed(range(hours))
    ]


def each_minute(since: datetime, until: datetime, values: tuple[float, ...]) -> Series:
    minutes = int((until - since).total_seconds() // 60)
    return [(since + timedelta(minutes=each), values[each % len(values)]) for each in range(1, minutes)]


@pytest.fixture
def stored(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Prometheus]:
    """Run a Prometheus with the series that the test names."""
    promtool = shutil.which("promtool")
    if promtool is not None:
        text, by_name = tmp_path / "series", sorted(request.param, key=lambda line: line.partition("{")[0])
        text.write_text("".join([*by_name, "# EOF\n"]))
        command = [promtool, "tsdb", "create-blocks-from", "openmetrics", str(text), str(tmp_path / "data")]
        subprocess.run(command, check=True, capture_output=True)
    with prometheus(tmp_path, [], 'job="dcgm"', interval="1m") as client:
        yield client


RECORDED = [
    *written(USE_BY_HOUR, "chat", "GPU-0", hourly(60, 0.02, 0.1)),
    *written(USE_BY_HOUR, "chat", "GPU-1", hourly(48, 0.01, 0.03)),
    *written(MEMORY_BY_HOUR, "chat", "GPU-0", hourly(60, 4 * GIB, 9 * GIB)),
    *written(MEMORY_BY_HOUR, "chat", "GPU-1", hourly(48, 4 * GIB, 5 * GIB)),
    # What a target of a tenant exports under our names.
    *written(USE_BY_HOUR, "chat", "GPU-0", hourly(60, 1, 1), ',job="tenant"'),
    *written(MEMORY_BY_HOUR, "chat", "GPU-0", hourly(60, 70 * GIB, 70 * GIB), ',job="tenant"'),
]


@pytest.mark.parametrize("stored", [RECORDED], indirect=True)
def test_hourly_peaks(stored: Prometheus) -> None:
    pods, by_hour = read_peaks(stored, 14 * 24, NOW)

    assert by_hour
    measured = pods["ml", "chat"]
    assert sorted(measured.memory) == [5, 9]
    assert sorted(measured.use) == [Fraction(3, 100), Fraction(1, 10)]
    assert measured.hours == 48
    assert len(pods) == 1


@pytest.mark.parametrize("stored", [RECORDED], indirect=True)
def test_peaks_of_a_shorter_window(stored: Prometheus) -> None:
    pods, _ = read_peaks(stored, 6, NOW)

    assert pods["ml", "chat"] == PodPeaks([Fraction(4)] * 2, [Fraction(1, 50), Fraction(1, 100)], 6)


BY_MINUTE = [
    *written(USE, "train", "GPU-0", each_minute(NOW - DAY * 1.5, NOW - DAY * 0.5, (1, 0, 1, 0.5))),
    *written(MEMORY, "train", "GPU-0", each_minute(NOW - DAY * 1.5, NOW - DAY * 0.5, (GIB, 7 * GIB))),
    *written(USE, "train", "GPU-0", each_minute(NOW - DAY * 1.5, NOW, (0,)), ',job="tenant"'),
]


@pytest.mark.parametrize("stored", [BY_MINUTE], indirect=True)
def test_without_hourly_series_a_day_has_its_hours_and_its_average(stored: Prometheus) -> None:
    """The average of 1, 0, 1 and 0.5 is 0.625; the day lies in two of the days that are read."""
    pods, by_hour = read_peaks(stored, 48, NOW)
    use = read_use(stored, NOW - 2 * DAY, NOW)

    assert not by_hour
    assert (pods["ml", "train"].memory, pods["ml", "train"].use) == ([Fraction(7)], [Fraction(1)])
    assert pods["ml", "train"].hours == pytest.approx(24, abs=1)
    assert use == {("ml", "train"): pytest.approx(0.625, abs=0.001)}
