"""`gpu-admission check` with LimitRanges among the manifests, and those of a cluster: what they bound, give and refuse."""

import json
import re
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


def test_a_cluster_is_asked_once_for_those_of_a_namespace(tmp_path: Path) -> None:
    with ApiServer(tmp_path, answering(cluster())) as server:
        command = ["check", "-f", "-", "--kubeconfig", str(server.kubeconfig()), "-o", "json"]
        CliRunner(env={"COLUMNS": None}).invoke(main, command, input=stream(TRAIN, TRAIN))

        assert [each.path for each in server.requests if "limitranges" in each.path] == [STORED]


# ---- GPUs by default

GIVING = """\
apiVersion: v1
kind: LimitRange
metadata: {name: gpus, namespace: ml}
spec: {limits: [{type: Container, %s}]}
"""
WEB = """\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: ml}
spec: {containers: [{name: main, image: nginx%s}]}
"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: ml}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: nginx%s}]}
"""
ONE = GIVING % "default: {nvidia.com/gpu: 1}"
LIMITED = ", resources: {limits: {nvidia.com/gpu: %s}}"
GIVEN = (
    'warning: {}containers[0].resources.limits[nvidia.com/gpu] (container "main") = "{}": '
    "set nvidia.com/gpu: 0 in resources.limits if it needs "
    "none; LimitRange gpus gives nvidia.com/gpu: {} to each container that requests none [gpu-requests]"
)
REFUSED = (
    'containers[0].resources.limits[nvidia.com/gpu] (container "main"): set nvidia.com/gpu: 2; must satisfy LimitRange gpus: '
    "maximum nvidia.com/gpu usage per Container is 2, but limit is 4; or ask the platform team to remove "
    "spec.limits[0].max[nvidia.com/gpu] from LimitRange gpus [limit-range]"
)


@cases(
    ("giving", "manifest", "want"),
    a_pod=(ONE, WEB % "", [GIVEN.format("spec.", 1, 1)]),
    a_template=(ONE, DEPLOYMENT % "", [GIVEN.format("", 1, 1)]),
    of_max_alone=(GIVING % "max: {nvidia.com/gpu: 2}", WEB % "", [GIVEN.format("spec.", 2, 2)]),
    a_pod_that_wants_none=(ONE, WEB % (LIMITED % 0), []),
    a_pod_that_asks_itself=(ONE, WEB % (LIMITED % 1), []),
    a_limit_range_of_cpu=(GIVING % "default: {cpu: 1}", WEB % "", []),
    beyond_a_quota=(
        ONE,
        stream("""\
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUQuota
metadata: {name: default, namespace: ml}
spec: {hard: {gpus: 0}}
""", WEB % ""),
        [
            GIVEN.format("spec.", 1, 1),
            "warning: set nvidia.com/gpu: 0 in resources.limits if it needs no GPU; exceeded quota: ml/default, 1 GPU can "
            "never fit: the quota grants 0; LimitRange gpus gives nvidia.com/gpu: 1 to each container that requests none; or "
            "ask the platform team to raise spec.hard.gpus [gpu-quota]",
        ],
    ),
    one_that_is_refused=(GIVING % "max: {nvidia.com/gpu: 2}", WEB % (LIMITED % 4), [f"spec.{REFUSED}"]),
    a_template_that_is_refused=(GIVING % "max: {nvidia.com/gpu: 2}", DEPLOYMENT % (LIMITED % 4), [REFUSED]),
    a_least_that_nobody_may_leave_out=(
        GIVING % "min: {nvidia.com/gpu: 1}",
        WEB % "",
        [
            'spec.containers[0].resources.requests[nvidia.com/gpu] (container "main") = "1": add nvidia.com/gpu: 1 to '
            "resources.limits; must have an equal limit: GPUs cannot be overcommitted; LimitRange gpus gives nvidia.com/gpu: 1 "
            "to each container that requests none; or ask the platform team to take nvidia.com/gpu out of LimitRange gpus "
            "[gpu-requests]",
        ],
    ),
)  # fmt: skip
def test_what_a_limit_range_gives_is_part_of_the_pod(giving: str, manifest: str, want: list[str]) -> None:
    shown = CliRunner(env={"COLUMNS": None}).invoke(
        main, ["check", "-f", "-"], input=stream(manifest, giving)
    )
    about_the_pod = shown.stdout.partition("LimitRange ml/gpus")[0]

    assert [
        line for line in re.findall(r"stdin:\d+: (.*)", about_the_pod) if "audit only" not in line
    ] == want


