"""Scans a cluster: lists page by page and evaluates what runs. Nothing is ever written.

Objects are dropped once evaluated: memory grows with the number of owners, namespaces, and pods with claims, not with all pods.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from fractions import Fraction
from functools import cache, cached_property, partial
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.gpus.claimed_devices import ClaimName, RequestedDevices, without_other_claims
from policies.gpus.device_classes import ClusterDevices
from policies.gpus.limit_range_findings import limit_ranges_giving_gpus
from policies.placement.nodes import NO_NODES
from policies.pods.limit_ranges import NO_LIMITS, NamespaceLimits, limits_by_namespace
from policies.pods.pod import Metadata
from policies.policy import BUILT_IN, BUILT_IN_POLICY, Labels, Policy, PolicySet
from policies.quota.amounts import GPUS, Amounts
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.team_spec import Teams
from policies.registry import RULES
from policies.rule import Mode
from policies.rules.disruption import SERVING_KINDS, PDBSpec, ServingWorkload, check_pdb
from webhook.cluster import errors
from webhook.cluster.api import METADATA_LIST, REVIEW_READ_SECONDS, ApiClient
from webhook.cluster.capacity import capacity_by_class
from webhook.cluster.objects import InstallationNames, PartialObject, decode_metadata, decode_owned, timestamp
from webhook.configuration.documents import GROUP
from webhook.configuration.dynamic_resources import read_claims, served_resource
from webhook.configuration.loader import Configuration
from webhook.configuration.workload_kinds import WorkloadKinds
from webhook.evaluation.decision import Decision
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.facts import Facts
from webhook.evaluation.kinds import PDB
from webhook.quota.counted_records import PODS, CountedPod, RecordReader
from webhook.quota.documents import PLURAL, QUOTAS, decode_quota
from webhook.quota.enforcer import NamespaceQuota, ReadOnlyQuota
from webhook.quota.team_documents import TeamRecord
from webhook.tools.check.run_quotas import ledgers_without_usage
from webhook.tools.doctor.check import DoctorFinding, run_check
from webhook.tools.doctor.checks import nodes as node_checks
from webhook.tools.doctor.checks.references import has_ended
from webhook.tools.installed_cluster import InstalledCluster
from webhook.tools.scan.proposal import Draft
from webhook.tools.scan.report import Effect, Remark, ScanReport
from webhook.tools.scan.tally import Tally, effect_counts
from webhook.tools.status.listed_capacity import AllocatedDeviceTypes, PodsWithClaims, listed_demand
from webhook.tools.status.teams import namespace_ledger_from_status, read_teams
from webhook.tools.status.tolerant_reader import TolerantReader
from webhook.tools.stored_objects import Evaluation, evaluate
from webhook.tools.why.discovery import ServedKinds
from webhook.workloads.references import ObjectReference, read_object
from webhook.workloads.serving_workloads import serving_workload

NOT_ENDED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
LOWEST_PRIORITY = -(2**31)
MAX_EVALUATIONS = 4
"""Evaluations of the proposal: each may show another rule that must be relaxed."""


class _PDBStatus(msgspec.Struct, frozen=True, rename="camel"):
    expected_pods: int = 0
    observed_generation: int = -1


class _StoredPDB(PartialObject, frozen=True):
    spec: PDBSpec = PDBSpec()
    status: _PDBStatus = _PDBStatus()


_decode_stored_pdb = msgspec.json.Decoder(_StoredPDB).decode


class ClusterFacts:
    """The facts about a cluster, or one namespace, that evaluations need. Each fact is read when it is first needed.

    Kinds that the caller may not list are left out. Raises `errors.ApiError` for everything but a lack of rights.
    """

    def __init__(self, reader: TolerantReader, namespace: str) -> None:
        self._reader, self._namespace = reader, namespace
        self._api, self._attempt = reader.api, reader.attempt

    @cached_property
    def labels(self) -> dict[str, Labels]:
        """The labels of the namespaces that may be read."""
        if self._namespace:
            labels = self._reader.namespace_labels(self._namespace)
            return {} if labels is None else {self._namespace: labels}
        read_all = partial(self._api.list, "/api/v1/namespaces", decode_metadata, accept=METADATA_LIST)
        listed = self._attempt("list namespaces", read_all)
        return {item.name: item.sorted_labels for item in listed.items} if listed else {}

    @cached_property
    def limits(self) -> dict[str, NamespaceLimits] | None:
        """What LimitRanges say, by namespace; None where they may not be read."""
        listed = self._reader.limit_ranges(self._namespace)
        return None if listed is None else limits_by_namespace(listed)

    @cached_property
    def claims(self) -> Mapping[ClaimName, RequestedDevices | None]:
        return read_claims(self._api)

    @cached_property
    def quotas(self) -> dict[str, QuotaLedger] | None:
        """What the GPUQuotas of the cluster grant, by namespace; None where they may not be read."""
        read = partial(self._api.list, QUOTAS.path(self._namespace), decode_quota)
        try:
            listed = self._attempt(f"list {PLURAL}.{GROUP}", read)
        except errors.NotFound:  # their kind is not installed
            return {}
        if listed is None:
            return None
        return ledgers_without_usage({item.namespace: item.spec for item in listed.items if item.spec})

    def evaluator(self, configuration: Configuration, now: datetime) -> Evaluator:
        labels = self.labels if configuration.policies.has_selectors else {}
        facts, index = self._reader.nodes(configuration)
        limits = self.limits
        return Evaluator(
            cache=DecisionCache(configuration),
            now=now,
            facts=Facts(
                labels_of=lambda namespace: labels.get(namespace, ()),
                nodes=lambda: facts,
                named_nodes=lambda: index,
                claims=self.claims.get,
                find_object=cache(self._referred),
                limits_of=lambda namespace: None if limits is None else limits.get(namespace, NO_LIMITS),
            ),
            quota_of=self._quota_of(configuration),
        )

    def _referred(self, name: ObjectReference) -> Any:
        return read_object(self._api, name, monotonic() + REVIEW_READ_SECONDS)

    def _quota_of(self, configuration: Configuration) -> Callable[[str], NamespaceQuota | None]:
        if self.quotas is None:
            return lambda _namespace: None
        quotas = ledgers_without_usage(configuration.quotas) | self.quotas
        return lambda namespace: ReadOnlyQuota(quotas.get(namespace), configuration, is_unused=True)


class Scan:
    """One scan of a cluster, or of one namespace. Reading raises `errors.ApiError` for everything but a lack of rights."""

    def __init__(
        self,
        api: ApiClient,
        *,
        now: datetime,
        config: Path | None = None,
        namespace: str = "",
        is_enforced: bool = False,
        progress: Callable[[str], object] = lambda _reading: None,
    ) -> None:
        """Read the configuration. Raises ConfigurationError where its documents are not valid.

        config: a directory of documents in place of the cluster's. is_enforced: whether rules in mode warn or audit count as
        enforced. progress: is called with the kind that is being read.
        """
        self._api, self._now, self._namespace, self._progress = api, now, namespace, progress
        self._config, self._is_enforced = config, is_enforced
        self._reader = TolerantReader(api)
        self._configuration = self._reader.configuration(config)
        slices = self._reader.slices()
        self._device_kinds: AllocatedDeviceTypes | None = None
        if slices is not None and slices.slices:
            self._device_kinds = AllocatedDeviceTypes(slices, self._configuration.resource_mapping)
            devices = ClusterDevices((), self._device_kinds.device_types)
            self._configuration = self._reader.configuration(config, devices)
        self._facts = ClusterFacts(self._reader, namespace)

    def report(self, *, verify_proposal: bool) -> ScanReport:
        """Scan; `verify_proposal` evaluates again under the proposed configuration, and relaxes it until all pods pass."""
        facts, configuration = self._facts, self._configuration
        tally = self._evaluated(enforced(configuration) if self._is_enforced else configuration)
        nodes = self._reader.gpu_nodes(configuration, reads_pods=False) or ()
        teams = read_teams(self._reader) or ()
        labels = None if self._namespace or teams else facts.labels
        team_limits = self._team_limits(teams, tally.namespaces)
        draft = Draft(configuration, tally, nodes, facts.quotas or {}, labels, team_limits)
        denied = self._verify(draft) if verify_proposal else None
        self._progress("nodes")
        uncounted, node_remarks = self._remarks_of_doctor()
        return ScanReport(
            scanned_at=timestamp(self._now),
            source=self._source(),
            is_enforced=self._is_enforced,
            omitted=tuple(self._reader.omitted),
            pods=tally.pods,
            gpu_pods=tally.gpu_pods,
            workloads=tally.workloads,
            pod_effects=effect_counts(tally.pod_effects),
            workload_effects=effect_counts(tally.workload_effects),
            rules={rule: effect_counts(effects) for rule, effects in sorted(tally.rules.items())},
            problems=tuple(tally.problems()),
            changes=tuple(tally.changes()),
            left_out=tally.left_out,
            namespaces=tuple(tally.uses()),
            classes=capacity_by_class(nodes),
            unread=(*_unread_remarks(tally), *uncounted),
            nodes=node_remarks,
            limit_ranges=tuple(self._limit_ranges()),
            proposal=draft.proposal(denied),
        )

    def _team_limits(self, records: Sequence[TeamRecord], namespaces: Iterable[str]) -> dict[str, Fraction]:
        """Return the GPUs that a ClusterGPUQuota lets each of its namespaces have."""
        teams, by_name = Teams(record.match for record in records), {each.name: each for each in records}
        labels = self._facts.labels if teams.has_selectors else {}
        limits: dict[str, Fraction] = {}
        for namespace in namespaces:
            match = teams.of(namespace, dict(labels.get(namespace, ())))
            ledger = namespace_ledger_from_status(by_name[match.name], namespace) if match else None
            if ledger and ledger.team_state and GPUS in ledger.team_state.reachable:
                limits[namespace] = ledger.team_state.reachable[GPUS]
        return limits

    def _source(self) -> str:
        if self._config is not None:
            return str(self._config)
        return "the cluster's documents" if self._configuration.documents else "the built-in defaults"

    @cached_property
    def _served_kinds(self) -> ServedKinds:
        return ServedKinds(self._api)

    def _verify(self, draft: Draft) -> int:
        """Relax the proposal; return how many pods it would still deny."""
        denied = 0
        for _ in range(MAX_EVALUATIONS):
            tally = self._evaluated(draft.configuration())
            denied = tally.pod_effects[Effect.DENIED]
            if not denied or not draft.relax(tally):
                break
        return denied

    def _evaluated(self, configuration: Configuration) -> Tally:
        """Evaluate everything, workloads first."""
        tally, evaluator = Tally(), self._facts.evaluator(configuration, self._now)
        serving = self._evaluate_workloads(tally, evaluator)
        self._evaluate_pdbs(tally, evaluator, serving)
        pods_with_claims = self._evaluate_pods(tally, evaluator)
        self._count_claims(tally, configuration, pods_with_claims)
        return tally

    def _evaluate_workloads(
        self, tally: Tally, evaluator: Evaluator
    ) -> Mapping[str, Sequence[ServingWorkload]]:
        """Return the workloads of SERVING_KINDS by namespace."""
        kinds = evaluator.configuration.workload_kinds
        serving = defaultdict[str, list[ServingWorkload]](list)
        for (group, kind), workload_kind in kinds.items():
            served = self._served_kinds.of_reference(f"{group}/v1" if group else "v1", kind)
            if served is None or workload_kind.has_no_gpus:
                continue
            self._progress(served.plural)

            def read(
                raw: msgspec.Raw,
                group: str = group,
                kind: str = kind,
                ends: bool = workload_kind.runs_to_completion or not workload_kind.replaces_pods,
            ) -> None:
                metadata = decode_owned(raw).metadata
                owner, namespace = metadata.controller, metadata.namespace or ""
                if owner is not None and (owner.api_version.rpartition("/")[0], owner.kind) in kinds:
                    # Its owner is evaluated instead.
                    tally.add_owner(namespace, f"{kind}/{metadata.name}", f"{owner.kind}/{owner.name}")
                elif not (ends and has_ended(raw)):
                    tally.add_workload(evaluate(group, kind, namespace, raw, evaluator))
                    if (group, kind) in SERVING_KINDS:
                        with suppress(msgspec.ValidationError):  # unreadable, as the tally says
                            serving[namespace].append(serving_workload(kinds, (group, kind), namespace, raw))

            self._list(f"{served.plural}.{group}".rstrip("."), served.resource.path(self._namespace), read)
        return serving

    def _evaluate_pdbs(
        self, tally: Tally, evaluator: Evaluator, serving: Mapping[str, Sequence[ServingWorkload]]
    ) -> None:
        """Add findings about PodDisruptionBudgets beside serving workloads. Their status says whether they select no pod."""
        served = self._served_kinds.of_reference("policy/v1", PDB[1])
        if served is None or not serving:
            return
        mapping = evaluator.configuration.resource_mapping

        def read(raw: msgspec.Raw) -> None:
            with suppress(msgspec.ValidationError):
                stored = _decode_stored_pdb(raw)
                namespace, name = stored.metadata.namespace, stored.metadata.name
                is_current = stored.status.observed_generation == stored.metadata.generation
                no_other_pods = is_current and stored.status.expected_pods == 0
                findings = check_pdb(
                    stored.spec, serving.get(namespace, ()), mapping, no_other_pods=no_other_pods
                )
                decision = Decision.of_findings(evaluator.policy(namespace), findings, Mode.WARN)
                tally.add_findings(*PDB, namespace, name, decision.violations)

        self._list(f"{served.plural}.policy", served.resource.path(self._namespace), read)

    def _evaluate_pods(self, tally: Tally, evaluator: Evaluator) -> PodsWithClaims:
        """Return the pods that have claims of their own, with their demand: their claims are counted later."""
        configuration = evaluator.configuration
        reader = RecordReader(configuration)
        pods_with_claims: dict[str, tuple[CountedPod, Amounts]] = {}

        def read(raw: msgspec.Raw) -> None:
            record = reader.read_pod(raw)
            used: Amounts = {}
            if record is not None and record.holds_quota:
                nodes = evaluator.facts.named_nodes()
                # A node that cannot be read could be of any class, and its pod would count for each.
                to_count = replace(record, node_name="") if nodes is NO_NODES else record
                used = reader.demand_of_pod(to_count, UnclassifiedPods.TOTAL_ONLY, nodes)
                if record.extended_claim or record.generated_claims:
                    pods_with_claims[record.uid] = record, used
            evaluation = evaluate("", "Pod", decode_metadata(raw).namespace, raw, evaluator)
            requests_gpus = _requests_gpus(evaluation, evaluator)
            tally.add_pod(evaluation, used, requests_gpus=requests_gpus)
            if requests_gpus and (controlled_by := _controlled_by(evaluation, configuration.workload_kinds)):
                tally.unknown_kinds[controlled_by] += 1
            if tally.pods % 500 == 0:
                self._progress(f"pods: {tally.pods}")

        self._progress("pods")
        self._list("pods", PODS.path(self._namespace), read, NOT_ENDED)
        return pods_with_claims

    def _count_claims(
        self, tally: Tally, configuration: Configuration, pods_with_claims: PodsWithClaims
    ) -> None:
        resource = served_resource(self._api, "resourceclaims")
        if resource is not None:
            reader = RecordReader(configuration)

            def read(raw: msgspec.Raw) -> None:
                record = reader.read_claim(raw)
                used = listed_demand(
                    reader, record, UnclassifiedPods.TOTAL_ONLY, pods_with_claims, self._device_kinds
                )
                tally.add_use(record.namespace, used)

            self._list("resourceclaims.resource.k8s.io", resource.path(self._namespace), read)

    def _list(
        self, what: str, path: str, read: Callable[[msgspec.Raw], None], query: dict[str, str] | None = None
    ) -> None:
        where = f" -n {self._namespace}" if self._namespace else ""
        self._reader.attempt(f"list {what}{where}", lambda: self._api.list(path, read, query=query))

    def _remarks_of_doctor(self) -> tuple[tuple[Remark, ...], tuple[Remark, ...]]:
        """Return doctor's findings about uncounted resources, and about nodes; no findings where nodes may not be listed."""
        cluster = InstalledCluster(self._api, InstallationNames(), config=self._config, now=self._now)
        findings = [finding for check in node_checks.CHECKS for finding in run_check(check, cluster).findings]
        uncounted = {"unmapped-resource", "unmapped-device-class"}
        resources = tuple(_remark(finding) for finding in findings if finding.id in uncounted)
        return resources, tuple(
            _remark(finding) for finding in findings if finding.object.startswith(("Node ", "Nodes "))
        )

    def _limit_ranges(self) -> Iterator[Remark]:
        """Yield the LimitRanges that give GPUs."""
        for subject, problem in limit_ranges_giving_gpus(
            self._facts.limits or {}, self._configuration.resource_mapping
        ):
            message = f"{problem.path}: {problem.message}"
            yield Remark(subject=subject, message=message, remedy=problem.remedy)


