"""The pods that wait in line for quota: holds quota for those whose turn it is, and removes their scheduling gates.

`policies.quota.line` decides whose turn it is, and defines the words. This module finds the pods, their gangs and `spec.queue`,
and patches the pods.
"""

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import msgspec

from policies.pods.pod import decode_pod
from policies.quota.amounts import Amounts
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.line import Turn, next_to_start
from policies.quota.queue_entries import Gang, InLine, line_up
from policies.quota.team_line import TeamTurn, next_to_start_in_team
from policies.quota.waiting import GATE, STARVED_SECONDS, Standing, Waiter, creation_timestamp, has_quota_gate
from webhook.cluster import errors
from webhook.cluster.api import JSON_PATCH, ApiClient, api_path
from webhook.cluster.objects import CONTROLLER
from webhook.controller.gangs import Gangs
from webhook.controller.kueue_admissions import KueueAdmissions
from webhook.controller.replacements import Replacements, demand_reader, now_ms
from webhook.controller.waiting_reports import WaitingReports
from webhook.quota.counted_records import CountedPod

log = logging.getLogger("gpu_admission.controller")

GATE_THREADS = 16
GATE_SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds for which others pass a pod after the removal of its gate was denied. Each further denial doubles them."""
PUT_BACK_ADVICE = (
    f"run the controller as ServiceAccount {CONTROLLER} of the webhook's namespace, or remove the mutating webhook that adds "
    f"{GATE}: the API server called one that put the gate back"
)
"""`serve` puts it back for every other user, so that a second apply of a manifest does not remove it."""
CHANGED_HINT = "limit the mutating webhook that changes pods to their creation: one that exists must keep its fields; it wrote {}"
_UNCHANGEABLE = "pod updates may not change fields"
"""Begins the API server's list of changed fields (`ValidatePodUpdate` of Kubernetes). Webhooks may send such lists, too."""
_DIFFERENCE = re.compile("(?m)^[-+] .+")
"""A changed field in this list: of the stored pod (-), and of the new one (+)."""


class _PassedPod(msgspec.Struct, frozen=True):
    """A pod whose lift failed. Others pass it for `pause` seconds, up to `until` (monotonic), or until its version changes."""

    version: int
    pause: float
    until: float


class _WaitingPods(msgspec.Struct, frozen=True, eq=False):
    """The pods of a namespace that wait, their demands by uid, and what the line needs to know of them."""

    pods: Collection[CountedPod]
    demands: Mapping[str, Amounts]
    line: InLine


