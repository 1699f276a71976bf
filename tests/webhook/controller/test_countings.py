"""Countings of several catalogues, as configurations and rows come and go."""

from pathlib import Path

import pytest

from policies.gpus.classes import ClassCatalogue
from policies.quota.catalogue import ChargeCatalogue
from tests.builders import CLASSES, RESOURCE_MAPPING
from tests.webhook.cluster.apiserver import ApiServer, status
from webhook.controller.counting import Counting
from webhook.controller.countings import Countings

OURS = ChargeCatalogue(CLASSES, RESOURCE_MAPPING)
NEXT = ChargeCatalogue(ClassCatalogue(list(CLASSES)[:1]), RESOURCE_MAPPING)


def test_a_new_configuration_is_kept_though_no_row_names_it_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ApiServer(tmp_path, lambda _: status(404, "not found")) as server:
        countings = Countings(server.client(), "gpu-admission", OURS, lambda _namespace, _frees: None)
        # Another thread tidies up at the worst moment: the new Counting is there, and begins.
        monkeypatch.setattr(Counting, "start", lambda _: countings.tidy([], leads=False))

        assert countings.configure(NEXT)

        kept = countings.of(countings.own.digest)
        assert kept is countings.own, "its informers are stopped, and it never counts anything"