def enforced(configuration: Configuration) -> Configuration:
    """Return the configuration with every rule enforced unless it is disabled, and no policy paused."""
    policies = configuration.policies
    # The namespaces that no policy matches get one, too; it comes after all others.
    spec = replace(BUILT_IN_POLICY.spec, priority=LOWEST_PRIORITY)
    for_others = Policy(name=BUILT_IN, version=BUILT_IN, spec=spec)
    enforced_policies = [_enforced(policy, policies) for policy in (*policies.policies, for_others)]
    return replace(configuration, policies=PolicySet(enforced_policies))


def _enforced(policy: Policy, policies: PolicySet) -> Policy:
    options = {rule.id: policies.bound(rule, policy).options for rule in RULES}
    rules = {
        rule: option if option.mode is Mode.DISABLED else replace(option, mode=Mode.ENFORCE)
        for rule, option in options.items()
    }
    return replace(policy, spec=replace(policy.spec, rules=rules, paused_until=None))


def _requests_gpus(evaluation: Evaluation, evaluator: Evaluator) -> bool:
    mapping = evaluator.configuration.resource_mapping
    pods = (pod.submitted for pod in evaluation.pods)
    seen = (
        without_other_claims(pod, evaluator.claims_of(evaluation.namespace, pod), mapping) for pod in pods
    )
    return any(map(mapping.pod_requests_gpus, seen))


def _controlled_by(evaluation: Evaluation, kinds: WorkloadKinds) -> tuple[str, str] | None:
    """Return group and kind of the pod's controller; None if the table has that kind, and for a static pod."""
    metadata = next((pod.submitted.metadata for pod in evaluation.pods), None) or Metadata()
    for owner in metadata.owner_references or ():
        made_by = owner.api_version.rpartition("/")[0], owner.kind
        if owner.controller and made_by not in kinds and made_by != ("", "Node"):
            return made_by
    return None


def _unread_remarks(tally: Tally) -> Iterator[Remark]:
    for (group, kind), pods in tally.unknown_kinds.most_common():
        yield Remark(
            subject=f"Kind {kind}.{group}" if group else f"Kind {kind}",
            message=f"makes {pods} of the GPU pods, and no rule reads its objects: mistakes in them show only in the pods",
            remedy="name the paths of its pod templates in workloadKinds of a GPUResourceMapping",
        )
    for name, why in tally.unreadable.items():
        yield Remark(subject=name, message=f"could not be read: {why}", remedy="")


def _remark(finding: DoctorFinding) -> Remark:
    return Remark(subject=finding.object, message=finding.message, remedy=finding.remedy)
