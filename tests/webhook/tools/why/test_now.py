"""What `why` keeps of a finding's choices: those that let the pod run, with what each then needs, in whole sentences."""

from msgspec.structs import replace

from policies.finding import Edit, Edits, Finding, either
from policies.placement.availability import NO_NODE
from tests.cases import cases
from webhook.tools.why.explanation import Awaited, NodeFit, Way
from webhook.tools.why.now import After, nearest, now

T4 = Edit("spec.nodeSelector[accelerator]", "nvidia-t4")
L4 = Edit("spec.nodeSelector[accelerator]", "nvidia-l4")
SMALLER = Edit("spec.containers[0].resources.limits[nvidia.com/gpu]", 1)
FREE = NodeFit(name="a", kind="t4", free={}, allocatable={})
FULL = replace(
    FREE,
    against=("has 0 of 8 free",),
    remedy="wait until 1 GPU is free",
    way=Way(awaits=(Awaited.ROOM,)),
)
TOO_SMALL = replace(FREE, against=("has 1 of 2",), remedy="request 1 GPU", way=Way(edits=(SMALLER,)))


@cases(
    ("after", "remedy"),
    runs_at_once=(After([FREE]), "set accelerator: nvidia-t4"),
    a_full_node=(After([FULL]), "set accelerator: nvidia-t4, and wait until 1 GPU is free"),
    an_autoscaler=(
        After([], adds="NodePool t4"),
        "set accelerator: nvidia-t4, and wait until NodePool t4 adds a node",
    ),
)
def test_a_choice_says_what_the_pod_then_waits_for(after: After, remedy: str) -> None:
    finding = Finding(reason=NO_NODE, message="no node has class nvidia-l4", choices=either(T4, L4))

    def tried(edits: Edits) -> After | None:
        return after if edits == (T4,) else None

    assert now(finding, tried).remedy == remedy


def test_a_node_says_what_to_write_and_what_the_pod_then_waits_for() -> None:
    nodes = nearest([TOO_SMALL], lambda _: After([FULL]))
    assert [node.remedy for node in nodes] == ["request 1 GPU, and wait until 1 GPU is free"]
