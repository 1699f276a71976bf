"""What the exported policies must say of a pod, by our own engine, and how an API server's answers differ from that.

Of the engine only what is exported counts: all of gpu-isolation and gpu-toleration, how many GPUs (the API server itself has
checked the numbers), classes that the namespace may not use, and runtimes. A pod without the pin and the deadline that the engine
would add is denied.
"""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from datetime import UTC, datetime
from http import HTTPStatus

import jsonpatch
import msgspec

from policies.finding import Finding
from policies.placement.class_choice import CLASS_NOT_ALLOWED
from policies.placement.pinning import Pinning, named_nodes, pinning
from policies.rule import Phase
from tests.builders import JSON, view
from tests.cluster.controllers import eventually
from tests.cluster.exported import create, labels
from tests.cluster.generated_pods import SEED
from tests.controlplane import Client
from webhook.evaluation.decision import Outcome
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Creation, Evaluator
from webhook.evaluation.facts import owner_of
from webhook.tools.check.manifests import with_requests, without_nulls

THREADS = 6
ADDED = frozenset({"gpu-isolation", "gpu-toleration"})
COUNTED = ("by policy", "at most 100 percent")
"""What remains to check of numbers after the API server's own validation."""
INVALID = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})
ISOLATED = (
    "in a container that requests no GPU",
    "beside a GPU request",
    "lead to GPUs",
    "list of GPUs",
    "name devices",
    "shows the container all GPUs",
)

TOO_SLOW = ("could not be read", "could not decide", "deadline exceeded")

Case = tuple[JSON, str]
"""A pod, and the namespace in which it is created."""
Answer = tuple[int, JSON]


def placed(documents: Iterable[JSON], namespaces: Sequence[str]) -> list[Case]:
    choose = random.Random(SEED)  # noqa: S311  the same namespaces in every run
    return [(document, choose.choice(namespaces)) for document in documents]


def answers_to(client: Client, cases: Sequence[Case]) -> list[Answer]:
    """Return the answers of the API server to dry runs of the cases. Cases for which the machine was too slow are tried again."""

    def answer(case: Case) -> Answer | None:
        found = create(client, *case)
        return None if any(each in found[1].get("message", "") for each in TOO_SLOW) else found

    def settled(case: Case) -> Answer:
        found = eventually(lambda: answer(case))
        assert found, case
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(settled, cases))


# ---- what our engine says


class Expected(msgspec.Struct):
    denials: list[Finding]
    pod: JSON
    lacks_deadline: bool
    """Whether the engine would add one, and the exported policies deny the pod without it."""


def expected(engine: DecisionCache, document: JSON, namespace: str) -> Expected:
    by = Evaluator(
        cache=engine, now=datetime.now(UTC), tries_choices=False
    )  # a CEL expression cannot try them
    document = with_requests(without_nulls(deepcopy(document)))
    policy = engine.configuration.policies.for_namespace(namespace, labels(namespace))
    owner = owner_of(
        policy, view(document), engine.configuration, by.facts, is_proven=False
    )  # a user makes it
    decision = by.evaluate(Creation(Phase.MUTATE, policy, owner=owner), view(document))
    operations = [
        msgspec.json.decode(msgspec.json.encode(operation))
        for change in decision.changes
        if change.rule in ADDED
        for operation in change.operations
    ]
    patched = jsonpatch.apply_patch(document, operations)
    verdict = by.evaluate(Creation(Phase.VALIDATE, policy, owner=owner), view(patched))
    denials = list(verdict.findings(Outcome.DENIED))
    denials += [
        each
        for each in decision.findings(Outcome.DENIED)
        if each.rule == "max-runtime" and each not in denials
    ]
    pod, configuration = view(patched), engine.configuration
    has_gpus = configuration.resource_mapping.requests_gpus_without_claims(pod)
    lacks = {change.rule for change in decision.changes if has_gpus} & {"max-runtime"}
    pinned, is_placed_by_class = pinning(pod, configuration.classes), has_gpus and not named_nodes(pod)
    found = [each for each in denials if is_exported(each, is_placed_by_class, pinned, is_gated=pod.is_gated)]
    return Expected(found, patched, lacks_deadline=bool(lacks))


def is_exported(
    finding: Finding, is_placed_by_class: bool, pinned: Pinning | None, *, is_gated: bool
) -> bool:
    if finding.rule == "gpu-requests":
        return any(words in finding.message for words in COUNTED)
    if finding.rule == "gpu-class" and pinned is None:
        return is_placed_by_class and not is_gated
    if finding.rule == "gpu-class":
        return is_placed_by_class and (
            pinned is None or (finding.reason, finding.path) == (CLASS_NOT_ALLOWED, "spec")
        )
    if finding.rule == "max-runtime":
        return finding.path == "spec.activeDeadlineSeconds"
    return finding.rule == "gpu-isolation"


# ---- the comparison


def additions(document: JSON) -> JSON:
    """Return what the two rules may have added to, without what the API server adds by itself."""
    spec = document["spec"]
    tolerations = [
        each for each in spec.get("tolerations", []) if "node.kubernetes.io" not in each.get("key", "")
    ]
    containers = spec["containers"] + spec.get("initContainers", [])
    # An empty value is left out in JSON of the API server.
    env = {
        c["name"]: [{k: v for k, v in e.items() if k != "valueFrom" and v} for e in c.get("env", [])]
        for c in containers
    }
    # CEL reads the names of a container's resources in any order.
    return {"tolerations": sorted(tolerations, key=lambda each: str(sorted(each.items()))), "env": env}


class Comparison(msgspec.Struct):
    """What was seen of either verdict, and the cases in which they differ."""

    seen: Counter[str] = msgspec.field(default_factory=Counter)
    differences: list[tuple[object, ...]] = msgspec.field(default_factory=list)


def compared(engine: DecisionCache, cases: Sequence[Case], answers: Sequence[Answer]) -> Comparison:
    """Return how the answers of an API server with the exported policies alone, and our engine, differ over the cases."""
    comparison = Comparison()
    for (document, namespace), (status, answer) in zip(cases, answers, strict=True):
        if status in INVALID:
            comparison.seen["invalid"] += 1
            continue
        want = expected(engine, document, namespace)
        isolation = [finding.sentence() for finding in want.denials if finding.rule == "gpu-isolation"]
        difference = differing(status, answer, want, isolation)
        if difference is not None:
            comparison.differences.append((namespace, document, *difference))
        denying = {finding.rule for finding in want.denials} | {
            "deadline" for _ in range(want.lacks_deadline)
        }
        comparison.seen.update(denying or {"allowed"})
        comparison.seen.update(words for words in ISOLATED if any(words in text for text in isolation))
        comparison.seen[f"{status} in {namespace}"] += 1
    return comparison


def differing(
    status: int, answer: JSON, want: Expected, isolation: list[str]
) -> tuple[object, object] | None:
    """Return what the API server and the engine say, where that is not the same."""
    message = answer.get("message", "")
    if (status == HTTPStatus.FORBIDDEN) != (bool(want.denials) or want.lacks_deadline):
        return message, want.denials
    if "[gpu-isolation]" in message and not message.endswith("; ".join(isolation)):
        return message, isolation
    if status == HTTPStatus.CREATED and additions(answer) != additions(want.pod):
        return additions(answer), additions(want.pod)
    return None
