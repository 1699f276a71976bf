"""Idle holders on a real API server, by a real Prometheus that scrapes exporters: idle, busy, unknown, MIG, restarted, away."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.controllers import Running, eventually
from tests.cluster.quota.quotas import in_force
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from tests.prometheus import Exporters, dcgm, dcgm_slice, job, prometheus
from webhook.controller.gpu_use import Measuring

SECONDS = 120
WINDOW = timedelta(seconds=10)
ASSUMED_INTERVAL = timedelta(seconds=2)
"""Twice the scrape interval: a busy machine may miss half of the samples."""
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
OWNED = {"ownerReferences": [OWNER]}
EXPORTER_LABELS = {"namespace": "gpu-operator", "pod": "dcgm-exporter-x"}


class IdleTeam:
    def __init__(self, plane: ControlPlane, exporters: Exporters) -> None:
        self.team, self.exporters = Namespace(plane), exporters
        in_force(self.team, {"gpus": "16"})
        for number in range(2):
            self.team.pod(f"train-{number}", 2, metadata=OWNED, nodeName="n")
        for name in ("busy", "restarted", "not-measured"):
            self.team.pod(name, nodeName="n")
        requested = {"limits": {"nvidia.com/mig-1g.10gb": "1"}}
        container = {"name": "c", "image": "i", "resources": requested}
        spec = {"containers": [container], "nodeName": "n"}
        assert self.team.create({"metadata": {"name": "slice"}, "spec": spec})[0] == 201
        self.set_utilization()

    def set_utilization(self, train: float = 0) -> None:
        of_team = partial(dcgm, namespace=self.team.name)
        cards = (
            of_team(f"train-{number}", f"GPU-{number}{card}", train)
            for number in range(2)
            for card in range(2)
        )
        others = dcgm_slice("slice", "GPU-s", 7, 0.01, namespace=self.team.name) + of_team(
            "busy", "GPU-b", 80
        )
        self.exporters.pages |= {"dcgm": "".join(cards) + others, "node-2": of_team("restarted", "GPU-r", 0)}

    def idle(self) -> dict[str, str]:
        """Return the GPUs of idle holders by name, as the status shows them, if the ledger names the same."""
        shown, holders = self.team.status().idle, self.team.ledger_object().holders.get("gpus", ())
        found = {each.name: str(each.gpus) for each in shown.holders} if shown else {}
        return found if found.keys() == {each.name for each in holders if each.idle_since} else {}

    def since(self, name: str) -> str:
        shown = self.team.status().idle
        return next(each.since for each in shown.holders if each.name == name) if shown else ""

    def becomes(self, **want: str) -> bool:
        return eventually(
            lambda: self.idle() == {name.replace("_", "/"): gpus for name, gpus in want.items()},
            seconds=SECONDS,
        )

    def events(self) -> dict[str, Any]:
        """Return the Events on idle pods by the name of the pod."""
        items = self.team.client.get(self.team.path("events"))[1]["items"]
        return {each["involvedObject"]["name"]: each for each in items if each["reason"] == "GPUsIdle"}


@pytest.fixture
def exporters() -> Iterator[Exporters]:
    with Exporters({}) as running:
        yield running


def test_idle_holders_are_named_until_they_work_and_while_they_are_measured(
    quotas: ControlPlane, exporters: Exporters, tmp_path: Path
) -> None:
    jobs = [job(name, exporters, labels=EXPORTER_LABELS) for name in ("dcgm", "node-2")]
    with ExitStack() as running:
        client = running.enter_context(prometheus(tmp_path, jobs, 'job=~"dcgm|node-2"'))
        second = timedelta(seconds=1)
        measuring = Measuring(
            prometheus=client, idle_after=WINDOW, every=second, rules_interval=ASSUMED_INTERVAL
        )
        with Running(quotas, measuring=measuring):
            idle_team = IdleTeam(quotas, exporters)

            assert idle_team.becomes(Job_train="4", Pod_restarted="1", Pod_slice="1/4")
            named = {"train-0", "train-1", "restarted", "slice"}
            assert eventually(lambda: idle_team.events().keys() == named, seconds=SECONDS)
            message = idle_team.events()["train-0"]["message"]
            assert message.startswith("has been idle for 0 min: 2 GPUs, each under 5 % busy; ")
            first = idle_team.since("Pod/restarted")

            # An exporter that is away for some seconds leaves a gap: what the pod did in it is not known.
            exporters.pages.pop("node-2")
            assert idle_team.becomes(Job_train="4", Pod_slice="1/4")
            idle_team.set_utilization()
            assert idle_team.becomes(Job_train="4", Pod_restarted="1", Pod_slice="1/4")
            assert idle_team.since("Pod/restarted") > first

            idle_team.set_utilization(train=50)
            assert idle_team.becomes(Pod_restarted="1", Pod_slice="1/4")

            running.close()
            shown = eventually(
                lambda: (idle := idle_team.team.status().idle) and idle.measured and idle, seconds=SECONDS
            )
            assert shown
            assert (shown.gpus, shown.holders) == (None, ())
            assert shown.measured == f"Prometheus at {client.url} refused the connection"
            assert idle_team.becomes()
