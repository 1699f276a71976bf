"""Evaluation of manifests as the webhook would evaluate the objects, with what is known of a cluster, or without one.

A Pod passes /mutate and then, patched, /validate. Pod templates are checked, with the changes to their pods; a workload itself is
never changed.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import Enum
from functools import reduce
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.finding import Finding
from policies.placement.nodes import NO_NODES
from policies.pods.workload import Workload
from policies.policy import EffectivePolicy
from policies.quota.fit import demands, existing_demand
from policies.rule import Mode
from policies.rules.ineffective_fields import GROUPS, misplaced_containers
from policies.rules.ineffective_fields import ID as INEFFECTIVE_FIELDS
from webhook.cluster.namespaces import NamespaceUnknown
from webhook.configuration.documents import GROUP
from webhook.configuration.dynamic_resources import DRA_GROUP
from webhook.evaluation.creation import evaluate_creation, evaluate_template, is_reviewed, unreviewed
from webhook.evaluation.decision import Decision, Outcome, Violation
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.facts import Facts
from webhook.evaluation.kinds import ADVISED_KINDS, API_VALIDATED_KINDS, CLAIM, CLAIM_SPEC_PATHS, PDB
from webhook.evaluation.workloads import (
    CompletedWorkload,
    as_workload,
    evaluate_autoscaler,
    with_default_amounts,
    with_referenced,
)
from webhook.tools.check import run_context, run_quotas
from webhook.tools.check.manifests import Manifest, Placeholder
from webhook.tools.check.run_context import CheckedCluster
from webhook.tools.check.run_decisions import (
    PodResult,
    advice_decision,
    claim_decision,
    pdb_findings,
    warned_if_use_unknown,
    without_placeholders,
)
from webhook.tools.check.run_kueue import RunKueue
from webhook.workloads.autoscalers import AUTOSCALERS, scale_target
from webhook.workloads.misplaced import (
    invalid_requests,
    lost_fields,
    misplaced_fields,
    misplaced_gpus,
    misplaced_requests,
)
from webhook.workloads.places import workload_pods
from webhook.workloads.references import ObjectReference
from webhook.workloads.unread import quota_findings, unread_gpus


class ManifestVerdict(Enum):
    DENIED = "denied"
    CHANGED = "changed"
    WARNED = "warned"
    """Admitted as it is, with a warning."""
    ACCEPTED = "ok"
    UNKNOWN = "unknown"
    """It depends on the value that a tool will put in place of a placeholder, or on what the caller may not read."""
    SKIPPED = "skipped"
    """A kind that is not known to have pods."""


LocatedSentence = tuple[Outcome | None, str, str]
"""The outcome, path and sentence of a finding; the outcome is None for what keeps an object from being evaluated."""


class ManifestResult(msgspec.Struct, frozen=True):
    """Result for an object and each pod in it; `warnings` are about the object itself, for a claim or a quota with its denials.

    `unknown` says why it could not be evaluated.
    """

    manifest: Manifest
    pods: tuple[PodResult, ...]
    warnings: tuple[Violation, ...] = ()
    unknown: str = ""

    @property
    def verdict(self) -> ManifestVerdict:
        if not (self.manifest.is_checked or self.warnings):
            return ManifestVerdict.SKIPPED
        if any(violation.outcome is Outcome.DENIED for violation in self.findings()):
            return ManifestVerdict.DENIED
        if self.placeholders or self.unknown:
            return ManifestVerdict.UNKNOWN
        if any(pod.changes for pod in self.pods):
            return ManifestVerdict.CHANGED
        return ManifestVerdict.WARNED if self.number_of_warnings else ManifestVerdict.ACCEPTED

    @property
    def number_of_warnings(self) -> int:
        return sum(finding.outcome is Outcome.WARNED for finding in self.findings())

    def findings(self) -> Iterator[Violation]:
        return chain(*(pod.violations for pod in self.pods), self.warnings)

    def remarks(self) -> Iterator[LocatedSentence]:
        for violation in self.findings():
            yield violation.outcome, violation.finding.path, violation.finding.sentence()
        for placeholder in self.placeholders:
            yield None, placeholder.path, placeholder.sentence()
        if self.unknown:
            yield None, "", self.unknown

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        placeholders = chain(self.manifest.placeholders, *(pod.placeholders for pod in self.pods))
        return tuple(dict.fromkeys(placeholders))

    def admitted(self) -> dict[str, Any]:
        """Return the Pod as it would be admitted, or the workload with its templates as their pods would be."""
        return reduce(lambda data, pod: pod.place.replaced(data, pod.data), self.pods, self.manifest.data)

    def submitted(self) -> dict[str, Any]:
        """Return the object as /mutate sees it."""
        places = (pod.place for pod in self.pods)
        return reduce(lambda data, place: place.replaced(data, place.data), places, self.manifest.data)


class Run:
    """One run over documents that are applied together: each is evaluated with what the others say and request."""

    def __init__(
        self,
        manifests: Sequence[Manifest],
        cache: DecisionCache,
        now: datetime,
        cluster: CheckedCluster | None,
    ) -> None:
        self._manifests, self._configuration, self._cluster = manifests, cache.configuration, cluster
        labels, claims = run_context.manifest_context(manifests)
        labels_of, claim = (
            (cluster.labels_of, cluster.claim) if cluster else (run_context.default_labels, claims.get)
        )
        facts, index = cluster.nodes if cluster else (None, NO_NODES)
        self._evaluator = Evaluator(
            cache=cache,
            now=now,
            facts=Facts(
                labels_of=lambda name: run_context.applied_labels(labels_of(name), labels.get(name, ())),
                nodes=lambda: facts,
                named_nodes=lambda: index,
                claims=lambda name: claims[name] if name in claims else claim(name),
                pdb_selectors=run_context.pdb_selectors_of(manifests, cluster),
                find_object=self._referred,
                config_maps=run_context.config_maps(manifests),
                limits_of=run_context.limits_in(manifests, cache.configuration.resource_mapping, cluster),
            ),
        )
        self._quota_of = run_quotas.run_quotas(
            manifests, cache.configuration, cluster, self._evaluator.facts.labels_of
        )
        self._teams = run_quotas.teams_in(manifests)
        self._kueue = RunKueue(manifests, cache.configuration, cluster)
        kinds = cache.configuration.workload_kinds
        cluster_scoped = {key for key, workload_kind in kinds.items() if workload_kind.cluster_scoped}
        self._data_by_name = {
            (
                manifest.group_kind,
                "" if manifest.group_kind in cluster_scoped else manifest.namespace,
                manifest.name,
            ): manifest.data
            for manifest in manifests
        }
        self._kinds = {manifest.kind for manifest in manifests if manifest.group == GROUP}
        self._workloads: dict[tuple[str, *run_quotas.ObjectKey], Workload] = {}

    def results(self) -> list[ManifestResult]:
        """Return the results in the order of the documents. What names or selects other documents is evaluated last."""
        places = range(len(self._manifests))
        last = {*AUTOSCALERS, PDB}
        ordered = sorted(places, key=lambda at: self._manifests[at].group_kind in last)
        results = {at: self._evaluate(self._manifests[at]) for at in ordered}
        return [results[at] for at in places]

    def _evaluate(self, manifest: Manifest) -> ManifestResult:
        is_read = manifest.is_checked or any(self._unread_findings(manifest))
        if self._cluster and not is_read:
            # The labels of its namespace are not asked for, if it has one.
            return ManifestResult(manifest, ())
        try:
            policy = self._evaluator.policy(manifest.namespace)
        except NamespaceUnknown as error:
            return ManifestResult(manifest, (), unknown=str(error))
        pods = tuple(self._evaluate_pods(manifest, policy))
        warnings = () if manifest.is_pod else self._object_violations(manifest, pods, policy)
        reported = {violation.finding.path for pod in pods for violation in pod.violations}
        misplaced = (
            each for each in self._misplaced_findings(manifest, policy) if each.finding.path not in reported
        )
        by_kueue = Decision.of_findings(policy, self._kueue.findings(manifest), Mode.WARN).violations
        return ManifestResult(manifest, pods, (*warnings, *misplaced, *by_kueue))

    def _misplaced_findings(self, manifest: Manifest, policy: EffectivePolicy) -> tuple[Violation, ...]:
        """Return findings about GPUs in fields that no rule reads, and about fields that the API server does not know."""
        is_built_in = GROUPS.get(manifest.kind) == manifest.group
        places = [place for place, _ in manifest.pods if not place.is_partial]
        searched = [()] if is_built_in else [place.at for place in places if () in place.origins]
        findings: Iterator[Finding] = chain(
            misplaced_gpus(manifest.data, searched, self._configuration.resource_mapping),
            misplaced_fields(manifest.data, places, is_built_in=is_built_in),
            lost_fields(manifest.data),
        )
        if manifest.group == DRA_GROUP:
            findings = misplaced_requests(manifest.data, manifest.api_version)
        if manifest.is_pod:
            findings = chain(misplaced_containers(manifest.kind, manifest.data), findings)
        return Decision.of_findings(policy, findings, Mode.WARN, INEFFECTIVE_FIELDS).violations

    def _object_violations(
        self, manifest: Manifest, pods: Iterable[PodResult], policy: EffectivePolicy
    ) -> tuple[Violation, ...]:
        kind, configuration = manifest.group_kind, self._configuration
        target = self._scaled_workload(manifest)
        # What is scaled holds its own pods already.
        quota = self._quota(manifest, (target.group, target.kind, target.name) if target else None)
        stored = self._stored_object(manifest, quota)
        completed = with_referenced(self._evaluator, policy, kind, manifest.data, tuple(pods))
        workload = self._workload(manifest, completed, target, stored or {})
        evaluator = replace(self._evaluator, quota_of=lambda _namespace: quota)
        decision = None if target else self._autoscaler_decision(manifest, policy, evaluator)
        decision = decision or evaluator.check_workload(policy, workload, is_update=stored is not None)
        decisions = [decision]
        if quota is not None and target is None and not workload.metadata.controlled_by:
            requested = demands(workload, configuration, quota.stored.unclassified_pods)
            held = {} if stored is None else existing_demand(workload, requested)
            quota.count({} if held is None else quota.growth(requested, held))
        if run_quotas.is_quota(manifest):
            findings = run_quotas.quota_findings(manifest, configuration, self._teams, self._kinds)
            decisions.append(Decision.of_findings(policy, findings, Mode.ENFORCE))
        mapping, workload_kind = configuration.resource_mapping, configuration.workload_kinds.get(kind)
        quotas = quota_findings(workload_kind, manifest.data, mapping) if workload_kind else ()
        warned = [*quotas, *completed.findings]
        # A Job of API group apps is misplaced, not unknown, and a rule says so.
        if kind not in ADVISED_KINDS and (workload_kind or not decision.violations):
            warned += self._unread_findings(manifest)
        if kind == PDB:
            warned += pdb_findings(manifest, self._manifests, self._workloads, mapping)
        decisions.append(Decision.of_findings(policy, warned, Mode.WARN))
        if kind in ADVISED_KINDS:
            decisions.append(advice_decision(manifest, policy, evaluator))
            if kind in API_VALIDATED_KINDS:  # what the API server rejects never gets to the webhook
                refused = [violation.finding for violation in decisions[-1].violations]
                decisions[-1] = Decision.of_findings(policy, refused, Mode.ENFORCE)
        if kind in CLAIM_SPEC_PATHS:
            findings = invalid_requests(manifest.data, CLAIM_SPEC_PATHS[kind])
            decisions.append(Decision.of_findings(policy, findings, Mode.ENFORCE))
        if kind == CLAIM and stored is None:
            decisions.append(claim_decision(manifest, policy, evaluator))
        found = (
            violation
            for decision in decisions
            for violation in warned_if_use_unknown(decision, quota).violations
        )
        is_denied_itself = kind in {*CLAIM_SPEC_PATHS, *API_VALIDATED_KINDS} or run_quotas.is_quota(manifest)
        outcomes = {Outcome.WARNED, Outcome.DENIED} if is_denied_itself else {Outcome.WARNED}
        return tuple(violation for violation in found if violation.outcome in outcomes)

    def _unread_findings(self, manifest: Manifest) -> list[Finding]:
        mapping, kinds = self._configuration.resource_mapping, self._configuration.workload_kinds
        return unread_gpus(*manifest.group_kind, manifest.data, manifest.pods, mapping, kinds)

    def _quota(
        self, manifest: Manifest, key: run_quotas.ObjectKey | None = None
    ) -> run_quotas.RunQuota | None:
        quota = self._quota_of(manifest.namespace)
        return replace(quota, key=key or _object_key(manifest)) if quota else None

    def _stored_object(self, manifest: Manifest, quota: run_quotas.RunQuota | None) -> dict[str, Any] | None:
        """Return the object as the cluster has it, which counts in the quota already; only a quota asks for it."""
        if self._cluster is None or quota is None or not (manifest.pods or manifest.group_kind == CLAIM):
            return None
        return self._cluster.stored(*manifest.group_kind, manifest.namespace, manifest.name)

    def _autoscaler_decision(
        self, manifest: Manifest, policy: EffectivePolicy, evaluator: Evaluator
    ) -> Decision | None:
        """Return the decision on an autoscaler, by the object that it scales in the cluster; None if that is unknown."""
        scales = scale_target(*manifest.group_kind, manifest.data)
        if self._cluster is None or scales is None:
            return None
        if not (scales.min_replicas <= 1 or evaluator.quota_of(manifest.namespace)):
            return None
        stored = self._cluster.stored(scales.group, scales.kind, manifest.namespace, scales.name)
        if stored is None:
            return None
        return evaluate_autoscaler(
            evaluator, policy, manifest.group_kind, manifest.data, scales, stored, is_update=False
        )

    def _referred(self, name: ObjectReference) -> Any:
        found = self._data_by_name.get(((name.group, name.kind), name.namespace, name.name))
        return self._cluster.find_object(name) if found is None and self._cluster else found

    def _workload(
        self,
        manifest: Manifest,
        completed: CompletedWorkload,
        target: Workload | None,
        stored: dict[str, Any],
    ) -> Workload:
        # As in an update, where the API server sends the status that is stored.
        status = {"status": stored["status"]} if "status" in stored else {}
        completed = replace(completed, data={**completed.data, **status})
        kinds = self._configuration.workload_kinds
        workload = as_workload(kinds, manifest.group_kind, manifest.namespace, completed, target)
        self._workloads[manifest.namespace, *_object_key(manifest)] = workload
        return workload

    def _scaled_workload(self, manifest: Manifest) -> Workload | None:
        """Return the workload that an autoscaler scales, with the most replicas, if it is among the documents."""
        scales = scale_target(*manifest.group_kind, manifest.data)
        key = scales and (manifest.namespace, scales.group, scales.kind, scales.name)
        target = self._workloads.get(key) if key else None
        if scales is None or target is None:
            return None
        kinds = self._configuration.workload_kinds
        # Without a cluster, replicas count as they are written, not as a status says.
        written = {key: value for key, value in target.data.items() if self._cluster or key != "status"}
        data, places = workload_pods(kinds, scales.group, scales.kind, scales.with_max_replicas(written))
        counts = {place.path: place.count for place, _ in places}
        pods = tuple(replace(pod, count=counts.get(pod.path, pod.count)) for pod in target.pods)
        return Workload(scales.group, scales.kind, manifest.namespace, data, pods)

    def _evaluate_pods(self, manifest: Manifest, policy: EffectivePolicy) -> Iterator[PodResult]:
        quota = self._quota(manifest)
        evaluator = replace(self._evaluator, quota_of=lambda _namespace: quota)
        for written, submitted in manifest.pods:
            place, pod = with_default_amounts(evaluator, policy, written, submitted)
            if manifest.is_pod:
                # The demand of an owned pod is that of its owner.
                counted = not (pod.metadata and pod.metadata.controlled_by)
                if counted and self._configuration.resource_mapping.pod_requests_gpus(pod):
                    counted = self._stored_object(manifest, quota) is None
                decisions = evaluate_creation(evaluator, policy, pod, by_daemonset=False, counted=counted)
            else:
                decisions = [
                    evaluate_template(
                        evaluator, policy, manifest.kind, pod, place.owner, is_partial=place.is_partial
                    )
                ]
            if not is_reviewed(pod, self._configuration.resource_mapping):
                decisions = [unreviewed(decision, pod) for decision in decisions]
            located = (
                warned_if_use_unknown(decision.located(place.path_in_object, place.path_of_edit), quota)
                for decision in decisions
            )
            yield without_placeholders(manifest, PodResult(place, pod, tuple(located)))


def _object_key(manifest: Manifest) -> run_quotas.ObjectKey:
    """Return what identifies the object in its namespace: an object without a name is unique."""
    own_name = (manifest.data.get("metadata") or {}).get("name")
    return *manifest.group_kind, manifest.name if own_name else f"{manifest.file}:{manifest.line_of()}"
