"""Pods whose creation or change was denied in the last 24 hours.

Events of their controllers, or ours, say so, which the API server keeps for an hour by default, or audit logs, which have all
denials.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import NamedTuple

import msgspec

from policies.quota.budget_findings import BUDGET_SPENT
from policies.quota.shortage import QUOTA_CAN_NEVER_FIT, QUOTA_EXCEEDED
from policies.registry import QUOTA_RULE, RULES
from webhook.cluster import errors
from webhook.cluster.api import METADATA, ApiClient, api_path
from webhook.cluster.events import FAILED_UPDATE
from webhook.cluster.informer import Resource
from webhook.cluster.objects import decode_owned
from webhook.tools.gpu_hours import AuditLine, Counts, LoggedFinding, audit_lines
from webhook.tools.status.summaries import AuditedPods, DeniedOwner

EVENTS = Resource("/api/v1", "events")
WINDOW = timedelta(hours=24)
DENIED = "denied"
FROM_LOGS = "audit logs"
FROM_EVENTS = "Events, which the API server keeps for an hour unless --event-ttl says otherwise"
_OUR_DOMAIN, DENIED_MARK = "gpu-admission.dev", " denied the request: "
"""How the API server words the denial of a webhook (`pkg/admission/plugin/webhook/errors`, v1.37):
`admission webhook "NAME" denied the request: MESSAGE`."""
_REASONS_BY_WORDS = {
    " can never fit: ": QUOTA_CAN_NEVER_FIT,
    "exceeded quota: ": QUOTA_EXCEEDED,
    "exceeded budget: ": BUDGET_SPENT,
}
"""Reasons of the quota by words of their sentences, the first that match; an Event has no reason code. Else the rule is shown."""


class _Object(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class _Series(msgspec.Struct, rename="camel"):
    count: int = 0
    last_observed_time: datetime | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    creation_timestamp: datetime | None = None


class ClusterEvent(msgspec.Struct, rename="camel", kw_only=True):
    """An Event, written by whichever of its two APIs."""

    metadata: _Metadata
    involved_object: _Object = msgspec.field(default_factory=_Object)
    type: str = ""
    reason: str = ""
    message: str = ""
    related: _Object | None = None
    count: int | None = None
    series: _Series | None = None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None

    @property
    def first(self) -> datetime | None:
        return self.first_timestamp or self.event_time or self.metadata.creation_timestamp

    @property
    def last(self) -> datetime | None:
        in_series = self.series and self.series.last_observed_time
        return in_series or self.last_timestamp or self.event_time or self.metadata.creation_timestamp

    @property
    def times(self) -> int:
        return max(self.count or 0, self.series.count if self.series else 0, 1)

    @property
    def owner(self) -> str:
        return f"{self.involved_object.kind}/{self.involved_object.name}"

    @property
    def denial(self) -> str:
        """The message of our denial, as the author of the pod reads it; empty if the Event is about something else."""
        before, _, message = self.message.partition(DENIED_MARK)
        return message if _OUR_DOMAIN in before else ""

    @property
    def denied_change(self) -> str:
        """Whose change of a pod was denied: `change by USER`; empty if a creation was denied, or nothing."""
        is_change = self.reason == FAILED_UPDATE and self.denial
        return self.message.partition(": admission webhook ")[0] if is_change else ""


_EVENT = msgspec.json.Decoder(ClusterEvent)


def read_events(
    api: ApiClient, namespace: str, keep: Callable[[ClusterEvent], bool] = lambda _event: True
) -> list[ClusterEvent]:
    """Return the warnings of a namespace, of all if it is "", that `keep` accepts. Raises `errors.ApiError`."""

    def read(raw: msgspec.Raw) -> ClusterEvent | None:
        try:
            event = _EVENT.decode(raw)
        except msgspec.ValidationError:  # anybody may write Events, with years that Python cannot represent
            return None
        return event if keep(event) else None

    return api.list(EVENTS.path(namespace), read, query={"fieldSelector": "type!=Normal"}).items


def denials_in_events(
    api: ApiClient,
    namespace: str,
    now: datetime,
    denial_of: Callable[[ClusterEvent], str] = lambda event: event.denial,
    made_by: Mapping[tuple[str, str], str] = {},
) -> tuple[DeniedOwner, ...]:
    """Return the denials in the namespace, in all if it is "", not of ReplicaSets that are gone. Raises `errors.ApiError`.

    denial_of: returns what an Event says of a denial, "" for other Events. made_by: the controllers of ReplicaSets by
      namespace and name; the controller of another ReplicaSet is read.
    """
    events = read_events(api, namespace, lambda event: bool(denial_of(event)))

    @cache
    def owner(namespace: str, kind: str, name: str) -> str:
        known = made_by.get((namespace, name))
        if kind == "ReplicaSet" and known is None:
            known = _deployment(api, namespace, name)
            if known is None:
                return ""
        return (known if kind == "ReplicaSet" else "") or f"{kind}/{name}"

    denied = []
    for event in events:
        about, text = event.involved_object, denial_of(event)
        if event.last is None or event.last < now - WINDOW:
            continue
        if event.denied_change and event.related is not None:  # the controller of the pod has an Event, too
            continue
        message = text.partition("\n")[0]
        name = owner(about.namespace, about.kind, about.name)
        if not name:
            continue
        denied.append(
            DeniedOwner(
                namespace=about.namespace,
                owner=name,
                count=event.times,
                first=event.first or event.last,
                last=event.last,
                message=message,
                reason=_reason(message),
                of_change=bool(event.denied_change),
            )
        )
    return _by_owner(denied)


def _reason(message: str) -> str:
    """Return the reason of a denial by the quota, else the rule, which a message of ours names at the end of its finding."""
    rule = next((rule.id for rule in RULES if f"[{rule.id}]" in message), "")
    named = (
        reason.name
        for words, reason in _REASONS_BY_WORDS.items()
        if rule == QUOTA_RULE.id and words in message
    )
    return next(named, rule)


def _deployment(api: ApiClient, namespace: str, replicaset: str) -> str | None:
    """Return what made the ReplicaSet, whose Events name no Deployment; "" if nothing did, or that cannot be read.

    None if it is gone: its denials are over.
    """
    try:
        path = api_path("/apis/apps/v1", "namespaces", namespace, "replicasets", replicaset)
        replica_set = api.get(path, accept=METADATA)
    except errors.Forbidden:
        return ""
    except errors.NotFound:
        return None
    return decode_owned(replica_set).metadata.controlled_by


class LoggedPods(NamedTuple):
    """The pods of audit logs. `audited` is None if the logs have none."""

    denied: tuple[DeniedOwner, ...]
    audited: AuditedPods | None


def pods_in_logs(
    files: Iterable[str], namespaces: Collection[str], now: datetime, counts: Counts
) -> LoggedPods:
    """Return what audit logs say of the pods of these namespaces, of all if `namespaces` is empty. Raises OSError."""
    denied: list[DeniedOwner] = []
    moments: list[datetime] = []
    would_deny: list[set[str]] = []
    # A pod that is admitted has a line of both phases, one that is denied only that of the phase which denied it.
    wanted = (b'"phase":"validate"', b'"verdict":"denied"')
    for line in audit_lines(files, counts, lambda raw: any(part in raw for part in wanted)):
        at = _moment(line.time)
        if (
            line.kind != "Pod"
            or line.dry_run
            or at is None
            or (namespaces and line.namespace not in namespaces)
        ):
            continue
        if line.verdict == DENIED and at >= now - WINDOW:
            denied.append(_denied_owner(line, at))
        if line.operation == "CREATE":
            moments.append(at)
            would_deny.append({finding.rule for finding in line.findings if finding.would_deny})
    by_rule = Counter(rule for rules in would_deny for rule in sorted(rules))
    audited = None
    if moments:
        audited = AuditedPods(
            since=min(moments),
            until=max(moments),
            pods=len(moments),
            denied=sum(map(bool, would_deny)),
            by_rule=dict(by_rule.most_common()),
        )
    return LoggedPods(_by_owner(denied), audited)


def _denied_owner(line: AuditLine, at: datetime) -> DeniedOwner:
    return DeniedOwner(
        namespace=line.namespace,
        owner=line.owner or f"Pod/{line.name}",
        count=1,
        first=at,
        last=at,
        message=_first_finding_text(line),
        reason=", ".join(dict.fromkeys(denial.reason or denial.rule for denial in _denials(line))),
        of_change=line.operation == "UPDATE",
    )


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def _denials(line: AuditLine) -> list[LoggedFinding]:
    return [finding for finding in line.findings if finding.outcome == DENIED]


def _first_finding_text(line: AuditLine) -> str:
    """Return the first finding, what to write before why; a request that could not be read has none."""
    finding = next(iter(_denials(line)), LoggedFinding())
    return "; ".join(filter(None, (finding.remedy, finding.message))) or "denied by the webhook"


def _by_owner(denied: Iterable[DeniedOwner]) -> tuple[DeniedOwner, ...]:
    """Return one for each (namespace, owner), with the message of the last one."""
    owners: dict[tuple[str, str], DeniedOwner] = {}
    for one in denied:
        before = owners.setdefault((one.namespace, one.owner), one)
        if before is not one:
            owners[one.namespace, one.owner] = msgspec.structs.replace(
                max(before, one, key=lambda owner: owner.last),
                count=before.count + one.count,
                first=min(before.first, one.first),
            )
    return tuple(sorted(owners.values(), key=lambda owner: owner.order))
