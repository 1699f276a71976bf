"""A cluster on the pages of the console."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

from webhook.cluster.api import ApiClient
from webhook.tools.console.app import Observer, create_app
from webhook.tools.console.history import History
from webhook.tools.pending_pods import PendingOwner
from webhook.tools.rightsize.workloads import SizeReport
from webhook.tools.status.report import ClusterStatus, InstallationStatus, quota_totals
from webhook.tools.status.summaries import DeniedOwner, QuotaHolder, QuotaRow, QuotaState, QuotaSummary

NOW = datetime.now(UTC)

HARD = Fraction(8)

FOUR = {"gpus": Fraction(4)}


def quota(number: int, **tweaks: Any) -> QuotaSummary:
    row = QuotaRow(key="gpus", hard=HARD, used=Fraction(number % 7))
    fields: dict[str, Any] = {"namespace": f"team-{number:03}", "state": QuotaState.READY, "rows": (row,)}
    return QuotaSummary(**{**fields, **tweaks})


def pending(namespace: str, owner: str, since: datetime = NOW, pods: int = 1) -> PendingOwner:
    return PendingOwner(
        namespace=namespace,
        owner=owner,
        pods=pods,
        held=FOUR,
        since=since,
        has_node=False,
        reason="no <node>",
    )


QUOTAS = (
    *(quota(number) for number in range(494)),
    quota(494, pending=(pending("team-494", "Job/a"),)),
    quota(495, state=QuotaState.STALE, message="no message about pods for 200 s"),
    quota(496, denied=3),
    quota(497, state=QuotaState.NOT_COUNTED),
    quota(498, holders=(QuotaHolder(name="Job/Llama-Pretrain", held={"gpus": Fraction(2)}),)),
    quota(499, rows=(QuotaRow(key="gpus", hard=HARD, used=Fraction(15, 2)),), denied=40),
)

DENIALS = tuple(
    DeniedOwner(namespace="a", owner=f"Job/{number}", count=1, first=NOW, last=NOW, message="no")
    for number in range(120)
)


def status(quotas: tuple[QuotaSummary, ...] = QUOTAS) -> ClusterStatus:
    return ClusterStatus(
        at=NOW,
        version="1",
        kubernetes="v1.37.2",
        configuration="abc",
        namespaces=(),
        installation=InstallationStatus(),
        policies=(),
        quotas=quotas,
        quotas_are_known=True,
        totals=quota_totals(quotas),
        figures_until=None,
        classes=(),
        denials=DENIALS,
        denials_from="Events",
    )


def shown(
    path: str,
    query: Mapping[str, str],
    found: ClusterStatus | None = None,
    sizes: Observer[SizeReport] | None = None,
    code: int = 200,
) -> str:
    observer: Any = SimpleNamespace(observation=lambda: (found or status(), ""))
    app = create_app(cast(ApiClient, None), observer, History(), cluster="test", home="home", sizes=sizes)
    answer = app.test_client().get(path, query_string=query, base_url="http://127.0.0.1")
    assert answer.status_code == code
    return answer.text


def names(text: str) -> list[str]:
    return re.findall(r'<a class="name" href="/quotas/([^"]+)"', text.partition('id="quotas"')[2])


def teams(*numbers: int) -> list[str]:
    return [f"team-{number:03}" for number in numbers]


BY_NAME = {"sort": "by namespace"}
