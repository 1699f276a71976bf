"""The referee of the line (`tests/cluster/waiting/order.py`) finds what it is about, in histories of a few events."""

import json
from typing import Any

from tests.builders import JSON, gpu_container
from tests.cases import cases
from tests.cluster.quota.history import Event
from tests.cluster.waiting.order import line

GATES = [{"name": "gpu-admission.dev/quota"}]


def pod(
    revision: int, name: str, *, waits: bool = False, phase: str = "Running", owner: bool = True
) -> Event:
    metadata: JSON = {"name": name, "uid": name, "creationTimestamp": name[-1]}
    metadata |= {"ownerReferences": [{"uid": "web", "controller": True}]} if owner else {}
    spec = {"containers": [gpu_container("1")], **({"schedulingGates": GATES} if waits else {})}
    document = {"metadata": metadata, "spec": spec, "status": {"phase": phase}}
    return Event(revision, f"/registry/pods/team/{name}", document)


def row(revision: int, used: int, waiting: int, *reservations: str) -> Event:
    ledger: JSON = {
        "hard": {"gpus": "1"},
        "used": {"gpus": str(used)},
        "waiting": waiting,
        "revisions": {"pods": str(revision - 1)},
        "reservations": "".join(
            f"gpus=1 resources/nvidia.com/gpu=1 | {each}\n" for each in reservations
        ).strip(),
    }
    value: Any = {"ledger": json.dumps(ledger)}
    return Event(revision, "/registry/gpu-admission.dev/gpuquotaledgers/system/team", value)


RUNS, OTHER, AGAIN = pod(1, "web-1"), pod(3, "other-2", waits=True, owner=False), pod(6, "web-3", waits=True)
GONE = Event(4, "/registry/pods/team/web-1", None)
KEEP = "web-1/keep/web"
BEFORE = [RUNS, row(2, 1, 1), OTHER]


@cases(
    ("events", "want"),
    kept_and_taken_by_its_next_pod=(
        [*BEFORE, GONE, row(5, 0, 2, KEEP), AGAIN, row(7, 0, 2, "web-3/lift")],
        [],
    ),
    taken_without_being_kept=(
        [*BEFORE, GONE, row(5, 0, 2), AGAIN, row(7, 0, 2, "web-3/lift")],
        ["revision 7: web-3 before other-2"],
    ),
    kept_twice=(
        [*BEFORE, GONE, row(5, 0, 2, KEEP), row(6, 0, 2), row(7, 0, 2, KEEP)],
        ["revision 7: quota of web-1 is kept"],
    ),
    kept_for_what_succeeded=(
        [*BEFORE, pod(4, "web-1", phase="Succeeded"), row(5, 0, 2, KEEP)],
        ["revision 5: quota of web-1 is kept"],
    ),
    kept_for_what_failed=([*BEFORE, pod(4, "web-1", phase="Failed"), row(5, 0, 2, KEEP)], []),
    kept_for_what_never_ran=(
        [*BEFORE, row(5, 0, 2, "other-2/keep/web")],
        ["revision 5: quota of other-2 is kept"],
    ),
)
def test_what_the_referee_says_of_what_is_kept(events: list[Event], want: list[str]) -> None:
    assert line("team", events).passed == want