class WaitingLine:
    """Thread-safe, but only one thread at a time may take the turn of a namespace, or of the namespaces of a team."""

    def __init__(
        self,
        api: ApiClient,
        gangs: Gangs,
        replacements: Replacements,
        kueue: KueueAdmissions,
        reports: WaitingReports,
    ) -> None:
        self._api, self._gangs, self._kueue, self._reports = api, gangs, kueue, reports
        self.replacements, self.credited = replacements, replacements.credited
        self._usage_cache, self._line_spec_of = replacements.usage_cache, replacements.line_spec_of
        self._reconcile_later = replacements.reconcile_later
        self._pool = ThreadPoolExecutor(GATE_THREADS, thread_name_prefix="lift")
        self._lock = threading.Lock()
        self._lifting: set[str] = set()
        self._gates_removed: dict[str, dict[str, int]] = {}
        """By namespace: the uids and versions of the pods whose gates this process removed, until the watch shows it."""
        self._aside: dict[str, _PassedPod] = {}

    def take_turn(self, namespace: str, ledger: QuotaLedger) -> Turn | None:
        """Return the ledger with what is held for the next pods in line; None if nobody waits, or it cannot be decided.

        `ledger` was just counted. Only pods in that count take part: a count removes what is held for other pods.
        """
        waiting = self._waiting(namespace, ledger, in_team=False)
        if waiting is None:
            return None
        turn = next_to_start(ledger, waiting.line, _starved_before())
        self._reports.turn(namespace, waiting.pods, waiting.demands, turn)
        return turn

    def take_team_turn(self, team_ledgers: TeamLedgers, namespaces: Iterable[str]) -> TeamTurn:
        """Return the ledgers of a team with what is held for the next pods in line.

        `namespaces` are those that were just counted. Pods of others take no part.
        """
        waiting_by_namespace = {
            namespace: waiting
            for namespace in namespaces
            if (waiting := self._waiting(namespace, team_ledgers.ledgers[namespace], in_team=True))
            is not None
        }
        lines = {namespace: waiting.line for namespace, waiting in waiting_by_namespace.items()}
        team_turn = next_to_start_in_team(team_ledgers, lines, _starved_before())
        for namespace, turn in team_turn.turns.items():
            self._reports.turn(
                namespace, waiting_by_namespace[namespace].pods, waiting_by_namespace[namespace].demands, turn
            )
        return team_turn

    def _waiting(self, namespace: str, ledger: QuotaLedger, *, in_team: bool) -> "_WaitingPods | None":
        """Return the pods of a namespace that wait, and were counted; None if nobody does, or their demand cannot be read."""
        stored = self._usage_cache.waiting(namespace)
        pods = [pod for pod in stored if pod.version <= ledger.revisions.pods]
        is_needed = pods or ledger.marks or ledger.credits or ledger.reservations.lifts
        if ledger.class_catalogue is None or not is_needed:
            self._reports.nobody_waits(namespace)
            self._gangs.forget(namespace)
            self._kueue.forget(namespace)
            self._gates_removed.pop(namespace, None)
            return None
        demand_of = demand_reader(self._usage_cache, ledger)
        if demand_of is None:
            return None
        demands = {pod.uid: demand_of(pod) for pod in pods}
        owner_of = self.replacements.credited_owner(namespace, ledger)
        keepers = ledger.keepers if ledger.reservations.keeps else ()
        keeper_of = self.replacements.keeper_of(namespace, keepers)
        keys, gangs = self._known_gangs(namespace, pods)
        if any(not gang.size for gang in gangs.values()):
            self._reconcile_later(namespace, self._gangs.seconds_to_read(namespace))
        admitted = self._kueue.of(namespace, pods, ledger.reservations.lifts)
        if admitted.read_again_in is not None:
            self._reconcile_later(namespace, admitted.read_again_in)
        waiters = [
            Waiter(
                uid=pod.uid,
                demand=demands[pod.uid],
                since=pod.since,
                priority=pod.priority,
                gang=keys.get(pod.uid, ""),
                obstacle=self._standing_against(pod, gangs.get(keys.get(pod.uid, ""))),
                owner=owner_of(pod),
                keeper=keeper_of(pod),
                beyond=admitted.amounts if pod.uid in admitted.uids else {},
            )
            for pod in pods
        ]
        waiters += mark_waiters(ledger)
        spec = self._line_spec_of(namespace)
        line = line_up(ledger, waiters, gangs, spec, now_ms(), in_team=in_team)
        return _WaitingPods(pods, demands, line)

    def start(self, namespace: str, uids: Iterable[str], unless: Callable[[], object] = bool) -> None:
        """Remove the gates of these pods, in other threads; of no pod once `unless` returns something true."""
        pods = {pod.uid: pod for pod in self._usage_cache.waiting(namespace)}
        with self._lock:
            lifted = self._gates_removed.get(namespace, {})
            for uid in lifted.keys() - pods.keys():
                del lifted[uid]
        for uid in uids:
            pod = pods.get(uid)
            with self._lock:
                if pod is None or uid in self._lifting or lifted.get(uid) == pod.version:
                    continue
                self._lifting.add(uid)
            self._pool.submit(self._remove_gate, pod, unless)

    def start_all(self, namespace: str, unless: Callable[[], object]) -> None:
        self.start(namespace, [pod.uid for pod in self._usage_cache.waiting(namespace)], unless)

    def has_waiting(self, namespace: str) -> bool:
        return bool(self._usage_cache.waiting(namespace))

    def _known_gangs(
        self, namespace: str, waiting: Collection[CountedPod]
    ) -> tuple[dict[str, str], dict[str, Gang]]:
        """Return the key of the gang of each pod that waits, by uid, and these gangs by key, with all of their pods.

        A gang has started if one of its pods runs, or one of the same owner has succeeded. Then a pod that replaces a failed one
        waits alone. If all have failed or are being deleted, the gang waits again.
        """
        if not any(pod.gang_source for pod in waiting):
            return {}, {}
        keys: dict[str, str] = {}
        gangs: dict[str, Gang] = {}
        pods = self._usage_cache.own_counter.sums.pods(namespace)
        live = (pod.gang_source for pod in pods if not pod.is_terminal)
        known_gangs = self._gangs.find(namespace, filter(None, live))
        holders = {pod.holder for pod in waiting}
        for pod in pods:
            known = known_gangs.get(pod.gang_source) if pod.gang_source else None
            if known is not None:
                keys[pod.uid] = known.key
                gang = gangs.get(known.key, Gang(known.size))
                has_begun = (
                    not pod.is_deleted if pod.holds_quota else pod.has_succeeded and pod.holder in holders
                )
                gangs[known.key] = Gang(known.size, gang.running + int(has_begun))
        return keys, gangs

    def _standing_against(self, pod: CountedPod, gang: Gang | None) -> Standing | None:
        if gang is not None and not gang.size:
            return Standing.UNREAD_GANG
        if pod.waiting is not None and pod.waiting.has_other_gate:
            return Standing.OTHER_GATE
        aside, now = self._aside.get(pod.uid), monotonic()
        if aside is None or aside.version < pod.version or aside.until <= now:
            return None
        self._reconcile_later(pod.namespace, aside.until - now)  # another event may have come before
        return Standing.DENIED

    def _remove_gate(self, pod: CountedPod, unless: Callable[[], object] = bool) -> None:
        """Remove the gate of the pod, if it is the version that we know. The body of a thread of the pool."""
        try:
            if unless():
                return
            at = f"/spec/schedulingGates/{pod.waiting.gate if pod.waiting else 0}"
            patch = [
                {"op": "test", "path": "/metadata/uid", "value": pod.uid},
                {"op": "test", "path": "/metadata/resourceVersion", "value": str(pod.version)},
                {"op": "test", "path": f"{at}/name", "value": GATE},
                {"op": "remove", "path": at},
            ]
            path = api_path("/api/v1", "namespaces", pod.namespace, "pods", pod.name)
            body = msgspec.json.encode(patch)
            answer = self._api.patch(path, body, content_type=JSON_PATCH, timeout=GATE_SECONDS)
            stored = decode_pod(msgspec.Raw(answer))
            if has_quota_gate(stored):
                self._stand_aside(pod, PUT_BACK_ADVICE, stored.metadata.version if stored.metadata else 0)
                return
            with self._lock:
                self._aside.pop(pod.uid, None)
                self._gates_removed.setdefault(pod.namespace, {})[pod.uid] = pod.version
            self._reports.started(pod)
        except (errors.Conflict, errors.NotFound):
            # It has changed or gone, and the watch will show it.
            self._reconcile_later(pod.namespace, FIRST_PAUSE)
        except (errors.Invalid, errors.Forbidden) as error:
            # Try twice: the pod may have changed, or the API server just started and knows no roles. Admission denies it again.
            before = self._aside.get(pod.uid)
            if before is not None and before.version == pod.version:
                self._stand_aside(pod, _denial_advice(error), pod.version)
            else:
                with self._lock:
                    self._aside[pod.uid] = _PassedPod(pod.version, 0.0, monotonic())
                self._reconcile_later(pod.namespace, FIRST_PAUSE)
        except (errors.Unreachable, errors.Unavailable) as error:
            # Nobody denied it: the API server or a webhook does not answer. The pod keeps its place, and what is held for it.
            log.warning("%s/%s: its scheduling gate is not removed yet: %s", pod.namespace, pod.name, error)
            self._reports.delayed(pod)
            self._reconcile_later(pod.namespace, FIRST_PAUSE)
        except errors.ApiError as error:
            self._stand_aside(pod, str(error), pod.version)
        except Exception:  # a bug, which the pool would not log
            log.exception("%s/%s: its scheduling gate was not removed", pod.namespace, pod.name)
            self._reconcile_later(pod.namespace, LONGEST_PAUSE)
        finally:
            with self._lock:
                self._lifting.discard(pod.uid)

    def _stand_aside(self, pod: CountedPod, problem: str, version: int) -> None:
        """Let others pass the pod while it is stored in this version, for a pause."""
        before, now = self._aside.get(pod.uid), monotonic()
        pause = min(max(FIRST_PAUSE, 2 * before.pause), LONGEST_PAUSE) if before else FIRST_PAUSE
        with self._lock:
            stale = [uid for uid, paused in self._aside.items() if paused.until + LONGEST_PAUSE < now]
            for uid in stale:
                del self._aside[uid]
            self._aside[pod.uid] = _PassedPod(version, pause, now + pause)
        self._reports.denied(pod, problem)
        log.warning("%s/%s: its scheduling gate was not removed: %s", pod.namespace, pod.name, problem)
        self._reconcile_later(pod.namespace, 0.0)  # what is held for it goes to those behind it


def _starved_before() -> str:
    return creation_timestamp(now_ms() - int(STARVED_SECONDS * 1000))


def mark_waiters(ledger: QuotaLedger) -> Iterator[Waiter]:
    """Yield the marks of the ledger as pods that wait since then."""
    for key, mark in ledger.marks.items():
        yield Waiter(uid=key, demand=mark.demand, since=creation_timestamp(mark.since))


def _denial_advice(error: errors.ApiError) -> str:
    """Return what to do about a denial. A mutating webhook wrote the fields that differ: our patch only removes a gate."""
    differences = _DIFFERENCE.findall(str(error)) if _UNCHANGEABLE in str(error) else ()
    if not differences:
        return str(error)
    return CHANGED_HINT.format(" ".join(" ".join(each.split()).removesuffix(",") for each in differences))
