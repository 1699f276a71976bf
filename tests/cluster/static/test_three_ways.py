"""The webhook alone, the exported policies alone, both, and our own engine, over the same pods: they never disagree.

The policies are stored, or files of the API server. The webhook gets every pod (`matchConditions: never`), as the policies do.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from policies.pods.annotations import INJECTED
from tests.builders import JSON, gpu_container, pod
from tests.cluster.controllers import eventually
from tests.cluster.export_comparison import (
    ADDED,
    INVALID,
    ISOLATED,
    Answer,
    Case,
    answers_to,
    compared,
    placed,
)
from tests.cluster.exported import (
    CHOSEN,
    EXEMPTED,
    NAMESPACES,
    POLICY,
    RESTRICTED,
    TEAM,
    WARNED,
    await_force,
    configuration,
    create,
    installed,
    namespace,
)
from tests.cluster.generated_pods import NEVER_GENERATED, pods
from tests.cluster.static.files import reading, written
from tests.controlplane import ControlPlane, minor_version
from tests.controlplane.plane import API_SERVER
from tests.controlplane.webhook import Webhook
from webhook.evaluation.decision_cache import DecisionCache

OF_PODS = frozenset({"pods.mutate.gpu-admission.dev", "pods.validate.gpu-admission.dev"})
PLACING = ("nodeSelector", "affinity", "nodeName", "schedulingGates", "topologySpreadConstraints")
CREATED = HTTPStatus.CREATED
_SENTENCE = re.compile(r"\S.*? \[[a-z-]+\](?=; |$)")
LEFT_TO_AUTHORS = ("must pin the pod to a GPU class", "must be set: the longest runtime")
"""Of these the policies deny a pod to which the webhook adds what it lacks."""


class Ways(NamedTuple):
    """The answers to each case."""

    webhook: list[Answer]
    policies: list[Answer]
    both: list[Answer]


class EveryPod(Webhook):
    def manifests(self) -> list[dict[str, Any]]:
        documents = super().manifests()
        for webhook in (each for document in documents for each in document.get("webhooks", ())):
            if webhook["name"] in OF_PODS:
                del webhook["matchConditions"]
        return documents


def called(plane: ControlPlane, folder: Path) -> Webhook:
    (folder / "documents").mkdir(exist_ok=True)
    configuration(folder / "documents")
    arguments = ("--kubeconfig", plane.kubeconfig())  # the labels of namespaces
    return EveryPod(plane, config=folder / "documents", host=14, arguments=arguments)


def await_reviews(plane: ControlPlane) -> None:
    """Return once the webhook can read every kind: a new API server, and one with new kinds, first has to read them itself."""
    assert eventually(lambda: create(plane.client(), pod(gpu_container()), WARNED)[0] == CREATED, seconds=90)


def stored(folder: Path, cases: Sequence[Case]) -> Ways:
    with ControlPlane() as plane, called(plane, folder) as webhook:
        client = plane.client()
        made = configuration(folder)
        for name in NAMESPACES:
            client.apply(namespace(name))
        webhook.register()
        await_reviews(plane)
        alone = answers_to(client, cases)
        webhook.unregister()  # it would answer in place of policies that are not in force yet
        with installed(plane, made):
            policies = answers_to(client, cases)
            webhook.register()
            await_reviews(plane)
            return Ways(alone, policies, answers_to(client, cases))


def in_files(folder: Path, cases: Sequence[Case]) -> Ways:
    directory = written(folder, POLICY, guarded=())
    with reading(directory) as plane:
        client = plane.client()
        for name in NAMESPACES:
            client.apply(namespace(name))
        await_force(plane)
        policies = answers_to(client, cases)
        with called(plane, folder) as webhook:
            webhook.register()
            await_reviews(plane)
            both = answers_to(client, cases)
            for file in directory.glob("*/gpu-admission.yaml"):
                file.unlink()
            plane.restart(API_SERVER)
            await_reviews(plane)
            return Ways(answers_to(client, cases), policies, both)


FORMS: dict[str, Callable[[Path, Sequence[Case]], Ways]] = {"stored": stored, "in-files": in_files}
NUMBERS = [200, pytest.param(5000, marks=(pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3600)))]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("form", FORMS)
def test_webhook_policies_and_both_agree(form: str, number: int, tmp_path: Path) -> None:
    if form == "in-files" and minor_version() < 37:
        pytest.skip("API servers read policies from files since 1.37")
    cases = placed([*NEVER_GENERATED, *pods(number)], [*NAMESPACES, TEAM, RESTRICTED, *[CHOSEN] * 3])

    ways = FORMS[form](tmp_path, cases)

    found = compared(DecisionCache(configuration(tmp_path)), cases, ways.policies)
    for (document, where), webhook, policies, both in zip(cases, *ways, strict=True):
        if policies[0] not in INVALID:
            found.seen[f"webhook {webhook[0]}, policies {policies[0]}"] += 1
            differing = [
                *_verdicts(webhook, policies, both),
                *_messages(both),
                *_pods(webhook, policies, both, document),
            ]
            found.differences += [(where, document, each) for each in differing]
    seen = found.seen
    print(dict(seen))  # noqa: T201  the figures, shown by -rA
    assert found.differences[:3] == [], f"{len(found.differences)} of {len(cases)}, {seen}"
    assert all(seen[f"webhook {each}, policies {each}"] > number / 4 for each in (201, 403)), seen
    assert all(seen[each] for each in ("webhook 201, policies 403", "webhook 403, policies 201")), seen
    assert seen["invalid"] < number / 5, seen
    assert all(seen[key] > number / 25 for key in ("gpu-requests", "gpu-isolation", "allowed")), seen
    assert all(seen[key] for key in ("gpu-class", "max-runtime", "deadline")), seen
    assert all(seen[words] > number / 50 for words in ISOLATED), seen
    assert seen[f"201 in {EXEMPTED}"] > number / 25, seen


def _verdicts(webhook: Answer, policies: Answer, both: Answer) -> Iterator[str]:
    """Yield the verdicts that should not be."""
    if both[0] != webhook[0]:
        yield f"both {both[0]}, webhook {webhook[0]}: {both[1].get('message')}, {webhook[1].get('message')}"
    is_left = any(each in policies[1].get("message", "") for each in LEFT_TO_AUTHORS)
    if policies[0] != CREATED and webhook[0] == CREATED and not is_left:
        yield f"the webhook misses {policies[1]['message']}"


def _messages(both: Answer) -> Iterator[str]:
    """Yield a message in which the author reads of two denials, or a sentence twice."""
    if both[0] == CREATED:
        return
    said = both[1]["message"]
    if said.count("denied the request") + said.count("denied request") != 1:
        yield f"not one denial: {said}"
    sentences = _SENTENCE.findall(said.replace("\n- ", "; "))
    if len(sentences) != len(set(sentences)):
        yield f"said twice: {said}"


def _pods(webhook: Answer, policies: Answer, both: Answer, document: JSON) -> Iterator[str]:
    if both[0] == webhook[0] == CREATED and _stored(both[1]) != _stored(webhook[1]):
        yield f"both make {_stored(both[1])}, the webhook {_stored(webhook[1])}"
    if both[0] == CREATED and any(rule in _injected(both[1]) for rule in ADDED):
        yield f"the webhook had to add {_injected(both[1])}"
    if policies[0] != CREATED:
        return
    spec, written = policies[1]["spec"], document["spec"]
    if any(spec.get(field) != written.get(field) for field in PLACING):
        yield f"the policies place the pod: {spec}"


def _stored(made: JSON) -> JSON:
    """Return the pod without what differs from one creation to the next, and with its tolerations in one order."""
    annotations = {k: v for k, v in made["metadata"].get("annotations", {}).items() if k != INJECTED}
    spec = {**made["spec"], "tolerations": sorted(_tolerations(made))}
    return {"labels": made["metadata"].get("labels"), "annotations": annotations, "spec": spec}


def _tolerations(made: JSON) -> set[str]:
    return {json.dumps(each, sort_keys=True) for each in made["spec"].get("tolerations", ())}


def _injected(made: JSON) -> str:
    return str(made["metadata"].get("annotations", {}).get(INJECTED, ""))
