"""A real Prometheus of the machine (Debian's `prometheus`), which scrapes exporters that serve what a test says.

GPU_ADMISSION_REQUIRE_PROMETHEUS=1 makes its absence a failure.
"""

import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from tests.deploy.manifests import recording_rules
from webhook.prometheus.client import Prometheus

INTERVAL = "1s"
"""Between two scrapes and two evaluations of rules."""
DCGM = 'gpu="0",UUID="{gpu}",pci_bus_id="00000000:10:1C.0",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB"'
"""The labels of dcgm-exporter (internal/pkg/rendermetrics/render_metrics.go), before those of the pod."""


def of_pod(pod: str, namespace: str) -> str:
    return f',container="main",namespace="{namespace}",pod="{pod}"'


def dcgm(pod: str, gpu: str, percent: float, mebibytes: float = 1024, namespace: str = "team") -> str:
    """Return what dcgm-exporter says of a card."""
    labels = DCGM.format(gpu=gpu) + of_pod(pod, namespace)
    return f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {percent}\nDCGM_FI_DEV_FB_USED{{{labels}}} {mebibytes}\n"


def dcgm_slice(
    pod: str, gpu: str, instance: int, ratio: float, mebibytes: float = 1024, namespace: str = "team"
) -> str:
    """Return what dcgm-exporter says of a MIG slice."""
    slice_labels = f'GPU_I_PROFILE="1g.10gb",GPU_I_ID="{instance}"'
    labels = f"{DCGM.format(gpu=gpu)},{slice_labels}{of_pod(pod, namespace)}"
    return f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{labels}}} {ratio}\nDCGM_FI_DEV_FB_USED{{{labels}}} {mebibytes}\n"


def amd(pod: str, gpu: int, percent: float, mebibytes: float = 1024, prefix: str = "amd_") -> str:
    """Return what device-metrics-exporter says of a card."""
    of_gpu = (
        f'card_model="102-G30211-0C",gpu_id="{gpu}",gpu_partition_id="0",hostname="n",serial_number="S{gpu}"'
    )
    labels = of_gpu + of_pod(pod, "team")
    return f"{prefix}gpu_gfx_activity{{{labels}}} {percent}\n{prefix}gpu_used_vram{{{labels}}} {mebibytes}\n"


class Exporters:
    """Exporters on one port, each below its name. `pages` are what they say now; one without a page is away.

    `page` says it again for each scrape.
    """

    def __init__(self, pages: Mapping[str, str], page: Callable[[str], str | None] | None = None) -> None:
        self.pages = dict(pages)
        outer = self

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Prometheus hangs up on what takes too long, on a busy machine."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = (page or outer.pages.get)(self.path.strip("/"))
                self.send_response(503 if found is None else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write((found or "").encode())

            def log_message(self, *_arguments: Any) -> None:
                """Say nothing."""

        self._server = Server(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def job(
    name: str, exporters: Exporters, labels: Mapping[str, str] | None = None, **fields: Any
) -> dict[str, Any]:
    """Return how the page of that name is scraped: the labels of the target, and fields of Prometheus such as `honor_labels`."""
    target = {"targets": [exporters.address], "labels": dict(labels or {})}
    return {"job_name": name, "metrics_path": f"/{name}", "static_configs": [target], **fields}


def binary_of_prometheus(name: str) -> str:
    """Return the path of `prometheus` or `promtool`; without it, the test is skipped."""
    binary = shutil.which(name)
    if binary is None:
        lacking = f"no {name}: Debian has it in package prometheus"
        if os.environ.get("GPU_ADMISSION_REQUIRE_PROMETHEUS") == "1":
            pytest.fail(f"GPU_ADMISSION_REQUIRE_PROMETHEUS=1: {lacking}", pytrace=False)
        pytest.skip(lacking)
    return binary


@contextmanager
def prometheus(
    folder: Path, jobs: Iterable[dict[str, Any]], selector: str, interval: str = INTERVAL
) -> Iterator[Prometheus]:
    """Run one with our recording rules, the hourly ones at each interval too. Yield a client of it."""
    binary = binary_of_prometheus("prometheus")
    rules = recording_rules().replace("${selector}", selector).replace("${interval}", interval)
    (folder / "rules.yaml").write_text(rules.replace("interval: 1h", f"interval: {interval}"))
    often = {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
    config = {"global": often, "rule_files": ["rules.yaml"], "scrape_configs": list(jobs)}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:  # Prometheus does not say which port it took
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [
        binary,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--log.level=warn",
    ]
    with (
        (folder / "prometheus.log").open("w") as log,
        subprocess.Popen(command, stderr=log, stdout=log) as process,
    ):
        try:
            _wait_until_ready(url, process, folder)
            yield Prometheus(url)
        finally:
            process.terminate()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5):  # noqa: S310 - our own address
                return
        except OSError:
            time.sleep(0.05)
    pytest.fail(f"Prometheus did not start: {(folder / 'prometheus.log').read_text()}")


def problems(url: str) -> list[str]:
    """Return what rules fail with; Prometheus itself only logs it."""
    return [rule["lastError"] for group in _groups(url) for rule in group["rules"] if rule.get("lastError")]


def rule_seconds(url: str) -> float:
    """Return how long the last evaluation of all rules took, in seconds."""
    return sum(float(group["evaluationTime"]) for group in _groups(url))


def _groups(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/api/v1/rules", timeout=5) as answer:  # noqa: S310 - our own address
        groups: list[dict[str, Any]] = json.load(answer)["data"]["groups"]
    return groups
