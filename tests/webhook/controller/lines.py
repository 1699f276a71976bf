"""Pods in line, and the line that they wait in."""

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.quota.catalogue import CatalogueVersion
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.keeping_objects import Keeper
from policies.quota.waiting import GATE, QueueSpec
from tests.builders import JSON, gpu_container
from webhook.configuration.loader import load_directory
from webhook.controller.kueue_admissions import Admitted
from webhook.controller.replacements import Replacements
from webhook.controller.usage_counter import UsageEvents
from webhook.controller.waiting_line import WaitingLine
from webhook.quota.counted_records import CountedPod, RecordReader
from webhook.workloads.gang_sources import GangSource

BY = CatalogueVersion("0123456789abcdef", UnclassifiedPods.TOTAL_ONLY)

NO_KEEPERS: Any = SimpleNamespace(
    of=lambda _namespace, reference, _late: Keeper(
        reference.api_version, reference.kind, reference.name, reference.uid
    )
)
"""All owners exist, and keep nothing."""


def no_replacements(usage_cache: Any, reconcile_later: Any = None) -> Any:
    return SimpleNamespace(
        credited=None,
        usage_cache=usage_cache,
        line_spec_of=lambda _: QueueSpec(),
        reconcile_later=reconcile_later,
    )


def member(
    uid: str, phase: str = "", *, waits: bool = False, job: str = "1", group: str = "", deleted: bool = False
) -> CountedPod:
    spec = {"containers": [gpu_container("1")]} | ({"schedulingGates": [{"name": GATE}]} if waits else {})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"train-{job}", "uid": job, "controller": True}
    metadata: JSON = {"name": uid, "uid": uid, "namespace": "team", "resourceVersion": "1"}
    metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    metadata |= {
        "ownerReferences": [owner],
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
        "labels": {"scheduling.x-k8s.io/pod-group": group} if group else {},
    }
    document = {"metadata": metadata, "spec": spec, "status": {"phase": phase}}
    found = RecordReader(load_directory(None)).read_pod(msgspec.Raw(msgspec.json.encode(document)))
    assert found is not None
    return found


def owned(uid: str, kind: str, *, waits: bool = False, of: str = "1") -> CountedPod:
    owner = GangSource("batch/v1" if kind == "Job" else "apps/v1", kind, "app", uid=of)
    found = member(uid, "" if waits else "Succeeded", waits=waits)
    return replace(found, holder=f"{kind}/app", owner=owner)


GPU = {"gpus": Fraction(1)}


def a_line(
    cache: Any = None, *, queue: QueueSpec | None = None, queues: bool = True, keepers: Any = None
) -> WaitingLine:
    counter: Any = SimpleNamespace(
        synced=True,
        sums=SimpleNamespace(waiting=lambda _: [], pods=lambda _: [], demand_if_started=lambda *_: GPU),
    )
    found: Any = cache or SimpleNamespace(
        own_counter=counter, waiting=counter.sums.waiting, of=lambda _: counter, events=UsageEvents()
    )
    nothing: Any = SimpleNamespace(
        find=lambda *_: {}, forget=lambda _: None, nobody=lambda _: None, turn=lambda *_: None
    )
    given: Any = (lambda _: queue or QueueSpec(), lambda _: queues, lambda *_: None)
    replacements = Replacements(found, keepers or NO_KEEPERS, *given)
    kueue: Any = SimpleNamespace(of=lambda *_: Admitted())
    return WaitingLine(nothing, nothing, replacements, kueue, nothing)
