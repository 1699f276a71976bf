"""Our scheduling gate in a decision: a pod gets it to wait in line for quota, and loses it where pods do not wait."""

from functools import partial

from msgspec.structs import replace

from policies.finding import Finding, Severity
from policies.pods.patch import Change, Operation, PodPatch
from policies.pods.pod import Pod
from policies.quota.line_findings import UNWANTED_GATE
from policies.quota.waiting import GATE, without_gate
from policies.registry import QUOTA_RULE
from policies.rule import Mode, Phase
from webhook.evaluation.decision import Decision


def without_line(decision: Decision, pod: Pod, phase: Phase) -> Decision:
    """Return the decision on a new pod with our gate, where pods do not wait in line: it goes. A pod that keeps it is denied."""
    finding = partial(
        Finding, rule=QUOTA_RULE.id, reason=UNWANTED_GATE, path="spec.schedulingGates", value=GATE
    )
    if phase is Phase.VALIDATE:
        denial = finding(message="must be omitted: pods of this namespace do not wait in line for quota")
        return decision.with_findings([denial], Mode.ENFORCE)
    removal = Operation("replace", "/spec/schedulingGates", without_gate(pod).spec.scheduling_gates or ())
    change = Change(f"no schedulingGate {GATE}", (removal,), QUOTA_RULE.id)
    message = "is removed: pods of this namespace do not wait in line for quota"
    changed = replace(decision, changes=(*decision.changes, change))
    return changed.with_findings([finding(message=message, severity=Severity.WARNING)], Mode.WARN)


def gated(decision: Decision, pod: Pod) -> Decision:
    patch = PodPatch(pod)
    patch.add_scheduling_gate(GATE)
    (change,) = patch.changes
    return replace(decision, changes=(*decision.changes, replace(change, rule=QUOTA_RULE.id)))
