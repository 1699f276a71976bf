"""Time and memory of `gpu-admission usage`, which promises a million lines in seconds, and exact amounts of money."""

import csv
import os
import subprocess
import sys
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.all_faults import longer
from tests.webhook.tools.gpu_hours.lines import count, moment, validated

ROOT = Path(__file__).parents[4]
MILLION = 1_000_000
SECONDS, MEBIBYTES = 10, 200
"""For a million lines, and for any number of them."""
SLOWER = 4
"""How much slower than the machine of the promise another one may be."""

INJECTED = [{"rule": "gpu-toleration", "what": "toleration nvidia.com/gpu:NoSchedule"}]
POLICY = {"name": "default", "version": "12"}


def lines_of(pod: int, template: list[bytes]) -> bytes:
    """Return the four lines of one pod: both phases, held once, and released after an hour."""
    begin = 2 * pod / 60
    marks = {
        b"NAME": b"train-%d" % pod,
        b"UID": b"%08x-0000-4000-8000-000000000000" % pod,
        b"BEGIN": moment(begin).encode(),
        b"HALF": moment(begin + 30).encode(),
        b"END": moment(begin + 60).encode(),
    }
    text = b"".join(template)
    for mark, value in marks.items():
        text = text.replace(mark, value)
    return text


def template() -> list[bytes]:
    demand = {"gpus": "2", "classes/nvidia-l4": "2", "resources/nvidia.com/gpu": "2"}
    common = {
        "name": "NAME",
        "objectUid": "UID",
        "owner": "Job/train",
        "class": "nvidia-l4",
        "demand": demand,
    }
    reviewed = {**validated("x", 0), **common, "policy": POLICY, "time": "BEGIN"}
    counted = {**count("held", "x", 0, 0), **common, "since": "BEGIN"}
    lines = (
        {**reviewed, "phase": "mutate", "injected": INJECTED},
        reviewed,
        {**counted, "time": "HALF"},
        {**counted, "time": "END", "verdict": "released"},
    )
    return [msgspec.json.encode(each) + b"\n" for each in lines]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("lines", [MILLION // 5, pytest.param(MILLION, marks=longer)])
def test_many_lines_take_seconds_and_little_memory(lines: int) -> None:
    pods = lines // 4
    command = [sys.executable, "-m", "webhook", "usage", "-o", "json", "--by", "user"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        each, process, largest = template(), psutil.Process(running.pid), 0
        for pod in range(pods):
            running.stdin.write(lines_of(pod, each))
            if pod % 10_000 == 0:
                largest = max(largest, process.memory_info().rss)
        running.stdin.flush()
        used = process.cpu_times()
        running.stdin.close()
        found = msgspec.json.decode(running.stdout.read())

    assert running.returncode == 0
    assert (found["lines"], found["gpuHours"]) == (lines, 2 * pods)
    seconds = used.user + used.system
    enough = SECONDS * SLOWER * lines / MILLION
    assert (seconds < enough, largest < MEBIBYTES * 2**20) == (True, True), (seconds, largest)


AMOUNTS = ("1", "2", "8", "1/7", "3/4", "2/7")
PRICES = {"nvidia-h100-80gb": "3.950001", "nvidia-l4": "0.723333", "nvidia-t4": "0.19"}


def priced_lines(pod: int) -> tuple[bytes, tuple[str, str, str], Fraction]:
    """Return four lines of a pod that held some GPUs for some milliseconds, its group, and what it costs."""
    gpus, gpu_class = AMOUNTS[pod % len(AMOUNTS)], list(PRICES)[pod % 11 % len(PRICES)]
    group = f"team-{pod % 40}", gpu_class, f"Job/train-{pod % 53}"
    milliseconds = 1 + pod * 7_919 % 100_000_000
    common = {"class": gpu_class, "owner": group[2], "namespace": group[0], "objectUid": f"{pod:08x}"}
    end = count("released", "x", 0, milliseconds / 60_000, gpus, **common)
    held = {**end, "verdict": "held", "time": moment(0)}
    new = {**held, "first": True}
    lines = (msgspec.json.encode(each) + b"\n" for each in (validated("x", 0, **common), new, held, end))
    return b"".join(lines), group, Fraction(gpus) * milliseconds * Fraction(PRICES[gpu_class]) / 3_600_000


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("pods", [MILLION // 20, pytest.param(MILLION // 4, marks=longer)])
def test_the_rows_of_many_lines_add_up_to_the_cent(tmp_path: Path, pods: int) -> None:
    log, prices = tmp_path / "audit.jsonl", tmp_path / "prices.yaml"
    prices.write_text(f"currency: EUR\nclasses: {msgspec.json.encode(PRICES).decode()}\n")
    exact = defaultdict[tuple[str, str, str], Fraction](Fraction)
    with log.open("wb") as file:
        for pod in range(pods):
            lines, group, cost = priced_lines(pod)
            file.write(lines)
            exact[group] += cost
    command = [sys.executable, "-m", "webhook", "usage", "-o", "csv", "--prices", str(prices), str(log)]
    command += [each for by in ("namespace", "class", "owner") for each in ("--by", by)]

    printed = subprocess.run(
        command, capture_output=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )

    rows = list(csv.DictReader(printed.stdout.decode().splitlines()))
    amounts = {(row["namespace"], row["class"], row["owner"]): Decimal(row["amount"]) for row in rows}
    assert amounts.keys() == exact.keys()
    assert all(abs(exact[group] - Fraction(amount)) < Fraction(1, 100) for group, amount in amounts.items())
    total = int(sum(exact.values()) * 100 + Fraction(1, 2))
    assert sum(amounts.values()) * 100 == total
    # As a spreadsheet adds them up, in binary numbers.
    assert round(sum(map(float, amounts.values())), 2) == total / 100
