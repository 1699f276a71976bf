"""What a caller may not read is named; what the controller has published of nodes answers as well; how old figures are."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.builders import JSON, gpu_container
from tests.cases import cases
from tests.resource_slices import DRIVER, node_slices
from tests.webhook.cluster.apiserver import ApiServer, Collections, answering, group
from tests.webhook.commands.checked_cluster import FORBIDDEN, cluster
from tests.webhook.commands.checking import GOOD
from tests.webhook.tools.status.stored import CONFIG_MAP, published
from webhook.commands import main
from webhook.configuration.loader import load_directory
from webhook.tools.status.freshness import ago, stale_figures
from webhook.tools.status.tolerant_reader import TolerantReader

DOCUMENTS = Path(__file__).parents[4] / "examples/policies"
PUBLISHED = "/api/v1/namespaces/gpu-admission/configmaps/gpu-admission-devices"


@cases(
    ("kind", "omitted"),
    slices=("resourceslices", "list resourceslices.resource.k8s.io"),
    claims=("resourceclaims", "list resourceclaims.resource.k8s.io in all namespaces"),
    taint_rules=("devicetaintrules", "list devicetaintrules.resource.k8s.io"),
    what_controllers_publish=(PUBLISHED, "get configmaps/gpu-admission-devices -n gpu-admission"),
)
def test_a_right_that_is_lacking(kind: str, omitted: str, tmp_path: Path) -> None:
    version = {"uid": "u", "resourceVersion": "1"}
    slices = node_slices("n1", cards=3, partitions=False)
    cluster = Collections(
        resourceslices=[{**each, "metadata": {**each["metadata"], **version}} for each in slices],
        deviceclasses=[{"metadata": {"name": DRIVER, **version}, "spec": {}}],
        resourceclaims=[],
        devicetaintrules=[],
    )
    cluster.answers["/apis/resource.k8s.io"] = group("v1")
    if kind.startswith("/"):
        cluster.answers[kind] = FORBIDDEN
    else:
        cluster.objects[kind] = FORBIDDEN
    with ApiServer(tmp_path, cluster) as server:
        reader = TolerantReader(server.client())
        reader.configuration(DOCUMENTS)
        reader.devices(load_directory(None))

    assert omitted in reader.omitted


NOW = datetime(2026, 11, 26, 22, tzinfo=UTC)


@cases(
    ("seconds", "want"),
    at_once=(0, "now"),
    a_clock_that_is_behind=(-5, "now"),
    seconds=(45, "45 s ago"),
    minutes=(119, "1 min ago"),
    hours=(7300, "2 h ago"),
    days=(2 * 86400, "2 d ago"),
)
def test_how_long_ago(seconds: int, want: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == want


def test_figures_that_nobody_counts() -> None:
    said = "quotas as of 45 s ago (21:59:15 UTC), not counted now: no controller leads; gpu-admission doctor says why"
    assert stale_figures(NOW - timedelta(seconds=45), NOW) == said


GPU, A100 = "nvidia.com/gpu", "nvidia-a100-80gb"
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"


def node(name: str, gpu_class: str, gpus: int = 8, **spec: Any) -> JSON:
    return {
        "metadata": {"name": name, "uid": name, "labels": {"accelerator": gpu_class}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", GPU: str(gpus)},
            "capacity": {GPU: str(gpus)},
        },
    }


EVERY = [
    node("a", A100),
    node("b", A100, unschedulable=True),
    node("t", "nvidia-t4", 4),
    node("x", "unheard-of", 2),
]
USED = {"a": 5}
HOLDING = [{"metadata": {"name": "p"}, "spec": {"nodeName": "a", "containers": [gpu_container("5")]}}]


def run(folder: Path, objects: dict[str, Any], *command: str, stdin: str = "") -> Any:
    with ApiServer(folder, answering(objects)) as server:
        arguments = [*command, "--kubeconfig", str(server.kubeconfig())]
        result = CliRunner(env={"COLUMNS": "200"}).invoke(main, arguments, input=stdin)
    assert result.exit_code in {0, 1}, result.output
    return result.stdout


def admin() -> dict[str, Any]:
    return {**cluster(), NODES: EVERY, PODS: HOLDING}


def before(seconds: int) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


def tenant(at: datetime | None = None) -> dict[str, Any]:
    """Return what the API server has for who may not list nodes, which were counted then, or just now."""
    return {
        **cluster(),
        NODES: FORBIDDEN,
        PODS: FORBIDDEN,
        CONFIG_MAP: published(at or before(5), EVERY, USED),
    }


def test_the_classes_are_the_same(tmp_path: Path) -> None:
    of_admin, of_tenant = (
        json.loads(run(tmp_path, objects, "classes", "-n", "ml", "-o", "json"))
        for objects in (admin(), tenant())
    )
    counted = of_tenant.pop("nodesFrom")
    assert counted.startswith("nodes by class as the controller counted them at ")
    assert of_admin.pop("nodesFrom") == ""
    assert of_tenant == of_admin
    assert of_tenant["omitted"] == []


def asking(gpu_class: str, resource: str = GPU) -> str:
    """Return a pod that selects a class, "" for none."""
    selector = f"spec:\n  nodeSelector: {{accelerator: {gpu_class}}}\n" if gpu_class else "spec:\n"
    return GOOD.replace("spec:\n", selector, 1).replace(GPU, resource)


def checked(folder: Path, objects: dict[str, Any], text: str) -> tuple[Any, list[str]]:
    """Return the findings about the pod, and the notes."""
    shown = json.loads(run(folder, objects, "check", "-f", "-", "-o", "json", stdin=text))
    return shown["objects"][0]["pods"][0]["findings"], shown["notes"]


@cases(
    ("text", "reasons"),
    of_a_class_that_has_nodes=(asking(A100), []),
    of_a_class_that_has_none=(asking("nvidia-h100-80gb"), ["NoNode"]),
    a_slice_that_no_node_has=(asking("", "nvidia.com/mig-1g.10gb"), ["NoNode"]),
)
def test_the_remedies_of_check_are_the_same(tmp_path: Path, text: str, reasons: list[str]) -> None:
    (of_admin, _), (of_tenant, _) = (checked(tmp_path, objects, text) for objects in (admin(), tenant()))
    assert [each["reason"] for each in of_tenant] == reasons
    assert of_tenant == of_admin


@cases(
    ("age", "note"),
    just_now=(5, "nodes by class as the controller counted them at {}"),
    by_a_controller_that_is_down=(
        600,
        "the controller counted nodes last at {}: what is free now is not known",
    ),
)
def test_it_says_when_they_were_counted(tmp_path: Path, age: int, note: str) -> None:
    at = before(age)
    shown = run(tmp_path, tenant(at), "classes", "-n", "ml")
    assert f"\n\n{note.format(f'{at:%Y-%m-%d %H:%M:%S} UTC'.replace(':00 UTC', ' UTC'))}\n" in shown
    assert "list nodes" not in shown
    assert f"{A100:<20} {'nvidia-a100':<20} {80:>4}  {'yes':<7} {2:>6} {16:>6} {3:>6}" in shown


def test_nothing_is_decided_by_old_figures(tmp_path: Path) -> None:
    found, notes = checked(tmp_path, tenant(before(600)), asking("nvidia-h100-80gb"))
    assert found == []
    assert any(note.startswith("the controller counted nodes last at ") for note in notes)


def test_documents_of_a_directory_are_not_those_that_were_counted_by(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "class.yaml").write_text(
        "apiVersion: gpu-admission.dev/v1alpha1\nkind: GPUClass\nmetadata: {name: own}\nspec: {memoryGiB: 8}\n"
    )
    shown = run(tmp_path, tenant(), "classes", "-n", "ml", "--config", str(config))
    assert "you may not list nodes" in shown
