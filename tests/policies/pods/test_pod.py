"""What a pod says of itself, in whichever of several fields."""

from tests.builders import JSON, node_affinity, pod, view
from tests.cases import cases

SIDECAR: JSON = {"name": "s", "restartPolicy": "Always"}


@cases(
    ("document", "want"),
    nothing=({}, set()),
    succeeded=({"status": {"phase": "Succeeded"}}, {"is_terminal"}),
    failed=({"status": {"phase": "Failed"}}, {"is_terminal"}),
    running=({"status": {"phase": "Running"}}, set()),
    on_windows=(pod(os={"name": "windows"}), {"is_windows"}),
    on_nodes_with_windows=(
        pod(nodeSelector={"kubernetes.io/os": "windows"}),
        {"is_windows", "constrains_nodes"},
    ),
    on_linux=(pod(os={"name": "linux"}, nodeSelector={"kubernetes.io/os": "linux"}), {"constrains_nodes"}),
    gated=(pod(schedulingGates=[{"name": "kueue"}]), {"is_gated"}),
    with_an_affinity=(pod(affinity=node_affinity([("zone", "In", "a")])), {"constrains_nodes"}),
)
def test_what_a_pod_is(document: JSON, want: set[str]) -> None:
    seen = view(document)

    assert {
        each for each in ("is_terminal", "is_windows", "is_gated", "constrains_nodes") if getattr(seen, each)
    } == want


@cases(
    ("spec", "want"),
    an_init_container=({"initContainers": [{"name": "i"}]}, [False]),
    a_sidecar=({"initContainers": [SIDECAR]}, [True]),
    an_app=({"containers": [SIDECAR]}, [False]),
)
def test_which_container_is_a_sidecar(spec: JSON, want: list[bool]) -> None:
    places = view({"spec": spec}).places

    assert [each.is_sidecar for each in places] == want
    assert [each.path for each in places] == [f"spec.{name}[0]" for name in spec]


def test_a_volume_by_its_name() -> None:
    seen = view(pod(volumes=[{"name": "a"}, {"name": "b", "hostPath": {"path": "/dev"}}]))

    assert seen.volume_named("b") == (seen.spec.volumes or ())[1]
    assert seen.volume_named("c") is None
