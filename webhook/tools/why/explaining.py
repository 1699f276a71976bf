"""Explains why an object's pods are denied, or do not run: reads the object, its pods, Events, the quota and the nodes."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from policies.finding import PLATFORM_TEAM, Edit, Edits, Finding, as_plain_data
from policies.gpus.cards import is_limit
from policies.placement.class_advice import ANNOTATION_PATH, ask_for_nodes
from policies.placement.class_options import class_matches, matches_new_node
from policies.placement.class_selection import edits_to_unpin
from policies.pods.annotations import GPU_CLASS
from policies.pods.field_paths import annotation_path, path_parts, with_edits
from policies.pods.pod import Pod, decode_pod
from policies.quota.amounts import Amounts, total
from policies.quota.budget_findings import BUDGET_SPENT
from policies.quota.quota_request import quota_request_for_pod
from policies.quota.shortage import QUOTA_CAN_NEVER_FIT, QUOTA_EXCEEDED
from policies.quota.waiting import has_quota_gate, without_gate
from policies.rules import gpu_class
from webhook.cluster.api import ApiClient
from webhook.cluster.capacity import GPUNode
from webhook.cluster.objects import decode_metadata
from webhook.evaluation.creation import evaluate_creation
from webhook.evaluation.decision import Outcome
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.kinds import POD
from webhook.evaluation.tried_choices import edited_pod
from webhook.evaluation.workloads import EvaluatedPod
from webhook.quota.counted_records import PODS
from webhook.quota.documents import PlaceInLine, TeamView
from webhook.tools.status.kueue import read_kueue
from webhook.tools.status.listed_capacity import gpu_amounts
from webhook.tools.status.quotas import quota_status
from webhook.tools.stored_objects import Evaluation
from webhook.tools.stored_pod import StoredPod
from webhook.tools.why.case import (
    MAX_PODS,
    Case,
    group_progress,
    read_author,
    read_family,
    wanted_pods,
    why_no_pods,
)
from webhook.tools.why.devices import device_causes
from webhook.tools.why.discovery import ServedKind
from webhook.tools.why.explanation import (
    Cause,
    Explanation,
    NodeFit,
    PodState,
    QuotaFit,
    remedies_of,
    rule_outcomes,
)
from webhook.tools.why.fit import classes_for, idle_owner, node_fits, other_amounts, quota_fit, requested_gpus
from webhook.tools.why.line import family_uids, gang_keys, kueue_cause, line_cause, place_in_line
from webhook.tools.why.reasons import FAILED_CREATE, FINDS_NO_NODE, answer_of, observed_events
from webhook.tools.why.situation import Situation
from webhook.tools.why.tried_remedies import (
    FitsAfter,
    RemainingSteps,
    TryEdits,
    cause_that_helps,
    nearest,
    with_wait,
)
from webhook.tools.why.unschedulable import UnschedulablePod, insufficient

OUTLOOK_REASONS = frozenset({QUOTA_EXCEEDED, QUOTA_CAN_NEVER_FIT})


def explain(
    api: ApiClient, kind: str, name: str, namespace: str, now: datetime, *, config: Path | None = None
) -> Explanation:
    """Explain the object now; `kind` is any name of it that kubectl takes.

    Raises UnknownKindError, ConfigurationError, and `errors.ApiError`: NotFound where there is no such object.
    """
    case = _ExplainedCase(api, kind, name, namespace, now, config)
    is_pod = (case.served.group, case.served.kind) == POD
    return case.of_pod() if is_pod else case.of_workload()


class _ExplainedCase(Case):
    def of_pod(self) -> Explanation:
        stored, pod = msgspec.json.decode(self.document, type=StoredPod), decode_pod(self.document)
        events = [event for event in self.events if event.involved_object.uid == stored.metadata.uid]
        group = group_progress(self.reader, self.namespace, stored)
        situation = Situation(data=None, now=self.now, pods=[stored], events=events, wanted=1, group=group)
        return self._explain(situation, pod, is_stored=True)

    def of_workload(self) -> Explanation:
        document = msgspec.Raw(self.document)
        data, places = self.places(document)
        creations = (event for event in self.events if not event.denied_change)
        denied = [event for event in creations if event.denial or event.reason == FAILED_CREATE]
        uid = decode_metadata(document).uid
        pods, owners = read_family(self.reader, self.kinds, self.namespace, uid, denied)
        uids = {*owners, *(pod.metadata.uid for pod in pods)}
        events = [event for event in self.events if event.involved_object.uid in uids]
        wanted = wanted_pods(data, [place.count.running for place, _ in places])
        kind = self.configuration.workload_kinds.get((self.served.group, self.served.kind))
        situation = Situation(
            data=data,
            now=self.now,
            pods=pods,
            events=events,
            wanted=wanted,
            why_no_pods=why_no_pods(data, kind, self.now),
            held=self.requested_by_terminating([pod for pod in pods if pod.is_terminating]),
        )
        stuck = situation.stuck
        if stuck is None or situation.is_missing_pods:
            return self._explain(situation, self.template(places), is_stored=False)
        path = PODS.path(self.namespace, stuck.metadata.name)
        return self._explain(situation, decode_pod(self.reader.api.get(path)), is_stored=True)

    def _quota_findings(self) -> Iterator[Finding]:
        """Yield what the quota says if it denies another pod now.

        That is the warning that the author read at apply, if it has a remedy. Otherwise only waiting or another class helps,
        and it is the denial of the pod.
        """
        author = read_author(self.reader, self.kinds, self.namespace, self.served, self.document)
        evaluation = self._evaluate_repaired(*author)
        if not evaluation.pods:  # of a kind that is not known to make any
            evaluation = self.evaluate_as_created(self.served, self.document)
        denied = next(filter(None, map(self._denied_by_quota, evaluation.pods)), None)
        if denied is None:
            return
        if denied.reason is BUDGET_SPENT:
            yield denied
            return
        outlooks = (
            each.finding for each in evaluation.workload_findings if each.finding.reason in OUTLOOK_REASONS
        )
        has_nodes = self.nodes is not None  # else a class may be named that no node has
        names_class = has_nodes and any(edit.path.endswith(annotation_path(GPU_CLASS)) for edit in denied.fix)
        helpful = (outlook for outlook in outlooks if outlook.advice or outlook.ask_contact)
        yield denied if names_class else next(helpful, denied)

    def _evaluate_repaired(self, served: ServedKind, document: bytes) -> Evaluation:
        """Evaluate an object after the first way of each denial: the quota counts what its author requests then."""
        evaluation = self.evaluate_as_created(served, document)
        denied = (finding.finding for finding in evaluation.findings() if finding.outcome is Outcome.DENIED)
        first = dict.fromkeys(
            edit for finding in denied for way in remedies_of(finding)[:1] for edit in way.edits
        )
        if not first:
            return evaluation
        edits = [(path_parts(edit.path), as_plain_data(edit.value)) for edit in first]
        return self.evaluate_as_created(
            served, msgspec.json.encode(with_edits(msgspec.json.decode(document), edits))
        )

    def _denied_by_quota(self, evaluated: EvaluatedPod) -> Finding | None:
        request = quota_request_for_pod("why", evaluated.admitted, None, self.configuration, self.index)
        request = replace(request, controlled_by=f"{self.served.kind}/{self.name}")
        decision = self.evaluator.demand(evaluated.policy, request)
        denials = (one.finding for one in decision.violations if one.outcome is Outcome.DENIED)
        # Of a pod that a rule denies, demand may be invalid for the same reason.
        certain = (one for one in denials if not evaluated.is_denied or one.reason in OUTLOOK_REASONS)
        place = evaluated.place
        located = (
            replace(one.located(place.path_in_object, place.path_of_edit), path=one.path) for one in certain
        )
        return next(located, None)

    def _explain(self, situation: Situation, pod: Pod, *, is_stored: bool) -> Explanation:
        """Explain a situation by one of its pods, which is stored or would be."""
        self.unscheduled = situation.stuck.unscheduled if situation.stuck else ""
        configuration, nodes, evaluation = self.configuration, self.nodes or (), self.evaluation
        requested = requested_gpus(pod, configuration.resource_mapping)
        classes = classes_for(pod, self.index, configuration)
        rule_denials: tuple[Finding, ...] | None = None
        try_edits = (
            partial(self._try_edits, self._only_pod) if self._only_pod and self.nodes is not None else None
        )
        fits: tuple[NodeFit, ...] | None = None
        no_node_causes: tuple[Cause, ...] = ()
        is_on_unknown_node = bool(pod.spec.node_name and self.reader.nodes_from)
        if self.nodes is not None and requested and not is_on_unknown_node:
            fits = self._node_fits(pod)
        if evaluation is not None:
            denied = (finding for finding in evaluation.findings() if finding.outcome is Outcome.DENIED)
            rule_denials = tuple(denial.finding for denial in denied)
            warned = (each.finding for each in evaluation.findings() if each.outcome is Outcome.WARNED)
            candidates = (finding for finding in warned if finding.reason in FINDS_NO_NODE)
            ordered = sorted(candidates, key=lambda finding: not finding.reason.hides_others)
            no_node_causes = tuple(cause_that_helps(finding, try_edits) for finding in ordered)
            fits = nearest(fits, try_edits) if fits and try_edits else fits
        is_held, stuck = is_stored and not has_quota_gate(pod), situation.stuck
        quota, status = None, None
        if self.quota is not None:
            status = quota_status(self.quota, None, is_stale=self.until is not None)
            ungated = without_gate(pod)
            quota = quota_fit(
                ungated, self.quota, status, self.index, configuration, self.now, is_held=is_held
            )
        elif self.ledger is not None:
            share = TeamView.of(self.ledger)
            quota = QuotaFit(is_held=is_held, state=None, rows=(), team=share)
        needed = {row.key: row.requested for row in quota.rows} if quota else {}
        contact = self.policy.contact if self.policy else PLATFORM_TEAM
        place, line = self._line_facts(situation, pod, needed, contact)
        uids = family_uids(self.document, situation.pods)
        kueue = read_kueue(self.reader, self.namespace, uids, configuration.resource_mapping)
        misspelt = filter(configuration.resource_mapping.suggested_name, insufficient(self.unscheduled))
        named = frozenset((*requested, *misspelt))
        situation = replace(
            situation,
            line=line,
            kueue=kueue_cause(kueue, contact) if kueue else None,
            rule_denials=rule_denials,
            no_node_causes=no_node_causes,
            devices=tuple(device_causes(self.reader, configuration, stuck, self.now)) if stuck else (),
            sees_quota=self.ledger is not None,
            quota_denials=() if is_stored else tuple(self._quota_findings()),
            classes=classes,
            nodes=fits,
            other_classes=self._other_usable_classes(nodes, classes, try_edits) if fits == () else {},
            node_source=self._node_source(pod, classes),
            new_nodes=ask_for_nodes(pod, classes, self._class_options.label_key, configuration.classes),
            unscheduled=UnschedulablePod(self.unscheduled, pod, named, contact, self._path_of),
            contact=contact,
        )
        answer, summary, reasons = answer_of(situation)
        holders = {pod.holder for pod in situation.pods}
        pods = sorted(situation.pods, key=lambda pod: (pod.is_running, pod.has_ended, pod.metadata.name))
        return Explanation(
            kind=self.served.kind,
            name=self.name,
            namespace=self.namespace,
            at=self.now,
            answer=answer,
            summary=summary,
            reasons=reasons,
            policy=self.policy.name if self.policy else "",
            verdicts=tuple(rule_outcomes(evaluation)),
            requested=requested,
            classes=classes,
            quota=quota,
            line=place,
            kueue=kueue,
            idle=idle_owner(status, holders),
            budget=status.budget if status else None,
            nodes=fits,
            pods=tuple(map(PodState.of, pods[:MAX_PODS])),
            pods_total=len(situation.pods),
            pods_wanted=situation.wanted,
            events=tuple(observed_events(situation.events)),
            figures_until=self.until,
            omitted=tuple(self.reader.omitted),
            nodes_from=self.reader.nodes_from,
        )

    def _node_fits(self, pod: Pod) -> tuple[NodeFit, ...]:
        """Return how the nodes of its classes fit a pod, as it was admitted."""
        classes = {*classes_for(pod, self.index, self.configuration)}
        nodes = [node for node in self.nodes or () if not classes or {*node.classes} & classes]
        pools = self.node_facts.pools if self.node_facts else ()
        startup_taints = [taint for pool in pools for taint in pool.startup_taints]
        scarce, amounts = (
            insufficient(self.unscheduled),
            gpu_amounts(pod, self.configuration.resource_mapping),
        )
        gpus = {each.name: amount for each, amount in amounts.items() if amount and not is_limit(each)}
        fits = node_fits(pod, nodes, gpus, startup_taints, other_amounts(pod, scarce))
        return tuple(replace(fit, way=fit.way.located(self._path_of)) for fit in fits)

    def _path_of(self, path: str) -> str:
        """Translate a field path in the pod to one in the object, if its edits can be tried."""
        return self._only_pod.place.path_in_object(path) if self._only_pod else path

    @cached_property
    def _only_pod(self) -> EvaluatedPod | None:
        """The pod of which edits can be tried. None if several templates request GPUs, or the object has only parts of a pod."""
        of_gpus = self.configuration.resource_mapping.pod_requests_gpus
        pods = [pod for pod in (self.evaluation.pods if self.evaluation else ()) if of_gpus(pod.admitted)]
        return pods[0] if len(pods) == 1 and () in pods[0].place.origins else None

    def _trial_evaluator(self, evaluated: EvaluatedPod) -> Evaluator:
        """Return the evaluator of edited pods: what the pod holds of the quota, it gives back."""
        quota = self.quota_after_release(
            released=total((*self.terminating_demands, self.demand(evaluated.admitted)))
        )
        return replace(self.evaluator, tries_choices=False, quota_of=lambda _namespace: quota)

    def _try_edits(self, evaluated: EvaluatedPod, edits: Edits) -> FitsAfter | None:
        """Return what the nodes say of the pod with edits of the object; None if it would be denied."""
        at = f"{evaluated.place.path}." if evaluated.place.path else ""
        pod_edits = tuple(Edit(edit.path.removeprefix(at), edit.value) for edit in edits)
        edited = edited_pod(msgspec.json.decode(msgspec.json.encode(evaluated.submitted)), pod_edits)
        if edited is None:
            return None
        edited = self.evaluator.with_limit_range_defaults(evaluated.policy, edited)
        by_daemonset = self.served.kind == "DaemonSet"
        decisions = evaluate_creation(
            self._trial_evaluator(evaluated), evaluated.policy, edited, by_daemonset=by_daemonset
        )
        if edits and not all(decision.allowed for decision in decisions):
            return None
        pod = decisions[0].pod or edited
        return FitsAfter(
            self._node_fits(pod), self._node_source(pod, classes_for(pod, self.index, self.configuration))
        )

    def _line_facts(
        self, situation: Situation, explained: Pod, needed: Amounts, contact: str
    ) -> tuple[PlaceInLine | None, tuple[str, Cause] | None]:
        """Return the best place in line of the object's pods that wait for quota, and why that pod waits."""
        waiting = {pod.metadata.name: pod for pod in situation.remaining_pods if pod.waits_in_line}
        if not waiting:
            return None, None
        status = self.quota.status.waiting if self.quota else None
        place = next((place for place in (status.next if status else ()) if place.name in waiting), None)
        name = place.name if place else next(iter(waiting))
        if place is None:  # it may be in a gang, which has the name of another pod
            author, document = read_author(
                self.reader, self.kinds, self.namespace, self.served, self.document
            )
            owners = {f"{self.served.kind}/{self.name}", f"{author.kind}/{decode_metadata(document).name}"}
            pod = explained if has_quota_gate(explained) else Pod(metadata=waiting[name].metadata)
            place = place_in_line(status, gang_keys(pod, owners))
        return place, (name, line_cause(waiting[name], self.quota, place, needed, contact, self.now))

    @cached_property
    def _class_options(self) -> gpu_class.GPUClassOptions:
        options = self.policy.options_of(gpu_class.RULE.id) if self.policy else None
        return options if isinstance(options, gpu_class.GPUClassOptions) else gpu_class.GPUClassOptions()

    def _node_source(self, pod: Pod, classes: Sequence[str]) -> str:
        """Return what can add a node for the pod, in words; "" if nothing is known to."""
        if self.node_facts is not None and (pool := self.node_facts.pool_for(pod)):
            return f"NodePool {pool}"
        globs = self._class_options.autoscaled_classes
        gpu_classes = self.configuration.classes.named(classes)
        is_added = any(class_matches(each, globs) and matches_new_node(pod, each) for each in gpu_classes)
        return "the autoscaler" if is_added else ""

    def _other_usable_classes(
        self, nodes: Sequence[GPUNode], classes: Sequence[str], try_edits: TryEdits | None
    ) -> dict[str, RemainingSteps]:
        """Return the other classes with nodes that take the pod, now or else once some have room, and how to name them."""
        only_pod, rests = self._only_pod, dict[str, RemainingSteps]()
        for name in (name for name in self._usable_classes(nodes) if name not in classes):
            pins = edits_to_unpin(only_pod.submitted, self.configuration.classes) if only_pod else ()
            path_of = only_pod.place.path_in_object if only_pod else str
            edits = tuple(
                Edit(path_of(edit.path), edit.value) for edit in (*pins, Edit(ANNOTATION_PATH, name))
            )
            if (rest := with_wait(edits, try_edits)) is not None:
                rests[name] = rest
        words = min((rest.words for rest in rests.values()), key=bool, default="")
        return {name: rest for name, rest in rests.items() if rest.words == words}

    def _usable_classes(self, nodes: Sequence[GPUNode]) -> Iterator[str]:
        """Yield the classes that the namespace may use and that have schedulable nodes."""
        allowed = self._class_options.allowed
        for name in dict.fromkeys(node.kind for node in nodes if node.takes_pods):
            known_class = self.configuration.classes.get(name)
            if known_class is not None and class_matches(known_class, allowed):
                yield name
