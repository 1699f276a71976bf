"""The pictures of docs/operate/console.md: `python -m tests.cluster.console.pictures` takes them (two minutes).

Fonts are those of the machine (Debian's fonts-inter and fonts-jetbrains-mono); pngquant makes the files small.
"""

import subprocess
import time
from pathlib import Path

import yaml

from policies.quota.amounts import GPUS, parse_amounts
from policies.quota.ledger.decide import decide
from tests.browser import chromium
from tests.cluster.console.conftest import served
from tests.cluster.console.world import run_bound_pods, workload, world
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import api_client
from tests.reservation_requests import creation_request
from webhook.cluster.objects import NAMESPACE
from webhook.quota.cluster_store import ClusterStore

DOCS = Path(__file__).parents[3] / "docs" / "operate"
TEAM = "foundation"
PAGES = {"overview": "/", "quota": f"/quotas/{TEAM}"}
SIZE = {"width": 1280, "height": 800}
COLOURS = "64"
RENAMED = """() => {
  for (const text of document.querySelectorAll("#installation span.wrap")) {
    text.textContent = text.textContent.replace(/\\S+ leads/, "gpu-admission-controller-0 leads");
  }
}"""
"""The Lease names the machine, where in a cluster a pod's name would be."""
TURN_SECONDS = 6
"""A little longer than the console's pause between two readings."""

HISTORY = (
    (TEAM, "ablation-1", 2, "nvidia-a100-80gb"),
    (TEAM, "reward-model", 4, "nvidia-h100-80gb"),
    (TEAM, "ablation-2", 3, "nvidia-a100-80gb"),
    ("vision", "depth", 4, "nvidia-a100-80gb"),
    (TEAM, "-ablation-1", 0, ""),
    ("inference", "rerank", 2, "nvidia-l4"),
    (TEAM, "distill", 4, "nvidia-h100-80gb"),
    (TEAM, "-ablation-2", 0, ""),
    ("recsys", "candidates", 3, ""),
    ("vision", "-depth", 0, ""),
    (TEAM, "-reward-model", 0, ""),
    ("vision", "tracking", 2, "nvidia-a100-80gb"),
    (TEAM, "ablation-3", 1, "nvidia-a100-80gb"),
)
"""What comes and, with a dash, goes while the console looks: namespace, Job, GPUs, class."""


def main() -> None:
    with world() as plane, served(plane, "admin") as address, chromium() as browser:
        browser.new_page().goto(address)  # from here on it looks
        for namespace, name, gpus, gpu_class in HISTORY:
            if name.startswith("-"):
                plane.kubectl("delete", "job", name[1:], "-n", namespace)
            else:
                text = yaml.safe_dump(workload("Job", name, 1, gpus, gpu_class))
                plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)
            time.sleep(TURN_SECONDS)
            run_bound_pods(plane)
        reserve(plane, "4")
        time.sleep(TURN_SECONDS)
        for scheme in ("light", "dark"):
            for name, path in PAGES.items():
                context = browser.new_context(viewport=SIZE, color_scheme=scheme, device_scale_factor=1.5)  # type: ignore[arg-type]
                page = context.new_page()
                page.goto(address + path)
                page.evaluate(RENAMED)
                picture = DOCS / f"console-{name}-{scheme}.png"
                page.screenshot(path=picture, full_page=True)
                subprocess.run(
                    ["pngquant", "--force", "--skip-if-larger", "--ext", ".png", COLOURS, picture],
                    check=False,
                )
                context.close()


def reserve(plane: ControlPlane, gpus: str) -> None:
    """Hold GPUs of the team's quota as a pod does that is being created."""
    store = ClusterStore(api_client(plane), NAMESPACE)
    before = store.read(TEAM, 10)
    assert before is not None
    demand = parse_amounts({GPUS: gpus, "classes/nvidia-a100": gpus})
    request = creation_request("in-flight", demand, str(before.ledger.class_catalogue))
    store.compare_and_swap(TEAM, before, decide(before.ledger, [request]).ledger, 10)


if __name__ == "__main__":
    main()
