"""Updates of stored pods, and what is put back into them of what was injected at creation."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import jsonpatch
import msgspec
import pytest
from hypothesis import given

from policies.pods.annotations import INJECTED
from policies.pods.restore import Restored, restore
from policies.pods.submission import as_submitted, injected_changes
from policies.rule import Rule, RuleOptions
from tests.builders import JSON, apply, container, gpu_container, pod, view
from tests.policies.test_laws import every_rule, generated, run
from tests.strategies import PODS

WORDS = {
    "toleration nvidia.com/gpu:NoSchedule": "gpu-toleration",
    "nodeSelector accelerator=nvidia-a100": "gpu-class",
    "node affinity cuda In 12": "cuda-version",
    "terminationGracePeriodSeconds=120": "spot",
    "main: readinessProbe.initialDelaySeconds=72": "readiness-delay",
    "main: startupProbe for 90 s": "readiness-delay",
    "main: limits nvidia.com/gpu=1": "gpu-requests",
    "main: volumeMount /dev/shm": "shared-memory",
    "volume shm": "shared-memory",
    "initContainer fetch": "model-warming",
    "side: env NVIDIA_VISIBLE_DEVICES=void": "gpu-isolation",
}
"""Every kind of change there is."""
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
OWN = {"key": "own", "operator": "Exists"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TCP = {"tcpSocket": {"port": 80}}
MOUNT = {"name": "d", "mountPath": "/d"}


def requirement(key: str, *values: str) -> JSON:
    return {"key": key, "operator": "In", "values": list(values)}


def affinity(*terms: Iterable[JSON]) -> JSON:
    return {
        "nodeAffinity": {
            REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": list(term)} for term in terms]}
        }
    }


def main(**tweaks: Any) -> JSON:
    return container("main", **{"resources": {"requests": {"nvidia.com/gpu": "1"}}, **tweaks})


def author() -> JSON:
    """Return what the author wrote: two containers, and something of his own in every list."""
    return pod(
        main(readinessProbe={**TCP, "initialDelaySeconds": 5}, livenessProbe=TCP, volumeMounts=[MOUNT]),
        container("side", env=[{"name": "HOME", "value": "/"}]),
        tolerations=[OWN],
        affinity=affinity([requirement("zone", "a")], [requirement("zone", "b")]),
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
        affinity=affinity(
            [requirement("zone", "a"), requirement("cuda", "12")],
            [requirement("zone", "b"), requirement("cuda", "12")],
        ),
        volumes=[{"name": "d", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}],
        initContainers=[container("fetch", terminationMessagePath="/m"), container("own")],
        terminationGracePeriodSeconds=120,
    )


def put_back(before: JSON, after: JSON, words: dict[str, str] | None = None) -> tuple[JSON, Restored]:
    """Return the update with what is put back, by a JSON patch library that is not ours."""
    restored = restore(
        view(before),
        msgspec.json.encode(before),
        msgspec.json.encode(after),
        WORDS if words is None else words,
    )
    changes = list(restored.changes) + ([restored.note] if restored.note else [])
    operations = [msgspec.to_builtins(each) for change in changes for each in change.operations]
    completed: JSON = jsonpatch.apply_patch(after, operations)
    return completed, restored


def test_the_authors_manifest_becomes_the_stored_pod() -> None:
    completed, restored = put_back(stored(), author())

    assert completed == stored()
    assert {change.what: change.rule for change in restored.changes} == WORDS


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


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda spec: spec["tolerations"].reverse(), id="another-order-of-tolerations"),
        pytest.param(lambda spec: spec["tolerations"].append(OWN), id="a-toleration-more"),
        pytest.param(
            lambda spec: spec["tolerations"][1].update(tolerationSeconds=5), id="other-toleration-seconds"
        ),
        pytest.param(lambda spec: spec["containers"][0].update(image="x:2"), id="another-image"),
        pytest.param(lambda spec: spec.update(activeDeadlineSeconds=5), id="a-deadline"),
        pytest.param(lambda spec: spec["nodeSelector"].update(zone="a"), id="a-node-label-more"),
        pytest.param(
            lambda spec: spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"][0][
                "matchExpressions"
            ].append(requirement("disk", "ssd")),
            id="a-tighter-affinity",
        ),
        pytest.param(lambda spec: spec.pop("schedulingGates", None), id="no-gates"),
    ],
)
def test_an_update_that_lacks_nothing_stays_as_it_is(edit: Callable[[JSON], Any]) -> None:
    before = stored()
    before["spec"]["schedulingGates"] = [{"name": "queue"}]

    assert put_back(before, edited(edit))[1] == Restored()


@pytest.mark.parametrize(
    ("edit", "still"),
    [
        pytest.param(
            lambda spec: spec.update(tolerations=[]), lambda spec: spec["tolerations"] == [TOLERATION],
            id="without-the-author's-toleration",
        ),
        pytest.param(
            lambda spec: spec.update(affinity=None),
            lambda spec: spec["affinity"] == affinity([requirement("cuda", "12")], [requirement("cuda", "12")]),
            id="without-the-author's-affinity",
        ),
        pytest.param(
            lambda spec: spec["containers"].pop(0), lambda spec: len(spec["containers"]) == 1,
            id="without-a-container",
        ),
        pytest.param(
            lambda spec: spec["containers"][1].update(env=[]),
            lambda spec: [each["name"] for each in spec["containers"][1]["env"]] == ["NVIDIA_VISIBLE_DEVICES"],
            id="without-the-author's-variable",
        ),
        pytest.param(
            lambda spec: spec["containers"][0]["readinessProbe"].update(initialDelaySeconds=90),
            lambda spec: spec["containers"][0]["readinessProbe"]["initialDelaySeconds"] == 90,
            id="with-a-longer-delay",
        ),
        pytest.param(
            lambda spec: spec["nodeSelector"].update(accelerator="nvidia-t4"),
            lambda spec: spec["nodeSelector"] == {"accelerator": "nvidia-t4"},
            id="with-another-value-of-the-node-label",
        ),
    ],
)  # fmt: skip
def test_what_the_author_changed_stays_changed(
    edit: Callable[[JSON], Any], still: Callable[[JSON], bool]
) -> None:
    """So the API server refuses it, as it would without us."""
    completed, _ = put_back(stored(), edited(edit))

    assert still(completed["spec"])


def test_containers_are_found_by_their_names() -> None:
    after = author()
    after["spec"]["containers"].reverse()

    completed, _ = put_back(stored(), after)

    assert completed["spec"]["containers"] == stored()["spec"]["containers"][::-1]


@pytest.mark.parametrize(
    ("path", "sent", "sentences"),
    [
        pytest.param(
            "delay", 10,
            ['spec.containers[0].readinessProbe.initialDelaySeconds = "10": stays 72: it was raised when the pod was '
             "created, and cannot be changed since [readiness-delay]"],
            id="a-delay-that-is-shorter",
        ),
        pytest.param("delay", None, [], id="no-delay"),
        pytest.param(
            "grace", 30,
            ['spec.terminationGracePeriodSeconds = "30": stays 120: it was raised when the pod was created, and cannot be '
             "changed since [spot]"],
            id="a-grace-period-that-is-shorter",
        ),
        pytest.param("grace", None, [], id="no-grace-period"),
    ],
)  # fmt: skip
def test_a_value_that_is_overwritten_is_told(path: str, sent: int | None, sentences: list[str]) -> None:
    after = stored()
    if path == "delay":
        after["spec"]["containers"][0]["readinessProbe"]["initialDelaySeconds"] = sent
    else:
        after["spec"]["terminationGracePeriodSeconds"] = sent

    completed, restored = put_back(stored(), after)

    assert completed == stored()
    assert [warning.sentence() for warning in restored.warnings] == sentences


@pytest.mark.parametrize(
    ("annotations", "spec_lacks", "want"),
    [
        pytest.param(None, True, "restored", id="lost-with-something-in-spec"),
        pytest.param({"own": "1"}, True, "restored", id="lost-beside-another"),
        pytest.param({INJECTED: "mine"}, True, "mine", id="changed"),
        pytest.param(None, False, None, id="lost-alone"),
    ],
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


@every_rule
@given(document=PODS)
@generated
def test_the_authors_own_manifest_sent_again_becomes_the_stored_pod(
    rule: Rule, options: RuleOptions, document: JSON
) -> None:
    """As the webhook does it: the rule runs on what is sent, without what reads like something injected."""
    patch, _ = run(document, rule, options)
    before = apply(copy.deepcopy(document), patch)
    said = {change.what: rule.id for change in patch.changes}
    note = "".join(f"{rule.id}: {what}\n" for what in said)
    annotated = {**before, "metadata": {**(before.get("metadata") or {}), "annotations": {INJECTED: note}}}
    named = injected_changes(view(annotated))
    sent = msgspec.json.decode(msgspec.json.encode(as_submitted(view(document), injected=named)))

    today, _ = run(sent, rule, options)
    words = {change.what: rule.id for change in today.changes if change.what in named}

    completed, _ = put_back(before, copy.deepcopy(document), words)
    assert completed == before
