"""Follows what a finding tells its reader to do, literally, and says what is wrong with it."""

import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from policies.finding import Edit, Edits, Finding, as_plain_data
from policies.gpus.near_names import UNKNOWN_RESOURCE_NAME
from policies.placement.availability import NO_NODE
from policies.placement.class_choice import CLASS_CONTRADICTION, UNKNOWN_CLASS
from policies.pods.field_paths import annotation_path, field_path, path_parts, value_at, with_edits
from policies.pods.injected import INJECTION_REASONS
from policies.pods.pod import Toleration
from policies.quota.shortage import QUOTA_CAN_NEVER_FIT, QUOTA_EXCEEDED
from policies.registry import QUOTA_RULE
from policies.rules.gpu_isolation import ID as GPU_ISOLATION
from policies.rules.gpu_requests import DAEMONSET_HOLDS_GPUS
from tests.oracle import JSON, Answer
from tests.oracle.worlds import HOSTNAME
from tests.remedies.asking import granted
from tests.remedies.situations import CLASS, OWNER, Situation, released
from tests.remedies.workloads import KINDS, template_at, template_of
from webhook.evaluation.decision import Outcome, Violation
from webhook.tools.stored_objects import Evaluation

IMPERATIVE = re.compile(
    r"\b(write|add|set|remove|request|name|wait|ask|use|mount|rename|split|delete|declare|create|give|round|leave|put|pin)\b"
    r"|\bdid you mean\b"
)
EXCLUDED = {
    DAEMONSET_HOLDS_GPUS.name: "what only monitors GPUs needs the exemption that the sentence asks for, too",
}
"""Reasons of findings that are not followed."""
FAILING = 0.005
"""The largest share of findings, or of remedies, that may fail. The aim is 0."""
PENDING = {NO_NODE, UNKNOWN_CLASS, UNKNOWN_RESOURCE_NAME, CLASS_CONTRADICTION}
"""Reasons whose warnings say that the pod stays pending."""
PLACED = {"nodeName", "schedulingGates"}
AMOUNTS = range(1, 17)
NUMBER_OR_SIZE = re.compile(r"\.(template|replicas|parallelism)\b.*")
"""The end of the path of what says how many pods there are, or how large each is: a finding about one of them is about both."""
UNKNOWN_KEYS = {"zone", "metadata.name", HOSTNAME}
"""Keys of labels that neither name classes nor hardware: a pod that selects by them may match no node."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NAMED_CLASSES = ("nvidia-t4", "nvidia-l4", "nvidia-a100-80gb", "nvidia-h100-80gb", "amd-mi300x")


class Failure(NamedTuple):
    kind: str
    reason: str
    detail: str


def seen(evaluation: Evaluation) -> list[Violation]:
    return [each for each in evaluation.findings() if each.outcome is not Outcome.AUDITED]


def identity(violation: Violation) -> tuple[str, ...]:
    """Return what it is about. Without indices: the items after a removed one move up."""
    finding = violation.finding
    # What can never fit also exceeds, whether it is too large a pod or too many of them.
    is_of_amounts = finding.reason in {QUOTA_EXCEEDED, QUOTA_CAN_NEVER_FIT}
    path = re.sub(r"\[\d+\]", "[]", finding.path)
    path = NUMBER_OR_SIZE.sub("", path) if is_of_amounts else path
    reason = "" if is_of_amounts else finding.reason.name
    return finding.rule, reason, path, finding.container or "", violation.outcome.value


def field_of(violation: Violation) -> tuple[str, ...]:
    """Return what a denial is about, without its reason."""
    rule, _, *rest = identity(violation)
    return rule, *rest


def edited(document: JSON, edits: Edits) -> JSON:
    made: JSON = with_edits(document, [(path_parts(edit.path), as_plain_data(edit.value)) for edit in edits])
    return made


class Subject:
    """An object in its situation, and what is found of it."""

    def __init__(self, situation: Situation, document: JSON) -> None:
        self.situation, self.document = situation, document
        self.evaluation = situation.evaluated(document)
        self.found = [] if self.evaluation.unreadable else seen(self.evaluation)
        self.known = Counter(map(identity, self.found))
        denied = [each for each in self.found if each.outcome is Outcome.DENIED]
        self.is_denied, self.denied_fields = bool(denied), Counter(map(field_of, denied))
        self._tried: dict[tuple[int, bytes], tuple[Situation, Evaluation]] = {}

    @cached_property
    def answer(self) -> Answer:
        return self.situation.answer(self.document)

    def _evaluated(self, situation: Situation, document: JSON) -> Evaluation:
        """Return the evaluation of an edited document. Each finding tries the same edits."""
        key = id(situation), msgspec.json.encode(document)
        if key not in self._tried:
            self._tried[key] = situation, situation.evaluated(document, tries_choices=False)
        return self._tried[key][1]

    def wrong(self, violation: Violation, situation: Situation, document: JSON) -> str:
        """Return what is wrong once the document, in that situation, is applied instead; "" if nothing is."""
        after = self._evaluated(situation, document)
        if after.unreadable:
            return f"unreadable: {after.unreadable}"
        found = seen(after)
        now = Counter(map(identity, found))
        # A workload that fits into an empty quota may still wait for others.
        waits = violation.finding.reason is QUOTA_CAN_NEVER_FIT and document["kind"] != "Pod"
        waits = waits and not any(each.finding.reason is QUOTA_CAN_NEVER_FIT for each in found)
        if now[identity(violation)] >= self.known[identity(violation)] and not waits:
            same = next(each for each in found if identity(each) == identity(violation))
            return f"is found again: {same.finding.sentence()}"
        if violation.finding.reason.hides_others:
            return ""
        denials = [each for each in found if each.outcome is Outcome.DENIED]
        fields = Counter(map(field_of, denials))
        new = [
            each
            for each in denials
            # A field that a rule denied already is denied for another reason.
            if now[identity(each)] > self.known[identity(each)]
            and not self._stood_above(each, violation, now)
            and (
                not each.finding.path
                or field_of(each) == field_of(violation)
                or fields[field_of(each)] > self.denied_fields[field_of(each)]
            )
        ]
        # Nothing asks the quota about a pod that is denied anyway, and it answers with one reason at a time.
        new = [each for each in new if not (self.is_denied and each.finding.rule == QUOTA_RULE.id)]
        if new:
            return f"brings {new[0].finding.sentence()}"
        return "" if denials else self._of_kubernetes(violation, situation, document, after)

    def _stood_above(self, denial: Violation, corrected: Violation, now: Counter[tuple[str, ...]]) -> bool:
        """Whether the same denial stood at the whole pod, of which two containers had the amount, and now one has."""
        rule, reason, path, *_ = identity(denial)
        return any(
            each[:2] == (rule, reason) and path.startswith(f"{each[2]}.") and now[each] < self.known[each]
            for each in self.known
            if each[-1] == Outcome.DENIED.value and each != identity(corrected)
        )

    def _of_kubernetes(
        self, violation: Violation, situation: Situation, document: JSON, after: Evaluation
    ) -> str:
        """Return why the API server rejects the pod, or the scheduler finds no node for it."""
        answer, before = situation.answer(document, after), self.answer
        if answer.code != 201:
            return "" if before.code != 201 else f"the API server rejects it: {answer.message}"
        # What lifts a gate also says where the pod runs.
        is_placed = document["kind"] == "DaemonSet" or not template_of(document)["spec"].keys().isdisjoint(
            PLACED
        )
        if is_placed or not self._chooses_nodes(violation, document) or not situation.nodes:
            return ""  # no scheduler chooses a node
        # serve knows only the labels that name classes or hardware; the policy says that there is a spot pool, if without nodes
        is_spot = any("pool" in pod.admitted.node_selector for pod in after.pods)
        if is_spot or self._constrained_keys() & UNKNOWN_KEYS:
            return ""
        if situation.pools or "autoscaledClasses" in situation.rules.get("gpu-class", {}):
            return ""
        if any(each.finding.reason in PENDING for each in seen(after)):
            return ""  # it says itself that the pod stays pending
        return "" if answer.room() else "no node takes it"

    def _chooses_nodes(self, violation: Violation, document: JSON) -> bool:
        if violation.finding.reason is NO_NODE:
            return True
        if violation.finding.rule == GPU_ISOLATION:
            return False  # a pod without GPUs has nodes that the situation has not
        parts = (("metadata", "annotations", CLASS), ("spec", "nodeSelector"), ("spec", "tolerations"))
        now, before = template_of(document), template_of(self.document)
        changed = [each for each in parts if value_at(now, each) != value_at(before, each)]
        # An annotation that goes, because it has no effect, names no nodes.
        return any(each[-1] != CLASS or value_at(now, each) is not None for each in changed)

    def _constrained_keys(self) -> set[str]:
        """Return the keys of node labels that the nodeSelector and the affinity of the pods name."""
        spec = template_of(self.document)["spec"]
        terms = value_at(spec, ("affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")) or []
        kinds = ("matchExpressions", "matchFields")
        keys = (each["key"] for term in terms for kind in kinds for each in term.get(kind, ()))
        return {*spec.get("nodeSelector", {}), *keys}

    def failures(self, violation: Violation) -> Iterator[Failure]:
        """Yield what is wrong with what the finding tells its reader to do."""
        finding = violation.finding
        sentence = finding.sentence()

        def failed(kind: str, detail: str) -> Failure:
            return Failure(kind, finding.reason.name, f"{sentence}\n    {detail}")

        if finding.advice and not (finding.choices or finding.awaits) and IMPERATIVE.search(finding.advice):
            yield failed("words without data", finding.advice)
        if finding.ask_contact and not finding.contact_choices:
            yield failed("asks without data", finding.ask_contact)
        is_beside = finding.awaits is not None and finding.awaits.beside_choice
        for edits in finding.choices:
            where = awaited(self.situation, self.document, finding) if is_beside else self.situation
            if why := self.wrong(violation, where, edited(self.document, edits)):
                said = " and ".join(f"{edit.path}: {edit.value}" for edit in edits)
                yield failed("choice", f"{said} → {why}")
        for after, document in granted(self.situation, self.document, finding):
            if why := self.wrong(violation, after, document):
                yield failed("ask", why)
        if finding.awaits is None or is_beside:
            return
        if why := self.wrong(violation, awaited(self.situation, self.document, finding), self.document):
            yield failed("wait", why)

    def incomplete(self, violation: Violation) -> str:
        """Return an edit of the fixed list that works, if some do and the finding names none; "" otherwise."""
        finding = violation.finding
        if any(
            not self.wrong(violation, self.situation, edited(self.document, each)) for each in finding.choices
        ):
            return ""
        if finding.reason in INJECTION_REASONS:
            return ""  # it reports what a rule would add, and there is nothing to correct
        working = [
            edits
            for edits in candidates(self.situation, self.document)
            if not self.wrong(violation, self.situation, made := edited(self.document, edits))
            and not self._remains(violation, made, edits)
        ]
        if not working or any(named(edits, finding.sentence()) for edits in working):
            return ""
        return f"{finding.sentence()}\n    {' or '.join(words_of(each) for each in working[:4])} would work"

    def _remains(self, violation: Violation, document: JSON, edits: Edits) -> bool:
        """Whether the edited object is known to stay pending, what is written is denied, or the rule finds as much as before."""
        found = seen(self._evaluated(self.situation, document))
        written = {edit.path for edit in edits}
        never = {NO_NODE, QUOTA_CAN_NEVER_FIT}
        if any(each.finding.reason in never or each.finding.path in written for each in found):
            return True
        same, finding = (
            [each for each in found if each.finding.rule == violation.finding.rule],
            violation.finding,
        )
        before = [each for each in self.found if each.finding.rule == finding.rule]
        is_only_softer = any(
            (each.finding.reason, each.finding.path) == (finding.reason, finding.path) for each in same
        )
        return len(same) >= len(before) or is_only_softer


def words_of(edits: Edits) -> str:
    return " and ".join(dict.fromkeys(edit.words for edit in edits))


def named(edits: Edits, sentence: str) -> bool:
    """Whether a sentence names the edit: its field and its value, as words."""
    edit = edits[0]
    last = str(path_parts(edit.path)[-1])
    field = "tolerations" if last == "-" else last
    written = edit.value.key if isinstance(edit.value, Toleration) else edit.value
    value = str("" if written is None else written)
    return field in sentence and re.search(rf"(?<![\w.]){re.escape(value)}(?![\w.])", sentence) is not None


def awaited(situation: Situation, document: JSON, finding: Finding) -> Situation:
    """Return the situation in which what the finding awaits has come."""
    assert finding.awaits is not None
    amounts = {key: Fraction(amount) for key, amount in finding.awaits.amounts}
    owners = document["metadata"].get("ownerReferences", [])
    is_owned = [f"{each['kind']}/{each['name']}" for each in owners] == [OWNER]
    situation = released(situation, amounts, by_own=finding.awaits.by_own or not is_owned)
    quota = situation.quota
    if quota is not None and finding.awaits.until:
        return replace(situation, quota=replace(quota, spent=0.0))
    if quota is not None and finding.awaits.seconds:
        return replace(situation, quota=replace(quota, waiting=0))
    return situation


def candidates(situation: Situation, document: JSON) -> Iterator[Edits]:
    """Yield the fixed list of edits, each of which its reader could make."""
    spec, path = template_of(document)["spec"], field_path(template_at(document))
    at = f"{path}." if path else ""
    for index, container in enumerate(spec["containers"]):
        yield from _amounts(f"{at}spec.containers[{index}]", container)
    for name in NAMED_CLASSES:
        yield (Edit(f"{at}{annotation_path(CLASS)}", name),)
    for toleration in dict.fromkeys(_tolerations(situation)):
        yield (Edit(f"{at}spec.tolerations[-]", toleration),)
    for key in spec.get("nodeSelector", {}):
        yield (Edit(f"{at}spec.nodeSelector[{key}]"),)
    if "affinity" in spec:
        yield (Edit(f"{at}spec.affinity"),)
    number = KINDS[document["kind"]].number if document["kind"] in KINDS else ()
    for amount in range(1, value_at(document, number)) if number else ():
        yield (Edit(field_path(number), amount),)
    yield (Edit(f"{at}spec.activeDeadlineSeconds", 28_800),)


def _amounts(path: str, container: JSON) -> Iterator[Edits]:
    resources = container.get("resources", {})
    for name in sorted({*resources.get("limits", {}), *resources.get("requests", {})}):
        kinds = [
            kind for kind in ("limits", "requests") if kind == "limits" or name in resources.get(kind, {})
        ]
        for amount in AMOUNTS if "/" in name else ():
            yield tuple(Edit(f"{path}.resources.{kind}[{name}]", amount) for kind in kinds)


def _tolerations(situation: Situation) -> Iterator[Toleration]:
    for taint in (taint for node in situation.nodes or () for taint in node["spec"].get("taints", ())):
        value = taint.get("value")
        operator = "Equal" if value else "Exists"
        yield Toleration(key=taint["key"], operator=operator, value=value, effect=taint.get("effect"))
