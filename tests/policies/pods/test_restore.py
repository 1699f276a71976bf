"""Updates of stored pods, and what is put back into them of what was injected at creation."""

import copy
from collections.abc import Callable
from typing import Any

import jsonpatch
import msgspec
import pytest
from hypothesis import given

from policies.pods.annotations import INJECTED
from policies.pods.injected import Restored, as_submitted, injected_changes, restore
from tests.builders import JSON, apply, container, gpu_container, node_affinity, pod, view
from tests.cases import cases
from tests.policies.every_rule import every_rule, run
from tests.strategies import PODS

WORDS = {
    "toleration nvidia.com/gpu:NoSchedule": "gpu-toleration",
    "nodeSelector accelerator=nvidia-a100": "gpu-class",
    "node affinity cuda In 12": "cuda-version",
    "terminationGracePeriodSeconds=120": "spot",
    "activeDeadlineSeconds=28800": "max-runtime",
    "main: readinessProbe.initialDelaySeconds=72": "readiness-delay",
    "main: startupProbe for 90 s": "readiness-delay",
    "main: limits nvidia.com/gpu=1": "gpu-requests",
    "main: volumeMount /dev/shm": "shared-memory",
    "volume shm": "shared-memory",
    "initContainer fetch": "model-warming",
    "side: env NVIDIA_VISIBLE_DEVICES=void": "gpu-isolation",
}
"""Every kind of change of a spec."""
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
OWN = {"key": "own", "operator": "Exists"}
ZONE_A, ZONE_B, CUDA = ("zone", "In", "a"), ("zone", "In", "b"), ("cuda", "In", "12")
TCP = {"tcpSocket": {"port": 80}}
MOUNT = {"name": "d", "mountPath": "/d"}


def main(**tweaks: Any) -> JSON:
    return container("main", **{"resources": {"requests": {"nvidia.com/gpu": "1"}}, **tweaks})


def author() -> JSON:
    """Return what the author wrote: two containers, and something of his own in every list."""
    return pod(
        main(readinessProbe={**TCP, "initialDelaySeconds": 5}, livenessProbe=TCP, volumeMounts=[MOUNT]),
        container("side", env=[{"name": "HOME", "value": "/"}]),
        tolerations=[OWN],
        affinity=node_affinity([ZONE_A], [ZONE_B]),
        volumes=[{"name": "d", "emptyDir": {}}],
        initContainers=[container("own")],
        terminationGracePeriodSeconds=40,
    )  # fmt: skip


