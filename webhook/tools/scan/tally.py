"""What evaluations come to: counts of everything, and so many findings and changes by owner as anybody reads."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from enum import Enum
from fractions import Fraction
from typing import NamedTuple

import msgspec

from policies.finding import Finding, Severity
from policies.quota.amounts import CLASSES, GPUS, NOTHING, RESOURCES, Vector, total
from policies.rules.gpu_isolation import is_of_the_gpu_stack
from webhook.serving.engine import Outcome, Violation
from webhook.serving.evaluation import Evaluation, Verdict
from webhook.tools.scan.report import Effect, Effects, FoundProblem, NamespaceUse, PlannedChange

MOST_LISTED = 1_000
"""Findings of one effect, or changes, that are listed: some hundred bytes each."""
MOST_LEVELS = 4
"""Of controllers above a pod: Pod, ReplicaSet, Deployment, and two kinds of operators."""

_EFFECT_OF = {
    Outcome.DENIED: Effect.REFUSED,
    Outcome.WARNED: Effect.WARNED,
    Outcome.AUDITED: Effect.LOGGED,
}


class Denials(Enum):
    """Whose objects a rule denies, whatever its mode."""

    GPU_STACK = "GPU stack"
    """Device plugins, exporters, and others that a DaemonSet places."""
    OTHERS = "others"


class _Key(NamedTuple):
    namespace: str
    owner: str
    rule: str
    effect: Effect
    message: str


class _Listed(msgspec.Struct):
    sentence: str
    pods: int = 0
    is_written: bool = False


class _Namespace(msgspec.Struct):
    policy: str = ""
    pods: int = 0
    gpu_pods: int = 0
    effects: Counter[Effect] = msgspec.field(default_factory=Counter)
    used: Vector = {}
    largest: Fraction = NOTHING


class Tally:
    """Adds evaluations up. Workloads come before pods, so that pods are listed under what made them."""

    def __init__(self) -> None:
        self.pods = self.gpu_pods = self.workloads = self.left_out = 0
        self.pod_effects: Counter[Effect] = Counter()
        self.workload_effects: Counter[Effect] = Counter()
        self.rules: defaultdict[str, Counter[Effect]] = defaultdict(Counter)
        self.namespaces: defaultdict[str, _Namespace] = defaultdict(_Namespace)
        self.denials: defaultdict[tuple[str, str], Counter[Denials]] = defaultdict(Counter)
        """By namespace and rule."""
        self.unreadable: dict[str, str] = {}
        """Why an object could not be read, by `namespace/Kind/name`."""
        self._problems: dict[_Key, _Listed] = {}
        self._listed: Counter[Effect] = Counter()
        self._changes: Counter[tuple[str, str, str, str]] = Counter()
        self._owners: dict[tuple[str, str], str] = {}

    def add_workload(self, evaluation: Evaluation) -> None:
        if evaluation.owner:
            self.add_owner(evaluation.namespace, f"{evaluation.kind}/{evaluation.name}", evaluation.owner)
        self.workloads += 1
        self.workload_effects.update(_effects(evaluation))
        self._add(evaluation, f"{evaluation.kind}/{evaluation.name}", is_pod=False)

    def add_owner(self, namespace: str, made: str, owner: str) -> None:
        """Remember who made a workload: pods are listed under the highest of their controllers."""
        self._owners[namespace, made] = owner

    def add_pod(self, evaluation: Evaluation, used: Vector, *, asks_for_gpus: bool) -> None:
        """Count a pod, and what it holds of GPUs now, as quotas count it."""
        self.pods += 1
        self.gpu_pods += asks_for_gpus
        found = self.namespaces[evaluation.namespace]
        found.pods += 1
        found.gpu_pods += asks_for_gpus
        self.add_use(evaluation.namespace, used)
        for pod in evaluation.pods:
            found.policy = pod.policy.name
        effects = _effects(evaluation)
        found.effects.update(effects)
        self.pod_effects.update(effects)
        for rule, effect in {*_by_rule(evaluation)}:
            self.rules[rule][effect] += 1
        owner = evaluation.owner or f"Pod/{evaluation.name}"
        for _ in range(MOST_LEVELS):
            owner = self._owners.get((evaluation.namespace, owner), owner)
        self._add(evaluation, owner, is_pod=True)

    def add_use(self, namespace: str, used: Vector) -> None:
        found = self.namespaces[namespace]
        found.used = total((found.used, used))
        found.largest = max(found.largest, used.get(GPUS, NOTHING))

    def _add(self, evaluation: Evaluation, owner: str, *, is_pod: bool) -> None:
        namespace = evaluation.namespace
        if evaluation.verdict is Verdict.UNREADABLE and len(self.unreadable) < MOST_LISTED:
            self.unreadable[f"{namespace}/{evaluation.kind}/{evaluation.name}"] = evaluation.unreadable
        whose = Denials.GPU_STACK if _is_of_the_gpu_stack(evaluation, owner) else Denials.OTHERS
        for place, evaluated in _placed(evaluation):
            finding, effect = evaluated.finding, _EFFECT_OF[evaluated.outcome]
            if finding.severity is Severity.DENIAL:
                self.denials[namespace, finding.rule][whose] += 1
            key = _Key(namespace, owner, finding.rule, effect, _about(finding, place))
            self._list(key, finding, is_pod=is_pod)
        for rule, what in {(each.rule, each.change.what) for pod in evaluation.pods for each in pod.changes}:
            change = (namespace, owner, rule, what)
            if change in self._changes or len(self._changes) < MOST_LISTED:
                self._changes[change] += is_pod
            else:
                self.left_out += 1

    def _list(self, key: _Key, finding: Finding, *, is_pod: bool) -> None:
        listed = self._problems.get(key)
        if listed is None:
            if self._listed[key.effect] >= MOST_LISTED:
                self.left_out += 1
                return
            self._listed[key.effect] += 1
            listed = self._problems[key] = _Listed(finding.sentence())
        listed.pods += is_pod
        listed.is_written |= not is_pod

    def problems(self) -> Iterator[FoundProblem]:
        """Yield what was found, the worst first, and most pods first."""
        order = list(Effect)
        listed = sorted(
            self._problems.items(), key=lambda item: (order.index(item[0].effect), -item[1].pods, item[0][:3])
        )
        for key, each in listed:
            yield FoundProblem(
                namespace=key.namespace,
                owner=key.owner,
                rule=key.rule,
                effect=key.effect,
                sentence=each.sentence,
                pods=each.pods,
                is_written=each.is_written,
            )

    def changes(self) -> Iterator[PlannedChange]:
        for (namespace, owner, rule, change), pods in sorted(
            self._changes.items(), key=lambda item: (-item[1], item[0])
        ):
            yield PlannedChange(namespace=namespace, owner=owner, rule=rule, change=change, pods=pods)

    def uses(self) -> Iterator[NamespaceUse]:
        """Yield the namespaces, those with most GPUs first."""
        for name, each in sorted(
            self.namespaces.items(), key=lambda item: (-item[1].used.get(GPUS, NOTHING), item[0])
        ):
            yield NamespaceUse(
                namespace=name,
                policy=each.policy,
                pods=each.pods,
                gpu_pods=each.gpu_pods,
                effects=counts(each.effects),
                gpus=each.used.get(GPUS, NOTHING),
                classes=_part(each.used, CLASSES),
                resources=_part(each.used, RESOURCES),
            )


def counts(found: Counter[Effect]) -> Effects:
    """Return the effects in their order."""
    return {effect: found[effect] for effect in Effect if found[effect]}


def _part(used: Vector, prefix: str) -> dict[str, Fraction]:
    return {key.removeprefix(prefix): used[key] for key in sorted(used) if key.startswith(prefix)}


def _effects(evaluation: Evaluation) -> set[Effect]:
    effects = {_EFFECT_OF[evaluated.outcome] for evaluated in evaluation.findings()}
    return effects | ({Effect.CHANGED} if any(pod.changes for pod in evaluation.pods) else set())


def _by_rule(evaluation: Evaluation) -> Iterator[tuple[str, Effect]]:
    for evaluated in evaluation.findings():
        yield evaluated.finding.rule, _EFFECT_OF[evaluated.outcome]
    for pod in evaluation.pods:
        for change in pod.changes:
            yield change.rule, Effect.CHANGED


def _is_of_the_gpu_stack(evaluation: Evaluation, owner: str) -> bool:
    return owner.startswith("DaemonSet/") or any(
        is_of_the_gpu_stack(pod.submitted) for pod in evaluation.pods
    )


def _placed(evaluation: Evaluation) -> Iterator[tuple[str, Violation]]:
    """Yield the findings with the path of the pod in its object, "" of the object itself."""
    for pod in evaluation.pods:
        for evaluated in pod.evaluated:
            yield pod.place.path, evaluated
    for evaluated in evaluation.advice:
        yield "", evaluated


def _about(finding: Finding, place: str) -> str:
    """Return what a finding on a template and on its pods has in common: all but the path to the pod."""
    path = finding.path.removeprefix(place).removeprefix(".")
    return f"{path}\n{finding.value or ''}\n{finding.message}"
