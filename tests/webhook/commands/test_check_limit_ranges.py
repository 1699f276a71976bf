"""`gpu-admission check` with rule host-resources: LimitRanges among the manifests, and those of a cluster."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import FORBIDDEN, GROUP, POLICIES, cluster, policy
from tests.webhook.commands.checking import GOOD, stream
from webhook.commands import main

TRAIN = GOOD.replace("{name: train}", "{name: train, namespace: ml}")
LIMIT_RANGE = """\
apiVersion: v1
kind: LimitRange
metadata: {name: %s, namespace: %s}
spec: {limits: [{type: Pod, max: {cpu: %s}}]}
"""
SPEC = {
    "memoryGiB": 8,
    "nodeLabels": [{"key": "accelerator", "values": ["shared"]}],
    "perGPU": {"cpu": 12},
}
RULES = {"gpu-class": {"default": "shared"}, "host-resources": {"mode": "enforce"}}
OURS = {
    POLICIES: [policy({"namespaces": ["ml"]}, **RULES)],
    f"{GROUP}/gpuclasses": [{"metadata": {"name": "shared", "uid": "2"}, "spec": SPEC}],
}
STORED = "/api/v1/namespaces/ml/limitranges"


def stored(name: str, cpu: int) -> JSON:
    metadata = {"name": name, "namespace": "ml", "uid": name, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"limits": [{"type": "Pod", "max": {"cpu": cpu}}]}}


def added(shown: str) -> tuple[list[str], list[str]]:
    """Return what the rule would add, and what could not be read."""
    report = json.loads(shown)
    changes = [each for found in report["objects"] for place in found["pods"] for each in place["changes"]]
    what = [each["what"] for each in changes if each["rule"] == "host-resources"]
    return what, [each for each in report["notes"] if "limitranges" in each]


@cases(
    ("text", "want"),
    none=(TRAIN, ["main: requests cpu=12"]),
    of_the_namespace=(stream(LIMIT_RANGE % ("l", "ml", 8), TRAIN), ["main: requests cpu=8"]),
    after_the_pod=(stream(TRAIN, LIMIT_RANGE % ("l", "ml", 8)), ["main: requests cpu=8"]),
    of_another=(stream(LIMIT_RANGE % ("l", "web", 8), TRAIN), ["main: requests cpu=12"]),
    that_cannot_be_read=(stream(LIMIT_RANGE % ("l", "ml", "[]"), TRAIN), ["main: requests cpu=12"]),
)
def test_among_the_manifests(tmp_path: Path, text: str, want: list[str]) -> None:
    class_ = {"kind": "GPUClass", "metadata": {"name": "shared"}, "spec": SPEC}
    governing = {"kind": "GPUPolicy", "metadata": {"name": "default"}, "spec": {"rules": RULES}}
    items = [{"apiVersion": "gpu-admission.dev/v1alpha1", **each} for each in (class_, governing)]
    config = tmp_path / "config.yaml"
    config.write_text("---\n".join(map(json.dumps, items)))

    shown = CliRunner().invoke(main, ["check", "-f", "-", "--config", str(config), "-o", "json"], input=text)

    assert added(shown.stdout) == (want, [])


@cases(
    ("found", "text", "want", "notes"),
    stored_ones=([stored("l", 6)], TRAIN, ["main: requests cpu=6"], []),
    replaced_by_a_manifest=(
        [stored("l", 6)], stream(LIMIT_RANGE % ("l", "ml", 8), TRAIN), ["main: requests cpu=8"], [],
    ),
    beside_a_manifest=(
        [stored("other", 6)], stream(LIMIT_RANGE % ("l", "ml", 8), TRAIN), ["main: requests cpu=6"], [],
    ),
    without_the_right=(
        FORBIDDEN, TRAIN, ["main: requests cpu=12"],
        ["you may not list limitranges -n ml: what depends on it is not evaluated"],
    ),
)  # fmt: skip
def test_of_a_cluster(tmp_path: Path, found: Any, text: str, want: list[str], notes: list[str]) -> None:
    objects = {**cluster(), **OURS, STORED: found}
    with ApiServer(tmp_path, answering(objects)) as server:
        command = ["check", "-f", "-", "--kubeconfig", str(server.kubeconfig()), "-o", "json"]
        shown = CliRunner(env={"COLUMNS": None}).invoke(main, command, input=text)

    assert added(shown.stdout) == (want, notes)


def test_a_cluster_whose_policies_do_not_have_the_rule_is_not_asked(tmp_path: Path) -> None:
    with ApiServer(tmp_path, answering(cluster())) as server:
        command = ["check", "-f", "-", "--kubeconfig", str(server.kubeconfig()), "-o", "json"]
        CliRunner(env={"COLUMNS": None}).invoke(main, command, input=TRAIN)

        assert not [each for each in server.requests if "limitranges" in each.path]
