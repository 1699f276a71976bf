"""Every manifest in examples/workloads does on a real API server what its first comment says, under examples/policies."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def rule_that_refuses(path: Path) -> str | None:
    found = REJECTED.match(path.read_text())
    return found["rule"] if found else None


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    policies = "\n---\n".join(path.read_text() for path in (ROOT / "examples" / "policies").glob("*.yaml"))
    with serving(plane, policies, NAMESPACE) as running:
        yield running


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in FILES if is_built_in(path)])
def test_an_example_does_what_its_comment_says(plane: ControlPlane, path: Path) -> None:
    done = plane.kubectl("apply", "-n", NAMESPACE, "-f", path, check=False)
    rule = rule_that_refuses(path)

    if rule is None:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        assert f'.gpu-admission.dev" denied the request: pod {NAMESPACE}/' in done.stderr
        assert f"[{rule}]" in done.stderr


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize(
    ("name", "selector", "dedicated"),
    [
        pytest.param("training", {"accelerator": "nvidia-a100"}, {"ml-workloads"}, id="one-gpu"),
        pytest.param("notebook-slice", {"accelerator": "nvidia-a100"}, {"ml-workloads"}, id="a-mig-slice"),
        pytest.param(
            "needs-h100", {"accelerator": "nvidia-h100"}, {"ml-workloads"}, id="class-by-annotation"
        ),
        pytest.param(
            "sized-by-model", {"accelerator": "nvidia-a100-80gb"}, {"ml-workloads"}, id="class-by-estimate"
        ),
        pytest.param(
            "notebook-shared",
            {"accelerator": "nvidia-t4-timesliced"},
            {"ml-workloads", "notebooks"},
            id="toleration-of-the-class",
        ),
        pytest.param("queued", None, {"ml-workloads"}, id="a-gated-pod-is-not-pinned"),
        pytest.param("notebook-kai", {"accelerator": "nvidia-a100"}, {"ml-workloads"}, id="a-fraction"),
        pytest.param("tokenizer", None, set(), id="no-gpu"),
    ],
)
def test_an_admitted_pod_is_placed(
    plane: ControlPlane, name: str, selector: JSON | None, dedicated: set[str]
) -> None:
    path = next(path for path in FILES if documents(path)[0]["metadata"]["name"] == name)
    plane.kubectl("apply", "-n", NAMESPACE, "-f", path)
    pod: JSON = json.loads(plane.kubectl("get", "pod", "-n", NAMESPACE, name, "-o", "json").stdout)
    tolerations: list[Any] = pod["spec"].get("tolerations", [])

    assert pod["spec"].get("nodeSelector") == selector
    assert {each["value"] for each in tolerations if each["key"] == "dedicated"} == dedicated


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem) for path in FILES if not is_built_in(path)]
)
def test_check_reads_an_example_of_a_custom_resource(path: Path) -> None:
    done = CliRunner().invoke(
        main, ["check", "-f", str(path), "--config", str(ROOT / "examples" / "policies")]
    )

    assert done.exit_code == 0, done.output
    assert f"{documents(path)[0]['kind']} " in done.output
