"""The referee of teams finds what it is for, in histories that nobody should ever see."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.builders import JSON
from tests.cluster.quota.history import Event
from tests.cluster.quota.quotas import gpu_pod
from tests.cluster.quota.team_referee import TEAM_OBJECT, replay_teams

LEDGERS = "/registry/gpu-admission.dev/gpuquotaledgers/default"
PLACE = f"{TEAM_OBJECT}vision"
Step = tuple[str, Any]


def spec(hard: int, generation: int = 1, guaranteed: Mapping[str, int] | None = None) -> Step:
    """Store the ClusterGPUQuota."""
    named = {name: {"gpus": gpus} for name, gpus in (guaranteed or {}).items()}
    document = {
        "metadata": {"uid": "of-vision", "generation": generation},
        "spec": {"hard": {"gpus": hard}, "guaranteed": named},
    }
    return "/registry/gpu-admission.dev/clustergpuquotas/vision", document


def own(namespace: str, used: int = 0, moved_to: str = "") -> Step:
    return f"{LEDGERS}/{namespace}", _object(_ledger(used, moved_to=moved_to))


def team(
    hard: int,
    *,
    generation: int = 1,
    guaranteed: Mapping[str, int] | None = None,
    leaving: tuple[str, ...] = (),
    **namespaces: JSON,
) -> Step:
    """Store the object of the team, with these ledgers."""
    named = {name: {"gpus": str(gpus)} for name, gpus in (guaranteed or {}).items()}
    in_force = {
        "name": "vision",
        "uid": "of-vision",
        "generation": generation,
        "hard": {"gpus": str(hard)},
        "guaranteed": named,
    }
    return f"{LEDGERS}/{PLACE}", _object({"team": in_force, "ledgers": namespaces, "leaving": leaving})


def reserving(*pods: str) -> JSON:
    return _ledger(reservations="\n".join(f"gpus=1 | {uid}:pods/{uid}" for uid in pods))


def pod(namespace: str, uid: str) -> Step:
    stored = gpu_pod(uid)
    stored["metadata"]["uid"] = uid
    return f"/registry/pods/{namespace}/{uid}", stored


def _ledger(used: int = 0, *, reservations: str = "", moved_to: str = "") -> JSON:
    return {"hard": {}, "used": {"gpus": str(used)}, "reservations": reservations, "movedTo": moved_to}


def _object(ledger: JSON) -> JSON:
    return {"ledger": json.dumps(ledger)}


A, B = own("a", moved_to=PLACE), own("b", moved_to=PLACE)
HISTORIES: dict[str, tuple[list[Step], str]] = {
    "what fits together": (
        [spec(2), A, B, team(2, a=reserving("x"), b=reserving("y")), pod("a", "x"), pod("b", "y")],
        "",
    ),
    "each fits, and both do not": (
        [
            spec(1),
            A,
            B,
            team(1, a=reserving("x"), b=reserving()),
            pod("a", "x"),
            team(1, a=reserving("x"), b=reserving("y")),
            pod("b", "y"),
        ],
        "gpus of b grew to 1 beside 1 of 1",
    ),
    "one swap for both": (
        [
            spec(1),
            A,
            B,
            team(1, a=reserving(), b=reserving()),
            team(1, a=reserving("x"), b=reserving("y")),
            pod("a", "x"),
            pod("b", "y"),
        ],
        "gpus of a grew to 1 beside 1 of 1",
    ),
    "what another one is guaranteed": (
        [
            spec(2, guaranteed={"b": 2}),
            A,
            team(2, guaranteed={"b": 2}, a=reserving()),
            team(2, guaranteed={"b": 2}, a=reserving("x")),
            pod("a", "x"),
        ],
        "gpus of a grew to 1 beside 2 of 2",
    ),
    "what it is guaranteed itself": (
        [
            spec(2, guaranteed={"a": 2}),
            A,
            team(2, guaranteed={"a": 2}, a=reserving()),
            team(2, guaranteed={"a": 2}, a=reserving("x")),
            pod("a", "x"),
        ],
        "",
    ),
    "a lower hard ends nothing": (
        [
            spec(1),
            A,
            team(1, a=reserving("x")),
            pod("a", "x"),
            spec(0, generation=2),
            team(0, generation=2, a=reserving("x")),
        ],
        "",
    ),
    "what joins may be too much": ([spec(0), pod("a", "x"), own("a", 1), A, team(0, a=reserving())], ""),
    "two objects decide": (
        [spec(2), own("a"), team(2, a=reserving())],
        "a in ['a', 'clustergpuquota.vision']",
    ),
    "its own decides while it leaves": (
        [spec(2), A, team(2, a=reserving()), team(2, a=reserving(), leaving=("a",)), own("a")],
        "",
    ),
    "limits of nobody": ([spec(2), team(3)], "clustergpuquota.vision has {'name': 'vision'"),
    "limits that were changed since": (
        [spec(2), spec(1, generation=2), team(1, generation=2), team(2)],
        "clustergpuquota.vision went back to 1",
    ),
}


@pytest.mark.parametrize(
    ("steps", "found"), [pytest.param(*history, id=name) for name, history in HISTORIES.items()]
)
def test_a_breach_is_found_and_nothing_else(steps: list[Step], found: str) -> None:
    history = [Event(revision, key, value) for revision, (key, value) in enumerate(steps, 1)]

    seen = replay_teams(("a", "b"), history)

    assert (seen.breaches != []) == (found != ""), seen.breaches
    assert any(found in each for each in seen.breaches) or not found
    assert seen.unmapped_resources == []


def test_what_was_stored_without_a_reservation_is_named() -> None:
    steps = [spec(2), A, team(2, a=reserving()), pod("a", "x")]
    history = [Event(revision, key, value) for revision, (key, value) in enumerate(steps, 1)]

    assert replay_teams(("a",), history).unmapped_resources == [("a", "x")]
