"""The webhook itself beside a control plane: real `gpu-admission serve` processes, registered by the manifests of deploy/.

The Service gets a loopback clusterIP of the plane's range, and the process listens on that very address, so the API server
finds it through the same `clientConfig.service` as in production.
"""

import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.controlplane.build import locate
from tests.controlplane.client import JSON_PATCH, Client, accepted
from tests.controlplane.plane import ControlPlane

ROOT = Path(__file__).parents[2]
STRICT = Path("deploy", "static", "strict")
NAMESPACE = "gpu-admission"
SERVER_NAME = f"gpu-admission.{NAMESPACE}.svc"
CONFIGURATIONS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
CONFIGURATION_PATHS = [
    f"/apis/admissionregistration.k8s.io/v1/{kind}s/zz-gpu-admission" for kind in CONFIGURATIONS
]
PROBE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "probe-"},
    "spec": {
        "containers": [{"name": "probe", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    },
}
REGISTRATION = {
    "CustomResourceDefinition",
    "Namespace",
    "Service",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
}
"""What the API server has to know of us; what runs our pods has no place where there is no kubelet."""
READY_WITHIN = 60  # seconds; 2 on an idle machine
STOP_WITHIN = 30

Calls = Counter[str]
"""How often /mutate and /validate have answered, by the name of the phase."""


class Webhook:
    """One `serve` process for `plane`, between `start` and `stop`, or for the length of a `with` block.

    `config` is its directory of documents, `arguments` go to `gpu-admission serve`. It ends with the plane at the latest.
    Processes behind one Service share a folder of `certificates`. `source` is the tree that it runs. Ledgers are in the namespace
    `installation`, which must be that of the controller.
    """

    def __init__(
        self,
        plane: ControlPlane,
        *,
        config: Path | None = None,
        host: int = 10,
        arguments: tuple[str | Path, ...] = (),
        certificates: Path | None = None,
        source: Path = ROOT,
        installation: str = "default",
    ) -> None:
        self._plane = plane
        self._source = source
        self._installation = installation
        self.config = config
        self._arguments = arguments
        self.name = f"webhook-{host}"
        self.address = plane.service_address(host)
        self.folder = plane.processes.folder / self.name
        self.folder.mkdir(exist_ok=True)
        self._names = (SERVER_NAME,) if certificates else (SERVER_NAME, self.address)
        self.certificates = certificates or self.folder / "certs"
        self.audit_log = self.folder / "audit.jsonl"
        self._lines_before = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.name in self._plane.pids:
            self.kill()  # an end in order takes more than a second, and is tested where it is the subject

    def start(self) -> None:
        self._lines_before = len(self._audit_lines())
        self._plane.processes.start(
            self.name,
            [
                *("env", f"PYTHONPATH={self._source}", f"POD_NAMESPACE={self._installation}"),
                *(sys.executable, "-m", "webhook", "serve"),
                *("--host", self.address, "--port", "443"),
                *("--metrics-host", self.address, "--metrics-port", "9443", "--drain-seconds", "0"),
                *("--self-signed", self.certificates),
                *(part for name in self._names for part in ("--name", name)),
                *("--audit-log", self.audit_log),
                *(("--config", self.config.resolve()) if self.config else ()),
                *self._arguments,
                *(() if "--kubeconfig" in self._arguments else ("--standalone",)),
            ],
        )
        deadline = time.monotonic() + READY_WITHIN
        while not self._answers():
            if self._plane.processes.exit_status(self.name) is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the webhook did not start:\n{self.log()}")
            time.sleep(0.05)

    def stop(self) -> None:
        self._plane.processes.terminate(self.name, grace=STOP_WITHIN)

    def kill(self) -> None:
        """End it as a crash would: gunicorn's master and its worker at once."""
        for pid in self.pids():
            psutil.Process(pid).kill()
        self._plane.processes.kill(self.name)

    def pause(self, seconds: float) -> None:
        """Stop it as a machine does that has no time for it: its clock goes on."""
        pids = self.pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def pids(self) -> list[int]:
        """Return the process ids of gunicorn's worker and master, for CPU and memory accounting."""
        master = psutil.Process(self._plane.pids[self.name])
        return [*(child.pid for child in master.children()), master.pid]

    def log(self) -> str:
        return self._plane.logs(self.name)

    def audit(self) -> list[dict[str, Any]]:
        """Return the audit log, once it has a line for every review that was answered: they are written a moment later."""
        want, deadline = self._lines_before + self.calls().total(), time.monotonic() + READY_WITHIN
        while len(lines := self._audit_lines()) < want:
            assert time.monotonic() < deadline, f"{len(lines)} lines in the audit log, of {want}"
            time.sleep(0.05)
        return [msgspec.json.decode(line) for line in lines]

    def _audit_lines(self) -> list[str]:
        text = self.audit_log.read_text() if self.audit_log.exists() else ""
        return text.rpartition("\n")[0].splitlines()

    def ready(self) -> bool:
        try:
            with readyz_of(self.address):
                return True
        except OSError:
            return False

    def metrics(self) -> str:
        return metrics_of(self.address)

    def register(self) -> None:
        """Apply deploy/ as an operator would, and return once the API server calls us."""
        install(self._plane, self.manifests(), self.calls)

    def unregister(self) -> None:
        """Return once the API server calls us no more: what it creates until then would fail without us."""
        uninstall(self._plane)
        while self.name in self._plane.pids and self._is_called():
            time.sleep(0.05)

    def _is_called(self) -> bool:
        before = self.calls()
        self._plane.client().post("/api/v1/namespaces/default/pods", PROBE, {"dryRun": "All"})
        return self.calls() != before

    def calls(self) -> Calls:
        counts: Calls = Counter()
        for family in text_string_to_metric_families(self.metrics()):
            for sample in family.samples:
                if sample.name == "gpu_admission_requests_total":
                    counts[sample.labels["phase"]] += int(sample.value)
        return counts

    def total(self, name: str) -> float:
        return summed(self.metrics(), name)

    def counted(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Return the samples of all counters and histograms about reviews, by name and labels."""
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.metrics())
            for sample in family.samples
            if family.type in {"counter", "histogram"} and "dry_run" in sample.labels
        }

    def manifests(self) -> list[dict[str, Any]]:
        """Return what deploy/ holds, adapted to this plane."""
        return manifests(self.address, self.certificates / "ca.crt", self._source)

    def _answers(self) -> bool:
        try:
            self.metrics()
        except OSError:
            return False
        return True


def summed(metrics: str, name: str, **labels: str) -> float:
    """Return a metric summed over all labels but those whose beginnings are given."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == name and all(sample.labels[key].startswith(value) for key, value in labels.items())
    )


def readyz_of(address: str) -> Any:
    """Ask as the kubelet does, who looks at no certificate."""
    context = ssl.SSLContext(
        ssl.PROTOCOL_TLS_CLIENT
    )  # create_default_context() reads the authorities of the machine: 16 ms
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return urllib.request.urlopen(f"https://{address}/readyz", context=context, timeout=10)


def metrics_of(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}:9443/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


@contextmanager
def serving(
    plane: ControlPlane,
    documents: str = "",
    *namespaces: str,
    host: int = 10,
    arguments: tuple[str | Path, ...] = (),
) -> Iterator[Webhook]:
    """Make the namespaces, and have a webhook with these documents called for their pods; take all of it away at the end."""
    client = plane.client()
    for name in namespaces:
        assert client.post("/api/v1/namespaces", {"metadata": {"name": name}})[0] == 201
    config = plane.processes.folder / f"documents-{host}"
    config.mkdir(exist_ok=True)
    (config / "documents.yaml").write_text(documents)
    with Webhook(plane, config=config if documents else None, host=host, arguments=arguments) as webhook:
        try:
            webhook.register()
            yield webhook
        finally:
            webhook.unregister()
    for name in namespaces:
        client.delete(f"/api/v1/namespaces/{name}")


@cache
def _strict(source: Path) -> str:
    kubectl, folder = locate() / "kubectl", source / STRICT
    return subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=True).stdout


