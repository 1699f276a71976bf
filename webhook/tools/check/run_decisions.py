"""Decisions on the objects of a run, as they are shown: without what the run cannot know."""

from typing import Any

import jsonpatch
import msgspec
from msgspec.structs import replace

from policies.gpus.claimed_devices import decode_claim, decode_claim_template, made_for
from policies.pods.pod import Metadata
from policies.policy import EffectivePolicy
from policies.quota.quota_request import quota_request_for_claim
from policies.registry import QUOTA_RULE
from webhook.evaluation.decision import Decision, Outcome, Violation
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.kinds import CLAIM_TEMPLATE
from webhook.evaluation.workloads import EvaluatedPod
from webhook.tools.check import run_quotas
from webhook.tools.check.manifests import Manifest, Placeholder
from webhook.tools.check.placeholders import has_parameters, is_placeholder


class PodResult(EvaluatedPod, frozen=True):
    """Result for one pod of a manifest."""

    placeholders: tuple[Placeholder, ...] = ()
    """Values that findings were about, and that will be others once the file is rendered."""

    @property
    def data(self) -> dict[str, Any]:
        """The pod with the changes applied."""
        if self.place.is_partial:
            return self.place.data
        operations = msgspec.json.encode(self.decisions[0].operations)
        changed: dict[str, Any] = jsonpatch.apply_patch(self.place.data, msgspec.json.decode(operations))
        return changed


def advice(manifest: Manifest, policy: EffectivePolicy, by: Evaluator) -> Decision:
    document = msgspec.json.encode(manifest.data)
    if manifest.group_kind != CLAIM_TEMPLATE:
        return by.advise(policy, manifest.group_kind, document)
    try:
        return by.check_claim_template(policy, decode_claim_template(document))
    except msgspec.ValidationError:  # the API server rejects it
        return Decision(policy=policy)


def counted_claim(manifest: Manifest, policy: EffectivePolicy, by: Evaluator) -> Decision:
    """Decide on a ResourceClaim, and count its demand; the API server rejects one that cannot be read."""
    try:
        claim = decode_claim(msgspec.json.encode(manifest.data))
    except msgspec.ValidationError:
        return Decision(policy=policy)
    request = quota_request_for_claim("check", claim, "", by.configuration)
    return by.check_claim(
        policy, claim, request, by_cluster=made_for(claim.metadata or Metadata()) is not None
    )


def without_placeholders(manifest: Manifest, pod: PodResult) -> PodResult:
    """Return the result without findings about placeholders, and without advice, which may follow from them."""
    placeholders = {
        Placeholder(violation.finding.path, violation.finding.value): None
        for violation in pod.violations
        if violation.finding.value is not None
        and is_placeholder(violation.finding.value, violation.finding.path)
    }
    if not placeholders:
        return pod
    paths = {placeholder.path for placeholder in placeholders}
    denied = (violation for violation in pod.violations if violation.outcome is Outcome.DENIED)
    left = tuple(denial for denial in denied if denial.finding.path not in paths)
    return replace(
        pod,
        decisions=(replace(pod.decisions[0], violations=left),),
        placeholders=() if has_parameters(manifest.group, manifest.kind) else tuple(placeholders),
    )


def as_known(decision: Decision, quota: run_quotas.RunQuota | None) -> Decision:
    """Return the denials by a quota as warnings where the other pods of the namespace are not known."""
    if quota is not None and quota.stored.used is not None:
        return decision
    known = (
        Violation(violation.finding, Outcome.WARNED)
        if violation.finding.rule == QUOTA_RULE.id and violation.outcome is Outcome.DENIED
        else violation
        for violation in decision.violations
    )
    return replace(decision, violations=tuple(known))