def stored() -> JSON:
    """Return the same with all that was injected, and with what others added to that."""
    return pod(
        main(
            readinessProbe={**TCP, "initialDelaySeconds": 72},
            livenessProbe=TCP,
            startupProbe={**TCP, "periodSeconds": 10, "failureThreshold": 9},
            volumeMounts=[MOUNT, {"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
            resources={"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}},
        ),
        container(
            "side", env=[{"name": "HOME", "value": "/"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
        ),
        annotations={INJECTED: "\n".join(f"{rule}: {what}" for what, rule in WORDS.items())},
        tolerations=[OWN, TOLERATION],
        nodeSelector={"accelerator": "nvidia-a100"},
        affinity=node_affinity([ZONE_A, CUDA], [ZONE_B, CUDA]),
        volumes=[{"name": "d", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}],
        initContainers=[container("fetch", terminationMessagePath="/m"), container("own")],
        terminationGracePeriodSeconds=120,
        activeDeadlineSeconds=28_800,
    )


def put_back(before: JSON, after: JSON, words: dict[str, str] = WORDS) -> tuple[JSON, Restored]:
    """Return the update with what is put back, by a JSON patch library that is not ours."""
    restored = restore(view(before), msgspec.json.encode(before), msgspec.json.encode(after), words)
    changes = [*restored.changes, *([restored.note] if restored.note else [])]
    operations = [msgspec.to_builtins(each) for change in changes for each in change.operations]
    completed: JSON = jsonpatch.apply_patch(after, operations)
    return completed, restored


def test_the_authors_manifest_becomes_the_stored_pod() -> None:
    completed, restored = put_back(stored(), author())

    assert completed == stored()
    assert {change.what: change.rule for change in restored.changes} == WORDS
    assert restored.note is not None
    assert restored.note.what == "annotation gpu-admission.dev/injected"


@pytest.mark.parametrize("what", [pytest.param(what, id=what.rpartition(": ")[2]) for what in WORDS])
def test_what_is_not_to_be_put_back_stays_away(what: str) -> None:
    """Today's rules no longer inject it, or the stored pod's annotation does not name it."""
    kept = {words: rule for words, rule in WORDS.items() if words != what}

    completed, restored = put_back(stored(), author(), kept)

    assert {change.what for change in restored.changes} == set(kept)
    assert completed != stored()


def edited(edit: Callable[[JSON], Any]) -> JSON:
    document = stored()
    edit(document["spec"])
    return document


KEEP = "karpenter.sh/do-not-disrupt"


@cases(
    ("sent", "want"),
    lost=({"own": "1"}, {"own": "1", KEEP: "true"}),
    changed=({KEEP: "false"}, {KEEP: "false"}),
)
def test_an_annotation_of_others_that_a_rule_added(sent: JSON, want: JSON) -> None:
    before, after = stored(), stored()
    before["metadata"]["annotations"] |= {KEEP: "true"}
    after["metadata"]["annotations"] = {**sent, INJECTED: "mine"}

    completed, _ = put_back(before, after, {f"annotation {KEEP}": "disruption"})

    assert completed["metadata"]["annotations"] == {**want, INJECTED: "mine"}


@cases(
    "edit",
    another_order_of_tolerations=lambda spec: spec["tolerations"].reverse(),
    a_toleration_more=lambda spec: spec["tolerations"].append(OWN),
    other_toleration_seconds=lambda spec: spec["tolerations"][1].update(tolerationSeconds=5),
    another_image=lambda spec: spec["containers"][0].update(image="x:2"),
    a_shorter_deadline=lambda spec: spec.update(activeDeadlineSeconds=5),
    a_node_label_more=lambda spec: spec["nodeSelector"].update(zone="a"),
    a_tighter_affinity=lambda spec: spec.update(
        affinity=node_affinity([ZONE_A, CUDA, ("disk", "In", "ssd")], [ZONE_B, CUDA])
    ),
    no_gates=lambda spec: spec.pop("schedulingGates", None),
)
def test_an_update_that_lacks_nothing_stays_as_it_is(edit: Callable[[JSON], Any]) -> None:
    before = stored()
    before["spec"]["schedulingGates"] = [{"name": "queue"}]

    assert put_back(before, edited(edit))[1] == Restored()


@cases(
    ("edit", "still"),
    {
        "without-the-author's-toleration": (
            lambda spec: spec.update(tolerations=[]),
            lambda spec: spec["tolerations"] == [TOLERATION],
        ),
        "without-the-author's-affinity": (
            lambda spec: spec.update(affinity=None),
            lambda spec: spec["affinity"] == node_affinity([CUDA], [CUDA]),
        ),
        "no-container": (lambda spec: spec["containers"].pop(0), lambda spec: len(spec["containers"]) == 1),
        "without-the-author's-variable": (
            lambda spec: spec["containers"][1].update(env=[]),
            lambda spec: (
                [each["name"] for each in spec["containers"][1]["env"]] == ["NVIDIA_VISIBLE_DEVICES"]
            ),
        ),
        "with-a-longer-delay": (
            lambda spec: spec["containers"][0]["readinessProbe"].update(initialDelaySeconds=90),
            lambda spec: spec["containers"][0]["readinessProbe"]["initialDelaySeconds"] == 90,
        ),
        "with-another-value-of-the-node-label": (
            lambda spec: spec["nodeSelector"].update(accelerator="nvidia-t4"),
            lambda spec: spec["nodeSelector"] == {"accelerator": "nvidia-t4"},
        ),
    },
)
def test_what_the_author_changed_stays_so(edit: Callable[[JSON], Any], still: Callable[[JSON], bool]) -> None:
    """So the API server rejects it, as it would without us."""
    completed, _ = put_back(stored(), edited(edit))

    assert still(completed["spec"])


def test_containers_are_found_by_their_names() -> None:
    after = author()
    after["spec"]["containers"].reverse()

    completed, _ = put_back(stored(), after)

    assert completed["spec"]["containers"] == stored()["spec"]["containers"][::-1]


RAISED = "it was raised when the pod was created, and cannot be changed since"
DELAY_STAYS = (
    f'spec.containers[0].readinessProbe.initialDelaySeconds = "10": stays 72: {RAISED} [readiness-delay]'
)
GRACE_STAYS = f'spec.terminationGracePeriodSeconds = "30": stays 120: {RAISED} [spot]'


@cases(
    ("delay", "grace", "sentences"),
    a_delay_that_is_shorter=(10, 120, [DELAY_STAYS]),
    no_delay=(None, 120, []),
    a_grace_period_that_is_shorter=(72, 30, [GRACE_STAYS]),
    no_grace_period=(72, None, []),
)
def test_an_overwritten_value_is_told(delay: int | None, grace: int | None, sentences: list[str]) -> None:
    after = stored()
    after["spec"]["containers"][0]["readinessProbe"]["initialDelaySeconds"] = delay
    after["spec"]["terminationGracePeriodSeconds"] = grace

    completed, restored = put_back(stored(), after)

    assert completed == stored()
    assert [warning.sentence() for warning in restored.warnings] == sentences


@cases(
    ("annotations", "spec_lacks", "want"),
    lost_with_something_in_spec=(None, True, "restored"),
    lost_beside_another=({"own": "1"}, True, "restored"),
    changed=({INJECTED: "mine"}, True, "mine"),
    lost_alone=(None, False, None),
)
def test_the_annotation_comes_back_only_with_something_in_spec(
    annotations: JSON | None, spec_lacks: bool, want: str | None
) -> None:
    after = author() if spec_lacks else stored()
    after["metadata"].pop("annotations", None)
    if annotations is not None:
        after["metadata"]["annotations"] = annotations

    completed, _ = put_back(stored(), after)

    said = completed["metadata"].get("annotations", {}).get(INJECTED)
    assert said == (stored()["metadata"]["annotations"][INJECTED] if want == "restored" else want)
    assert annotations is None or set(annotations) <= set(completed["metadata"]["annotations"])


def test_nothing_is_added_that_the_stored_pod_lacks() -> None:
    bare = pod(gpu_container(), annotations={INJECTED: stored()["metadata"]["annotations"][INJECTED]})

    assert put_back(bare, pod(gpu_container()))[1] == Restored()


@given(document=PODS)
def test_the_manifest_sent_again_becomes_the_pod(document: JSON) -> None:
    """As the webhook does it: the rule runs on what is sent, without what reads like something injected."""
    for rule, options in every_rule():
        patch, _ = run(document, rule, options)
        before = apply(copy.deepcopy(document), patch)
        said = {change.what: rule.id for change in patch.changes}
        note = "".join(f"{rule.id}: {what}\n" for what in said)
        annotated = {
            **before,
            "metadata": {**(before.get("metadata") or {}), "annotations": {INJECTED: note}},
        }
        named = injected_changes(view(annotated))
        submitted = as_submitted(view(document), author_set_node=True, injected=named)
        today, _ = run(msgspec.json.decode(msgspec.json.encode(submitted)), rule, options)
        words = {change.what: rule.id for change in today.changes if change.what in named}

        completed, _ = put_back(before, copy.deepcopy(document), words)
        assert completed == before
