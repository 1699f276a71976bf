"""New pods of an audit log, evaluated again under other documents: who would be denied, and who would not be any more.

Their lines have the pod as its author submitted it (`serve --audit-pods`). Quotas are left out on both sides: what was held at
the time is not known.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import msgspec

from policies.gpus.claims import ClaimName, DeviceClassNames
from policies.pods.pod import Pod, decode_pod
from policies.policy import Labels
from policies.quota.charge import RULE_ID as QUOTA
from webhook.serving.engine import Engine, Outcome
from webhook.serving.evaluation import Evaluator, evaluate_submitted
from webhook.serving.pod_reviews import CONTROLLER_MANAGER, DAEMONSET_CONTROLLER
from webhook.tools.audit.reading import AuditLine
from webhook.tools.audit.recent import Recent

MOST_PENDING = 10_000
"""Creations whose second line may still come; it comes within seconds."""
MOST_JUDGED = 10_000
"""Evaluations that are remembered: the pods of one Job are alike, and each takes some 0.5 ms."""
MOST_GROUPS = 10_000
OTHERS = ("others", "")
DAEMONSET_CREATORS = frozenset({DAEMONSET_CONTROLLER, CONTROLLER_MANAGER})


class Hit(msgspec.Struct):
    """The pods of one owner that one rule denies now, or denied; `message` is about the first of them, `pod`."""

    namespace: str
    owner: str
    rule: str
    pod: str
    message: str
    pods: int = 0


class Evaluated(msgspec.Struct, frozen=True):
    """The findings that deny a pod, by rule; None where it cannot be evaluated."""

    denials: Mapping[str, str] | None


class _Pending(msgspec.Struct):
    line: AuditLine
    evaluated: Evaluated
    denied: set[str]


class Replay:
    """Evaluates the pods of lines by an engine. `labels` are those of namespaces, as far as they are known."""

    def __init__(self, engine: Engine, labels: Mapping[str, Labels], now: datetime) -> None:
        self._engine, self._labels, self._now = engine, labels, now
        self._pending = Recent[str, _Pending](MOST_PENDING, self._done)
        self._remembered = Recent[tuple[str, bytes, str], Evaluated](MOST_JUDGED)
        self._newly: dict[tuple[str, str, str], Hit] = {}
        self._no_longer: dict[tuple[str, str, str], Hit] = {}
        self.pods = self.newly_denied = self.no_longer_denied = self.denied_as_before = 0
        self.without_pod = 0
        """Creations whose line has no pod: `serve --audit-pods` was not set, or the pod was too long."""
        self.not_evaluated: dict[str, int] = {}
        """Pods in namespaces whose labels select the policy, and are not known."""
        self.first = self.last = ""

    @property
    def newly(self) -> list[Hit]:
        """Who would be denied and was not, most pods first."""
        return _sorted(self._newly)

    @property
    def no_longer(self) -> list[Hit]:
        """Who was denied and would not be."""
        return _sorted(self._no_longer)

    def read(self, lines: Iterable[AuditLine]) -> None:
        """Judge the pods of the lines; call `finish` after the last."""
        for line in lines:
            if line.kind != "Pod" or line.operation != "CREATE" or line.dry_run:
                continue
            if line.phase == "mutate":
                self._submitted(line)
            elif line.creation and (pending := self._pending.pop(line.creation)) is not None:
                pending.denied |= _denied(line)
                self._done(pending)

    def finish(self) -> None:
        """Count the creations whose second line did not come: they were denied before, or the log ends there."""
        for pending in self._pending.values():
            self._done(pending)

    def _submitted(self, line: AuditLine) -> None:
        if not isinstance(line.pod, msgspec.Raw) or bytes(line.pod) == b"null":
            self.without_pod += 1
            return
        pending = _Pending(line, self._evaluated(line), _denied(line))
        if line.creation and line.verdict != "denied":
            # Another webhook may have had ours called once more.
            again = self._pending.pop(line.creation)
            self._pending[line.creation] = again or pending
        else:
            self._done(pending)

    def _evaluated(self, line: AuditLine) -> Evaluated:
        policies = self._engine.configuration.policies
        if policies.asks_labels(line.namespace) and line.namespace not in self._labels:
            return Evaluated(None)
        document = bytes(line.pod) if isinstance(line.pod, msgspec.Raw) else b""
        claims = ",".join(f"{name}={'|'.join(sorted(each))}" for name, each in sorted(line.claims.items()))
        key = line.namespace, document, claims
        found = self._remembered.get(key)
        if found is None:
            found = self._remembered[key] = self._evaluation(line, document)
        return found

    def _evaluation(self, line: AuditLine, document: bytes) -> Evaluated:
        try:
            pod = decode_pod(document)
        except (msgspec.MsgspecError, RecursionError):
            return Evaluated(None)
        by = Evaluator(
            engine=self._engine,
            now=self._now,
            labels_of=lambda namespace: self._labels.get(namespace, ()),
            claims=_claims_of(line, pod),
        )
        of_daemonset = line.owner.startswith("DaemonSet/") and line.user in DAEMONSET_CREATORS
        evaluated = evaluate_submitted(line.namespace, pod, by, of_daemonset=of_daemonset).evaluated
        denied = (each.finding for each in reversed(evaluated) if each.outcome is Outcome.DENIED)
        return Evaluated({finding.rule: finding.sentence() for finding in denied})

    def _done(self, pending: _Pending) -> None:
        line, denials = pending.line, pending.evaluated.denials
        if denials is None:
            self.not_evaluated[line.namespace] = self.not_evaluated.get(line.namespace, 0) + 1
            return
        self.pods += 1
        self.first, self.last = min(self.first or line.time, line.time), max(self.last, line.time)
        if denials and pending.denied:
            self.denied_as_before += 1
        elif denials:
            self.newly_denied += 1
            for rule, message in denials.items():
                _add(self._newly, line, rule, message)
        elif pending.denied:
            self.no_longer_denied += 1
            for rule in sorted(pending.denied):
                _add(self._no_longer, line, rule, "")


def _denied(line: AuditLine) -> set[str]:
    """Return the rules that denied the pod, but for its quota."""
    return {each.rule for each in line.findings if each.outcome == "denied" and each.rule != QUOTA}


def _claims_of(line: AuditLine, pod: Pod) -> Callable[[ClaimName], DeviceClassNames | None]:
    """Return the lookup of what the claims of the pod asked for when it was created."""
    known = {
        name: line.claims[each.name]
        for each in pod.body.resource_claims or ()
        if (name := each.resource_claim_template_name or each.resource_claim_name)
        and each.name in line.claims
    }
    return lambda requested: known.get(requested.name)


def _add(groups: dict[tuple[str, str, str], Hit], line: AuditLine, rule: str, message: str) -> None:
    owner = line.owner or f"Pod/{line.name}"
    key = (line.namespace, owner, rule)
    if key not in groups and len(groups) >= MOST_GROUPS:
        key, message = (*OTHERS, rule), ""
    hit = groups.setdefault(key, Hit(*key, pod=line.name, message=message))
    hit.pods += 1


def _sorted(groups: Mapping[tuple[str, str, str], Hit]) -> list[Hit]:
    return sorted(groups.values(), key=lambda hit: (-hit.pods, hit.namespace, hit.owner, hit.rule))
