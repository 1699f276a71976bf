"""Every manifest in examples/workloads does on a real API server what its first comment says, under examples/policies."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.builders import JSON
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import ROOT, Webhook, serving
from webhook.commands import main

WORKLOADS = ROOT / "examples" / "workloads"
FILES = sorted(WORKLOADS.glob("*.yaml"))
BUILT_IN_GROUPS = ("v1", "apps/", "batch/", "autoscaling/")
NAMESPACE = "examples"

REJECTED = re.compile(r"# Rejected by (?P<rule>[a-z-]+):")


def documents(path: Path) -> list[JSON]:
    return list(yaml.safe_load_all(path.read_text()))


def is_built_in(path: Path) -> bool:
    return all(document["apiVersion"].startswith(BUILT_IN_GROUPS) for document in documents(path))


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    policies = "\n---\n".join(path.read_text() for path in (ROOT / "examples" / "policies").glob("*.yaml"))
    with serving(plane, policies, NAMESPACE) as running:
        yield running


PLACED: dict[str, tuple[JSON | None, set[str]]] = {
    "training": ({"accelerator": "nvidia-a100"}, {"ml-workloads"}),
    "notebook-slice": ({"accelerator": "nvidia-a100"}, {"ml-workloads"}),
    "needs-h100": ({"accelerator": "nvidia-h100"}, {"ml-workloads"}),
    "sized-by-model": ({"accelerator": "nvidia-a100-80gb"}, {"ml-workloads"}),
    "notebook-shared": ({"accelerator": "nvidia-t4-timesliced"}, {"ml-workloads", "notebooks"}),
    "queued": (None, {"ml-workloads"}),
    "notebook-kai": ({"accelerator": "nvidia-a100"}, {"ml-workloads"}),
    "tokenizer": (None, set()),
}
"""Node selector, and the values of tolerations of `dedicated`: a gated pod is not pinned, and a pod without GPU gets nothing."""


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in FILES if is_built_in(path)])
def test_an_example_does_what_its_comment_says(plane: ControlPlane, path: Path) -> None:
    rejected = REJECTED.match(path.read_text())
    for document in documents(path):
        document["metadata"]["namespace"] = NAMESPACE
        status, answer, _ = plane.client().apply(document, {"dryRun": "All"})
        if rejected:
            assert status == 403
            assert f'.gpu-admission.dev" denied the request: pod {NAMESPACE}/' in answer["message"]
            assert f"[{rejected['rule']}]" in answer["message"]
            continue
        assert status == 201, answer
        if document["metadata"]["name"] in PLACED and document["kind"] == "Pod":
            tolerations = answer["spec"].get("tolerations", [])
            dedicated = {each["value"] for each in tolerations if each["key"] == "dedicated"}
            assert (answer["spec"].get("nodeSelector"), dedicated) == PLACED[document["metadata"]["name"]]


def test_every_placed_example_is_there() -> None:
    names = {each["metadata"]["name"] for path in FILES for each in documents(path) if each["kind"] == "Pod"}

    assert names >= PLACED.keys()


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem) for path in FILES if not is_built_in(path)]
)
def test_check_reads_an_example_of_a_custom_resource(path: Path) -> None:
    done = CliRunner().invoke(
        main, ["check", "-f", str(path), "--config", str(ROOT / "examples" / "policies")]
    )

    assert done.exit_code == 0, done.output
    assert f"{documents(path)[0]['kind']} " in done.output
