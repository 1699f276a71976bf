"""docs/operate/audit-log.md has every field of a line, and every metric that the processes serve."""

import json
import re
from collections import Counter
from pathlib import Path

from prometheus_client import CollectorRegistry

from policies.gpus.claimed_devices import DeviceQuery
from tests.builders import gpu_container, pod, uid
from tests.webhook.serving.served import request
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import NAMESPACE
from webhook.configuration.cluster_source import ClusterSource
from webhook.configuration.loader import load_directory
from webhook.configuration.source import ConfigurationCollector
from webhook.controller.metrics import ControllerMetrics, Scraped, pending_gauges, watch_gauges
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.facts import Facts
from webhook.quota.batcher import ReservationBatcher
from webhook.quota.enforcer import QuotaEnforcer
from webhook.quota.metrics import LedgerCollector, QuotaMetrics
from webhook.quota.store import MemoryStore
from webhook.server.dispatcher import ServerMetrics
from webhook.serving.audit import LONGEST_LINE, AuditLog, Recorder
from webhook.serving.deadline import deadline_of
from webhook.serving.dispatch import Admission
from webhook.serving.handler import ClusterState
from webhook.serving.metrics import Metrics

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "operate" / "audit-log.md"


def first_column(heading: str) -> set[str]:
    """Return the words in code type of the first columns of the tables below a heading."""
    text = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {word for cell in cells for word in re.findall("`(.+?)`", cell)}


def test_every_field_of_the_audit_log_is_documented(tmp_path: Path) -> None:
    log, lost = tmp_path / "audit.jsonl", Counter[str]()
    audit = AuditLog.to(str(log), lambda number: lost.update(lines=number))
    configuration = load_directory(ROOT / "examples" / "policies")
    quotas = QuotaMetrics(CollectorRegistry())
    granted = load_directory(ROOT / "examples" / "quotas")
    store = MemoryStore(lambda: granted)
    recorder = Recorder(Metrics(CollectorRegistry()), audit, replica="webhook-1")
    cluster = ClusterState(
        facts=lambda _deadline: Facts(claims=lambda _claim: frozenset({DeviceQuery("gpu.nvidia.com")})),
        quota=QuotaEnforcer(ReservationBatcher(store, quotas)),
    )
    admission = Admission(lambda: DecisionCache(configuration), recorder, cluster)
    claimed = [{"name": "gpu", "resourceClaimName": "gpu"}]
    for namespace, count in (("team", "1"), ("team", "500m"), ("kube-system", "1")):
        admission.mutate(
            request(pod(gpu_container(count), resourceClaims=claimed), namespace=namespace), deadline_of(None)
        )
    owned = pod(gpu_container("1"), nodeSelector={"accelerator": "nvidia-l4"})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid("job"), "controller": True}
    owned["metadata"] |= {"uid": uid("pod"), "ownerReferences": [owner]}
    admission.validate(request(owned, namespace="research"), deadline_of(None))
    audit.write({"operations": "x" * LONGEST_LINE})
    audit.stop()
    fields = {field for line in log.read_text().splitlines() for field in json.loads(line)}

    assert not lost
    assert first_column("The audit log") == fields


def nowhere(folder: Path) -> ApiClient:
    """Return a client of a cluster that is not there, for what asks nothing of it."""
    document = {
        "clusters": [{"name": "none", "cluster": {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "nobody"}}],
        "current-context": "none",
    }
    (folder / "kubeconfig").write_text(json.dumps(document))
    return ApiClient(load_access(str(folder / "kubeconfig")))


def test_the_table_of_metrics_has_what_the_processes_serve(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    ServerMetrics(registry)
    registry.register(
        ConfigurationCollector(ClusterSource(nowhere(tmp_path), lambda _state: None, NAMESPACE))
    )
    QuotaMetrics(registry)
    registry.register(LedgerCollector(dict))
    ControllerMetrics(registry)
    registry.register(Scraped(lambda: watch_gauges({})))
    registry.register(Scraped(lambda: pending_gauges({})))
    names = {f"{family.name}{'_total' if family.type == 'counter' else ''}" for family in registry.collect()}

    assert names <= first_column("Metrics")
