"""A source writes one line a minute: what somebody repeats neither fills the log nor hides other lines."""

import io
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import cases
from webhook.commands import log_options
from webhook.commands.log_options import DENIALS_LOGGER, MAX_SOURCES, JsonLines, LimitedHandler, TextLines


class Log:
    """A logger of its own, whose handler lives in a time that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.stream = 1_000.0, io.StringIO()
        monkeypatch.setattr(log_options, "monotonic", lambda: self.now)
        self.handler = LimitedHandler(self.stream)
        self.handler.setFormatter(TextLines())
        self.logger = logging.Logger("gpu_admission.controller")  # noqa: LOG001 - one of each test
        self.logger.addHandler(self.handler)

    @property
    def lines(self) -> list[str]:
        """Return what was written since the last call, without times."""
        found = [
            line.partition(" ")[2] for line in self.stream.getvalue().splitlines() if not line.startswith(" ")
        ]
        self.stream.truncate(0)
        self.stream.seek(0)
        return found


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    log = Log(monkeypatch)
    yield log
    log.handler.close()


def gang(log: Log, namespace: str, number: int) -> None:
    log.logger.warning("%s: the gang of PodGroup %s: not found", namespace, number)


def test_990_gangs_that_do_not_exist_for_a_minute(log: Log) -> None:
    for second in range(60):
        log.now += 1
        for number in range(330):
            gang(log, "ml", second * 330 + number)
    assert log.lines == ["WARNING gpu_admission.controller: ml: the gang of PodGroup 0: not found"]

    log.now += 1
    gang(log, "ml", 0)
    more = "(and 19798 more such lines since the one before)"
    assert log.lines == [
        f"WARNING gpu_admission.controller: ml: the gang of PodGroup 19799: not found {more}"
    ]

    log.now += 61
    gang(log, "ml", 1)
    assert log.lines == ["WARNING gpu_admission.controller: ml: the gang of PodGroup 0: not found"]


def test_a_tenant_hides_neither_other_namespaces_nor_other_errors(log: Log) -> None:
    for number in range(1_000):
        gang(log, "evil", number)
    gang(log, "ml", 1)
    log.logger.warning("%s/%s: its gate", "evil", "pod-1")
    log.logger.warning("%s: %s", "evil", "another place in the code")
    log.logger.error("lease")

    assert [line.partition(": ")[2] for line in log.lines] == [
        "evil: the gang of PodGroup 0: not found",
        "ml: the gang of PodGroup 1: not found",
        "evil/pod-1: its gate",
        "evil: another place in the code",
        "lease",
    ]


def test_two_defects_at_one_place_are_two_sources(log: Log) -> None:
    def first() -> None:
        raise KeyError("first")

    def second() -> None:
        raise KeyError("second")

    for bug in (first, first, second, first, second):
        try:
            bug()
        except KeyError:
            log.logger.exception("%s: reconciliation failed", "ml")

    assert log.lines == ["ERROR gpu_admission.controller: ml: reconciliation failed"] * 2


def test_what_was_left_out_comes_with_the_line_of_another_source(log: Log) -> None:
    for number in range(3):
        gang(log, "ml", number)
    log.now += 61
    log.logger.error("lease")

    assert [line.partition(": ")[2] for line in log.lines] == [
        "ml: the gang of PodGroup 0: not found",
        "ml: the gang of PodGroup 2: not found (and 1 more such lines since the one before)",
        "lease",
    ]


def test_what_was_left_out_comes_at_the_end(log: Log) -> None:
    for number in range(5):
        gang(log, "ml", number)
    log.handler.close()

    assert [line.partition("PodGroup ")[2] for line in log.lines] == [
        "0: not found",
        "4: not found (and 3 more such lines since the one before)",
    ]


def test_invented_subjects_do_not_grow(log: Log) -> None:
    for number in range(3 * MAX_SOURCES):
        gang(log, f"ns-{number}", 0)

    assert len(log.lines) == len(log.handler._windows) == MAX_SOURCES + 1


@cases(
    ("name", "level"),
    denials_that_are_gathered_by_owner=(DENIALS_LOGGER, logging.INFO),
    what_somebody_asked_for_to_debug=("gpu_admission.cluster", logging.DEBUG),
)
def test_lines_that_are_not_limited(log: Log, name: str, level: int) -> None:
    log.logger.name = name
    for _ in range(20):
        log.logger.log(level, "%s", "denied")

    assert len(log.lines) == 20


def test_json_says_it_in_the_message(log: Log) -> None:
    log.handler.setFormatter(JsonLines())
    for number in range(3):
        gang(log, "ml", number)
    log.handler.close()

    assert 'more such lines since the one before)"}' in log.stream.getvalue()


def test_threads_lose_no_count(log: Log) -> None:
    def repeat() -> None:
        for _ in range(500):
            gang(log, "ml", 0)

    threads = [threading.Thread(target=repeat) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.handler.close()

    assert "(and 3998 more such lines since the one before)" in log.stream.getvalue()


def test_both_processes_have_it() -> None:
    """As all that logs: it is the handler of the root, which `serve` and `controller` set up by the same option."""
    commands = Path(sys.modules["webhook.commands"].__path__[0])
    users = {path.stem for path in commands.glob("*.py") if "@log_options" in path.read_text()}

    assert users == {"serve", "controller"}
