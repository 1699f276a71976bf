"""Counters of several catalogues, while configurations and ledgers come and go."""

import json
from pathlib import Path

import pytest

from policies.gpus.classes import ClassCatalogue
from policies.quota.catalogue import PublishedCatalogue, catalogue_digest
from tests.builders import CLASSES, RESOURCE_MAPPING
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, status
from webhook.cluster.objects import CATALOGUES
from webhook.controller.usage_cache import UsageCache
from webhook.controller.usage_counter import UsageCounter

OURS = PublishedCatalogue(CLASSES, RESOURCE_MAPPING)
NEXT = PublishedCatalogue(ClassCatalogue(list(CLASSES)[:1]), RESOURCE_MAPPING)


def test_a_new_configuration_is_kept_though_no_ledger_names_it_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ApiServer(tmp_path, lambda _: status(404, "not found")) as server:
        usage_cache = UsageCache(server.client(), "gpu-admission", OURS, lambda _namespace, _frees: None)
        # Another thread tidies up at the worst moment: when the new counter starts.
        monkeypatch.setattr(UsageCounter, "start", lambda _: usage_cache.tidy({}, leads=False))

        assert usage_cache.configure(NEXT)

        kept = usage_cache.of(usage_cache.own.digest)
        assert kept is usage_cache.own, "its informers are stopped, and it never counts anything"


def test_a_follower_believes_nothing_of_what_it_published_while_it_led(tmp_path: Path) -> None:
    reads: list[str] = []
    stored = {
        "metadata": {"name": CATALOGUES, "resourceVersion": "1"},
        "data": {catalogue_digest(OURS): "as it was published"},
    }

    def answer(request: Request) -> Answer:
        if not request.path.endswith(CATALOGUES):
            return status(404, "not found")
        reads.append(request.path)
        return Answer(json.dumps(stored).encode())

    with ApiServer(tmp_path, answer) as server:
        usage_cache = UsageCache(server.client(), "gpu-admission", OURS, lambda _namespace, _frees: None)
        assert usage_cache.publish(usage_cache.own)
        assert usage_cache.publish(usage_cache.own)
        assert len(reads) == 1

        usage_cache.tidy({}, leads=False)

        assert usage_cache.publish(usage_cache.own)
        assert len(reads) == 2, "the leader in between may have removed it"