def strict_manifests(source: Path = ROOT) -> list[dict[str, Any]]:
    """Return what `kubectl apply -k deploy/static/strict` applies: GPU pods depend on the webhook."""
    return list(yaml.load_all(_strict(source), Loader=yaml.CSafeLoader))


def manifests(address: str, authority: Path, source: Path = ROOT) -> list[dict[str, Any]]:
    """Return what registers us, of deploy/, for a Service at `address`: nothing but clusterIP and caBundle differs."""
    bundle = b64encode(authority.read_bytes()).decode()
    documents: list[dict[str, Any]] = []
    for document in strict_manifests(source):
        if document["kind"] not in REGISTRATION:
            continue
        if document["metadata"]["name"] == "gpu-admission" and document["kind"] == "Service":
            document["spec"]["clusterIP"] = address
        for webhook in document.get("webhooks", ()):
            webhook["clientConfig"] = {**webhook["clientConfig"], "caBundle": bundle}
        documents.append(document)
    return documents


def apply_all(plane: ControlPlane, documents: list[dict[str, Any]]) -> None:
    for document in documents:
        status, answer, _ = plane.client().apply(document)
        assert status < 300, answer


def install(plane: ControlPlane, documents: list[dict[str, Any]], calls: Callable[[], Calls]) -> None:
    """Apply the documents and return once the API server calls both webhooks: it learns of them a moment late."""
    apply_all(plane, documents)
    before = calls()
    deadline = time.monotonic() + READY_WITHIN
    while len(calls() - before) < len(CONFIGURATIONS):
        if time.monotonic() > deadline:
            raise RuntimeError("the API server does not call the webhook")
        plane.client().post("/api/v1/namespaces/default/pods", PROBE, {"dryRun": "All"})
        time.sleep(0.02)


def set_bundles(client: Client, bundle: bytes | None) -> None:
    """Write the caBundle of every webhook of ours, and nothing else; None removes it."""
    for path in CONFIGURATION_PATHS:
        count = len(client.get(path)[1]["webhooks"])
        fields = [f"/webhooks/{number}/clientConfig/caBundle" for number in range(count)]
        change = {"op": "remove"} if bundle is None else {"op": "add", "value": b64encode(bundle).decode()}
        accepted(client.patch(path, [{**change, "path": each} for each in fields], content_type=JSON_PATCH))


def uninstall(plane: ControlPlane) -> None:
    for path in CONFIGURATION_PATHS:
        plane.client().delete(path)
    # Its clusterIP cannot change, and another webhook of this plane may listen elsewhere.
    plane.client().delete(f"/api/v1/namespaces/{NAMESPACE}/services/gpu-admission")
    deadline = time.monotonic() + READY_WITHIN
    while plane.client().post("/api/v1/namespaces/default/pods", PROBE, {"dryRun": "All"})[0] >= 500:
        if time.monotonic() > deadline:
            raise RuntimeError("the API server still calls a webhook that is not there")
        time.sleep(0.05)
