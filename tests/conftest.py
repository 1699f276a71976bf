"""Settings of all tests."""

import gc
import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# CI evaluates this change, not the luck of its draw; everywhere else each run looks at new examples. `make test-all` asks for
# all of them; a test that needs more or fewer than others takes a multiple of `settings().max_examples`.
DERANDOMIZE = bool(os.environ.get("CI"))
# How long an example takes says how busy the machine is.
settings.register_profile(
    "quick",
    max_examples=40,
    derandomize=DERANDOMIZE,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("all", parent=settings.get_profile("quick"), max_examples=60)
settings.register_profile("least", parent=settings.get_profile("quick"), max_examples=4)  # tests/sentences.py
settings.load_profile("quick")
# Without bytecode every process that a test starts compiles all of it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Half of what the tests cost are API servers, which collect garbage less often with these: up to 1 GiB each.
os.environ.setdefault("GOGC", "1600")
os.environ.setdefault("GOMEMLIMIT", "1GiB")

TOGETHER = {
    "a plane to install on": ("tests/cluster/deploy/",),
    "one installation for doctor": ("tests/cluster/doctor/",),
    "one cluster with workloads": ("tests/cluster/status/",),
    "one cluster with devices of DRA drivers": ("tests/cluster/devices/",),
    "a plane without other nodes": (
        "tests/cluster/test_cuda_and_spot.py",
        "tests/cluster/test_no_node.py",
    ),
    "one webhook and one controller for quotas": tuple(
        f"tests/cluster/quota/test_{name}.py"
        for name in (
            "claims",
            "class_caps",
            "controller",
            "damaged_ledgers",
            "demand",
            "long_names",
            "reviewed_again",
        )
    ),
    "one line of pods of controllers": tuple(
        f"tests/cluster/waiting/test_{name}.py"
        for name in ("controllers", "gangs", "readers", "waiting_transcripts")
    ),
    "a whole control plane": (
        "tests/cluster/test_export",
        "tests/cluster/outage/test_admission_policies.py",
        "tests/cluster/neighbours/",
        "tests/cluster/quota/test_claims_in_use.py",
        "tests/cluster/quota/test_leak.py",
        "tests/cluster/quota/test_large_beside_crowd.py",
        *(
            f"tests/cluster/test_{name}.py"
            for name in ("controlplane", "daemonset", "equal_pods", "transcripts")
        ),
    ),
}
"""Files that share a fixture which takes long to set up."""
LONGEST = (
    "tests/cluster/mixed/test_mixed_faults.py",
    "tests/cluster/neighbours/",
    "tests/cluster/deploy/",
    "tests/cluster/quota/",
    "tests/cluster/outage/",
    "tests/cluster/waiting/",
    "tests/cluster/mixed/",  # its test of memory needs as much of a processor as mixed faults do: not beside them
    "tests/cluster/console/",
    "tests/cluster/certificates/",
    "tests/cluster/test_demo.py",
    "tests/deploy/test_image.py",
    "tests/webhook/serving/test_hostile.py",
    "tests/cluster/availability/",
    "tests/cluster/test_cluster_configuration.py",
    "tests/cluster/test_controller_faults.py",
    "tests/cluster/test_demand_differential.py",
    "tests/cluster/status/",
    "tests/cluster/doctor/",
    "tests/cluster/",
)
"""What would keep one process busy after the others have ended, longest first; they begin with it."""
WAITS = "tests/cluster/"
"""Tests that wait most of the time. What takes processor time runs beside them."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from what lives as long as the process: all modules and tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {start: rank for rank, start in enumerate(LONGEST)}

    def rank(item: pytest.Item) -> int:
        return next((rank for start, rank in ranks.items() if item.nodeid.startswith(start)), len(LONGEST))

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `--dist loadscope`: a file stays in one process, and beside it those that share a fixture with it."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415  # only where it runs

    starts = [*LONGEST, *(start for each in TOGETHER.values() for start in each)]
    if gone := [start for start in starts if not list(config.rootpath.glob(f"{start}*"))]:
        raise pytest.UsageError(
            f"TOGETHER or LONGEST in tests/conftest.py names what is not there: {', '.join(gone)}"
        )

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((name for name, starts in TOGETHER.items() if file.startswith(starts)), file)

        def _assign_work_unit(self, node: Any) -> None:
            """Give a process its next file, two tests before it needs it. While these may take minutes, give it a small one."""
            given = self.assigned_work.get(node, {}).values()
            if any(not done and test.startswith(WAITS) for tests in given for test, done in tests.items()):
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    return Scheduling(config, log) if config.getoption("dist") == "loadscope" else None
