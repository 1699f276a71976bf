"""What `gpu-admission status` says of GPUs that do no work."""

from datetime import UTC, datetime

import msgspec
import pytest

from tests.cases import cases
from tests.webhook.commands.test_status import amount, printed, quotas, status
from webhook.quota.documents import IdleGPUs, IdleHolder
from webhook.tools.status.report import QuotaHolder

IDLE = IdleGPUs(
    gpus=amount("3.5"),
    holders=(
        IdleHolder("Notebook/ana", amount("2"), "2026-11-22T02:00:00Z"),
        IdleHolder("Job/old", amount("1"), "2026-11-19T00:00:00Z"),
        IdleHolder("Job/slice", amount("1/2"), "2026-11-22T07:00:00Z"),
    ),
)
NOT_MEASURED = IdleGPUs(measured="https://prometheus does not answer")


def test_idle_holders_are_named_with_what_they_lost(capsys: pytest.CaptureFixture[str]) -> None:
    ana = QuotaHolder(
        name="Notebook/ana", held={"gpus": amount("2")}, idle_since=datetime(2026, 11, 22, 2, 0, tzinfo=UTC)
    )
    busy, other = quotas(2)
    idle = msgspec.structs.replace(busy, idle=IDLE, holders=(ana,))
    lines = printed(status(quotas=(idle, other)), capsys).splitlines()
    assert "    held by Notebook/ana 2 (idle since 02:00 UTC)" in lines
    start = lines.index("3.5 GPUs of quotas idle, 92 GPU-hours lost")
    assert lines[start + 2 : start + 6] == [
        f"  {idle.namespace} Job/old, 1 GPU idle since 2026-11-19 00:00 UTC, 80 GPU-hours lost",
        f"  {idle.namespace} Notebook/ana, 2 GPUs idle since 02:00 UTC, 12 GPU-hours lost",
        f"  {idle.namespace} Job/slice, 0.5 GPUs idle since 07:00 UTC, 0.5 GPU-hours lost",
        "",
    ]


@cases(
    ("idle", "want"),
    not_measured=(NOT_MEASURED, "  not measured: https://prometheus does not answer"),
    measured_and_nobody_is_idle=(IdleGPUs(gpus=amount("0")), None),
    not_to_be_measured=(None, None),
)
def test_nobody_is_called_idle_whose_use_is_not_measured(
    idle: IdleGPUs | None, want: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    (quota,) = quotas(1)
    lines = printed(status(quotas=(msgspec.structs.replace(quota, idle=idle),)), capsys).splitlines()
    said = [line for line in lines if "idle" in line or "measured" in line]
    assert said == (["idle GPUs", want] if want else [])