@cases(
    ("amounts", "want"),
    a_default=(
        "default: {nvidia.com/gpu: 1}",
        'spec.limits[0].default[nvidia.com/gpu] = "1": set default[nvidia.com/gpu] and defaultRequest[nvidia.com/gpu] to 0; each '
        "container that requests none gets it, also sidecars and init containers [limit-range]",
    ),
    max_alone=(
        "max: {nvidia.com/gpu: 4}",
        'spec.limits[0].max[nvidia.com/gpu] = "4": set default[nvidia.com/gpu] and defaultRequest[nvidia.com/gpu] to 0; each '
        "container that requests none gets it, also sidecars and init containers: max is the default where nobody writes one "
        "[limit-range]",
    ),
    a_least=(
        "min: {nvidia.com/gpu: 1}, maxLimitRequestRatio: {nvidia.com/gpu: 1}",
        'spec.limits[0].min[nvidia.com/gpu] = "1": set default[nvidia.com/gpu] and defaultRequest[nvidia.com/gpu] to 0, and '
        "remove min[nvidia.com/gpu] and maxLimitRequestRatio[nvidia.com/gpu]; each container that requests none gets it, also "
        "sidecars and init containers: min is the default where nobody writes one [limit-range]",
    ),
    none_by_default=("max: {nvidia.com/gpu: 4}, default: {nvidia.com/gpu: 0}", None),
    of_cpu=("default: {cpu: 1}", None),
)
def test_a_limit_range_that_gives_gpus(amounts: str, want: str | None) -> None:
    shown = CliRunner(env={"COLUMNS": None}).invoke(main, ["check", "-f", "-"], input=GIVING % amounts)

    assert re.findall(r"stdin:\d+: warning: (.*)", shown.stdout) == ([] if want is None else [want])


BAD = """apiVersion: v1
kind: LimitRange
metadata: {name: bad, namespace: ml}
spec: {limits: [{type: Container, default: {nvidia.com/gpu: 2}, defaultRequest: {nvidia.com/gpu: 1}}]}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: gpus, namespace: ml}
spec: {hard: {requests.gpu: 4}}
---
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: ml}
spec: {containers: [{name: main, image: a}]}
"""


def test_what_the_api_server_refuses_is_refused_and_gives_nothing() -> None:
    shown = CliRunner(env={"COLUMNS": None}).invoke(main, ["check", "-f", "-"], input=BAD)

    assert shown.exit_code == 1
    assert [" ".join(line.split()) for line in shown.stdout.splitlines()] == [
        "denied stdin:1 LimitRange ml/bad",
        'stdin:4: spec.limits[0].defaultRequest[nvidia.com/gpu] = "1": set defaultRequest: 2, or default: 1; must equal '
        "default (2): GPUs cannot be overcommitted [limit-range]",
        "the API server rejects the LimitRange itself, in its own words",
        "denied stdin:6 ResourceQuota ml/gpus",
        "stdin:9: spec.hard[requests.gpu]: did you mean requests.nvidia.com/gpu? The API server rejects this name: those of "
        "extended resources are domain/name in lowercase [resource-quota]",
        "the API server rejects the ResourceQuota itself, in its own words",
        "ok stdin:11 Pod ml/plain",
        "",
        "3 objects: 2 denied, 0 would change, 1 ok",
    ]
