"""Decisions on the objects of a run, as they are shown: without what the run cannot know."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonpatch
import msgspec
from msgspec.structs import replace

from policies.finding import Finding
from policies.gpus.claimed_devices import controller_of_claim, decode_claim, decode_claim_template
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.label_selector import LabelSelector
from policies.pods.pod import Metadata
from policies.pods.workload import Workload
from policies.policy import EffectivePolicy
from policies.quota.quota_request import quota_request_for_claim
from policies.registry import QUOTA_RULE
from policies.rules.disruption import SERVING_KINDS, PDBSpec, ServingWorkload, check_pdb
from webhook.evaluation.decision import Decision, Outcome, Violation
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.kinds import CLAIM_TEMPLATE
from webhook.evaluation.workloads import EvaluatedPod
from webhook.tools.check import run_quotas
from webhook.tools.check.manifests import Manifest, Placeholder
from webhook.tools.check.placeholders import has_parameters, is_placeholder
from webhook.tools.check.run_quotas import ObjectKey
from webhook.workloads.autoscalers import scale_target


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


def advice_decision(manifest: Manifest, policy: EffectivePolicy, evaluator: Evaluator) -> Decision:
    document = msgspec.json.encode(manifest.data)
    if manifest.group_kind != CLAIM_TEMPLATE:
        return evaluator.advise(policy, manifest.group_kind, document)
    try:
        return evaluator.check_claim_template(policy, decode_claim_template(document))
    except msgspec.ValidationError:  # the API server rejects it
        return Decision(policy=policy)


def claim_decision(manifest: Manifest, policy: EffectivePolicy, evaluator: Evaluator) -> Decision:
    """Decide on a ResourceClaim, and count its demand; the API server rejects one that cannot be read."""
    try:
        claim = decode_claim(msgspec.json.encode(manifest.data))
    except msgspec.ValidationError:
        return Decision(policy=policy)
    request = quota_request_for_claim("check", claim, "", evaluator.configuration)
    return evaluator.check_claim(
        policy, claim, request, by_cluster=controller_of_claim(claim.metadata or Metadata()) is not None
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


def warned_if_use_unknown(decision: Decision, quota: run_quotas.RunQuota | None) -> Decision:
    """Return the decision with denials by the quota as warnings if it is not known what else uses the quota."""
    if quota is not None and quota.stored.used is not None:
        return decision
    softened = (
        Violation(violation.finding, Outcome.WARNED)
        if violation.finding.rule == QUOTA_RULE.id and violation.outcome is Outcome.DENIED
        else violation
        for violation in decision.violations
    )
    return replace(decision, violations=tuple(softened))


_KINDS_WITH_POD_LABELS = {
    *SERVING_KINDS,
    ("", "Pod"),
    ("apps", "DaemonSet"),
    ("batch", "Job"),
    ("batch", "CronJob"),
}
"""Kinds whose documents show the labels of their pods."""


def pdb_findings(
    manifest: Manifest,
    manifests: Sequence[Manifest],
    workloads: Mapping[tuple[str, *ObjectKey], Workload],
    mapping: ResourceMapping,
) -> Iterator[Finding]:
    """Yield the findings about a PodDisruptionBudget; none if the API server rejects it."""
    try:
        budget = msgspec.convert(manifest.data.get("spec") or {}, PDBSpec)
    except msgspec.ValidationError:
        return
    in_namespace = [other for other in manifests if other.namespace == manifest.namespace]
    scalers = {
        (target.group, target.kind, target.name): (target.min_replicas, f"{manifest.kind} {manifest.name}")
        for manifest in in_namespace
        if (target := scale_target(*manifest.group_kind, manifest.data))
    }
    workloads_served = [
        ServingWorkload(workload, *scalers.get((workload.group, workload.kind, workload.name), ()))
        for (namespace, *_), workload in workloads.items()
        if namespace == manifest.namespace
    ]
    selector = budget.selector or LabelSelector()
    no_other_pods = not any(map(is_placeholder, selector.match_labels.values())) and all(
        _selects_none_of(selector, manifest) for manifest in in_namespace
    )
    yield from check_pdb(budget, workloads_served, mapping, no_other_pods=no_other_pods)


def _selects_none_of(selector: LabelSelector, manifest: Manifest) -> bool:
    """Whether the document makes no pod that the selector may match. An unknown kind of Kubernetes itself makes none."""
    if manifest.pods and manifest.group_kind in _KINDS_WITH_POD_LABELS:
        labels = ((pod.metadata and pod.metadata.labels) or {} for _, pod in manifest.pods)
        return not any(map(selector.matches, labels))
    is_custom_kind = "." in manifest.group.removesuffix(".k8s.io")
    return not manifest.pods and (manifest.is_checked or not is_custom_kind)
