"""What takes long in the turn of a team leaves time for the counts of its namespaces."""

from collections.abc import Callable

import pytest

from policies.quota.ledger.quota_ledger import QuotaLedger
from tests.webhook.controller.team_scene import NAMESPACES, Scene, run
from webhook.controller import teams
from webhook.controller.reconciler import CONTEND_SECONDS, CONTENDED_RETRY_SECONDS
from webhook.quota.documents import quota_path


def test_quotas_that_do_not_fit_leave_half_of_the_time_for_the_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("webhook.controller.team_reconciler.monotonic", lambda: now[0])

    def test(scene: Scene) -> None:
        monkeypatch.setattr(teams, "LONGEST_BODY", 1)
        read: Callable[[str, float], QuotaLedger | None] = scene.controller.quotas.store.read_desired

        def read_late(namespace: str, seconds: float) -> QuotaLedger | None:
            now[0] += 0.6 * CONTEND_SECONDS
            return read(namespace, seconds)

        scene.controller.quotas.store.read_desired = read_late
        for namespace in ("cv", "prod"):
            quota = scene.world.api._objects[quota_path(namespace)]
            quota["spec"]["hard"], quota["metadata"]["generation"] = (
                {"gpus": 1, "classes": {"nvidia-t4": 1}},
                2,
            )
        assert scene.reconcile(*NAMESPACES) == {"cv": None, "nlp": None, "prod": CONTENDED_RETRY_SECONDS}
        assert scene.waiting() == {"cv": 7, "nlp": 7, "prod": 0}
        assert scene.reconcile("prod") == {"prod": None}, "its turn comes"
        assert scene.waiting()["prod"] == 7

    run(test)


def test_those_that_join_delay_no_count() -> None:
    def test(scene: Scene) -> None:
        scene.world.belongs["cv"] = ""
        scene.reconcile("cv")
        scene.world.belongs["cv"] = "a"
        scene.counted.clear()
        assert scene.reconcile("cv", "prod") == {"cv": None, "prod": None}
        assert scene.counted == ["prod", "cv"]

    run(test)
