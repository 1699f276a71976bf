"""Adds evaluations up: counts of everything, and the first thousand findings and changes by owner."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction

import msgspec

from policies.finding import Finding, Severity
from policies.quota.amounts import CLASSES, GPUS, RESOURCES, ZERO, Amounts, total
from policies.rules.gpu_isolation import is_of_the_gpu_stack
from webhook.evaluation.decision import Outcome, Violation
from webhook.tools.scan.report import Effect, Effects, FoundProblem, NamespaceUse, PlannedChange
from webhook.tools.stored_objects import Evaluation, StoredObjectVerdict

MAX_LISTED = 1_000
"""Listed findings of one effect, and listed changes: some hundred bytes each."""
MAX_LEVELS = 4
"""Levels of controllers above a pod: ReplicaSet, Deployment, and two kinds of operators."""

_EFFECT_OF = {Outcome.DENIED: Effect.DENIED, Outcome.WARNED: Effect.WARNED, Outcome.AUDITED: Effect.LOGGED}


class TalliedNamespace(msgspec.Struct):
    """`used`: as quotas count it. `largest`: the GPUs of its largest pod."""

    policy: str = ""
    pods: int = 0
    gpu_pods: int = 0
    effects: Counter[Effect] = msgspec.field(default_factory=Counter)
    used: Amounts = {}
    largest: Fraction = ZERO

    @property
    def gpus(self) -> Fraction:
        return self.used.get(GPUS, ZERO)


class Tally:
    """Adds evaluations up. Add workloads before pods: then pods are listed under the workload that made them."""

    def __init__(self) -> None:
        self.pods = self.gpu_pods = self.workloads = self.left_out = 0
        self.pod_effects: Counter[Effect] = Counter()
        self.workload_effects: Counter[Effect] = Counter()
        self.rules: defaultdict[str, Counter[Effect]] = defaultdict(Counter)
        self.namespaces: defaultdict[str, TalliedNamespace] = defaultdict(TalliedNamespace)
        self.stack_denials: set[tuple[str, str]] = set()
        """(namespace, rule) where a rule denies the GPU stack, whatever its mode: device plugins, exporters, other DaemonSets."""
        self.other_denials: set[tuple[str, str]] = set()
        """(namespace, rule) where a rule denies any other object."""
        self.unknown_kinds: Counter[tuple[str, str]] = Counter()
        """GPU pods by the API group and kind of their controller, if no rule reads that kind."""
        self.unreadable: dict[str, str] = {}
        """Why an object could not be read, by `namespace/Kind/name`."""
        self._problems: dict[tuple[str, str, str, Effect, str], FoundProblem] = {}
        self._listed: Counter[Effect] = Counter()
        self._changes: Counter[tuple[str, str, str, str]] = Counter()
        self._owners: dict[tuple[str, str], str] = {}

    def add_workload(self, evaluation: Evaluation) -> None:
        if evaluation.owner:
            self.add_owner(evaluation.namespace, f"{evaluation.kind}/{evaluation.name}", evaluation.owner)
        self.workloads += 1
        self.workload_effects.update({effect for _, effect in _by_rule(evaluation)})
        self._add(evaluation, f"{evaluation.kind}/{evaluation.name}", is_pod=False)

    def add_findings(
        self, group: str, kind: str, namespace: str, name: str, violations: Sequence[Violation]
    ) -> None:
        """Add what there is to say of an object that makes no pods."""
        made = Evaluation(
            group=group, kind=kind, namespace=namespace, name=name, workload_findings=violations
        )
        self._add(made, f"{kind}/{name}", is_pod=False)

    def add_owner(self, namespace: str, made: str, owner: str) -> None:
        """Remember who made a workload: pods are listed under their highest controller."""
        self._owners[namespace, made] = owner

    def add_pod(self, evaluation: Evaluation, used: Amounts, *, requests_gpus: bool) -> None:
        """Count a pod, and the GPUs that it uses now as quotas count them."""
        self.pods += 1
        self.gpu_pods += requests_gpus
        namespace = self.namespaces[evaluation.namespace]
        namespace.pods += 1
        namespace.gpu_pods += requests_gpus
        self.add_use(evaluation.namespace, used)
        for pod in evaluation.pods:
            namespace.policy = pod.policy.name
        by_rule = _by_rule(evaluation)
        effects = {effect for _, effect in by_rule}
        namespace.effects.update(effects)
        self.pod_effects.update(effects)
        for rule, effect in by_rule:
            self.rules[rule][effect] += 1
        owner = evaluation.owner or f"Pod/{evaluation.name}"
        for _ in range(MAX_LEVELS):
            owner = self._owners.get((evaluation.namespace, owner), owner)
        self._add(evaluation, owner, is_pod=True)

    def add_use(self, namespace: str, used: Amounts) -> None:
        tallied = self.namespaces[namespace]
        tallied.used = total((tallied.used, used))
        tallied.largest = max(tallied.largest, used.get(GPUS, ZERO))

    def _add(self, evaluation: Evaluation, owner: str, *, is_pod: bool) -> None:
        namespace = evaluation.namespace
        if evaluation.verdict is StoredObjectVerdict.UNREADABLE and len(self.unreadable) < MAX_LISTED:
            self.unreadable[f"{namespace}/{evaluation.kind}/{evaluation.name}"] = evaluation.unreadable
        is_gpu_stack = owner.startswith("DaemonSet/") or any(
            is_of_the_gpu_stack(pod.submitted) for pod in evaluation.pods
        )
        denials = self.stack_denials if is_gpu_stack else self.other_denials
        # With the path of the pod in the object; what is about the object itself has none.
        located = [(pod.place.path, violation) for pod in evaluation.pods for violation in pod.violations]
        for path, evaluated in (*located, *(("", finding) for finding in evaluation.workload_findings)):
            finding, effect = evaluated.finding, _EFFECT_OF[evaluated.outcome]
            rule = finding.rule
            if finding.severity is Severity.DENIAL:
                denials.add((namespace, rule))
            key = (namespace, owner, rule, effect, _finding_key(finding, path))
            if key not in self._problems:
                if self._listed[effect] >= MAX_LISTED:
                    self.left_out += 1
                    continue
                self._listed[effect] += 1
                self._problems[key] = FoundProblem(
                    namespace=namespace, owner=owner, rule=rule, effect=effect, sentence=finding.sentence()
                )
            self._problems[key].pods += is_pod
            self._problems[key].is_written |= not is_pod
        for rule, what in {(change.rule, change.what) for pod in evaluation.pods for change in pod.changes}:
            change = (namespace, owner, rule, what)
            if change in self._changes or len(self._changes) < MAX_LISTED:
                self._changes[change] += is_pod
            else:
                self.left_out += 1

    def problems(self) -> list[FoundProblem]:
        """Return the problems, the worst effect first, then the most pods."""
        order = list(Effect)
        return sorted(
            self._problems.values(),
            key=lambda each: (order.index(each.effect), -each.pods, each.namespace, each.owner, each.rule),
        )

    def changes(self) -> Iterator[PlannedChange]:
        ordered = sorted(self._changes.items(), key=lambda item: (-item[1], item[0]))
        for (namespace, owner, rule, change), pods in ordered:
            yield PlannedChange(namespace=namespace, owner=owner, rule=rule, change=change, pods=pods)

    def uses(self) -> Iterator[NamespaceUse]:
        """Yield the namespaces, those with most GPUs first."""
        by_gpus = sorted(self.namespaces.items(), key=lambda item: (-item[1].gpus, item[0]))
        for name, tally in by_gpus:
            yield NamespaceUse(
                namespace=name,
                policy=tally.policy,
                pods=tally.pods,
                gpu_pods=tally.gpu_pods,
                effects=effect_counts(tally.effects),
                gpus=tally.gpus,
                classes=_amounts_below(tally.used, CLASSES),
                resources=_amounts_below(tally.used, RESOURCES),
            )


def effect_counts(effects: Counter[Effect]) -> Effects:
    return {effect: effects[effect] for effect in Effect if effects[effect]}


def _amounts_below(used: Amounts, prefix: str) -> dict[str, Fraction]:
    return {key.removeprefix(prefix): used[key] for key in sorted(used) if key.startswith(prefix)}


def _by_rule(evaluation: Evaluation) -> set[tuple[str, Effect]]:
    violations = {
        (violation.finding.rule, _EFFECT_OF[violation.outcome]) for violation in evaluation.findings()
    }
    return violations | {(change.rule, Effect.CHANGED) for pod in evaluation.pods for change in pod.changes}


def _finding_key(finding: Finding, pod_path: str) -> str:
    """Return what the finding on a template shares with that on its pods: everything but the path to the pod."""
    path = finding.path.removeprefix(pod_path).removeprefix(".")
    return f"{path}\n{finding.value or ''}\n{finding.message}"
