"""Workloads beside a quota, and what is said of them."""

from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from policies.finding import Edit
from policies.pods.workload import PodCount, PodNumber, Workload, WorkloadPods
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.waiting import OnExceeded
from policies.rule import Mode, Phase
from policies.rules.gpu_quota import GPUQuotaOptions, Kueue, check_workload, requests_gpus
from tests.builders import JSON, context, gpu_container, pod, quota_ledger, view

A100 = {"accelerator": "nvidia-a100-80gb"}
NUMBER = {
    "apps/Deployment": "spec.replicas",
    "apps/ReplicaSet": "spec.replicas",
    "apps/StatefulSet": "spec.replicas",
    "batch/Job": "spec.parallelism",
    "batch/CronJob": "spec.jobTemplate.spec.parallelism",
}
"""The field with the number of pods, as the table of kinds has it."""


def granted(held: dict[str, int] | None, **hard: int) -> QuotaLedger:
    """Return a quota of 16 GPUs, 8 of them A100 with 80 GB. `held` is used; None before the first count."""
    written = {"gpus": 16, "classes/nvidia-a100-80gb": 8} | hard
    amounts = {key: Fraction(amount) for key, amount in written.items()}
    ledger = quota_ledger(hard=amounts, used=None)
    return ledger if held is None else ledger.using({key: Fraction(each) for key, each in held.items()})


def pods(
    gpus: int = 1,
    path: str = "spec.template",
    *,
    on: JSON | None = None,
    spec: JSON | None = None,
    **count: Any,
) -> WorkloadPods:
    made = view(pod(gpu_container(gpus), nodeSelector=on or {}, **(spec or {})))
    return WorkloadPods(path, made, PodCount(**count), made)


def workload(
    *made: WorkloadPods,
    kind: str = "apps/Deployment",
    starts_together: bool = False,
    deadline: str = "",
    stage_field: str = "",
    leader_edit: Edit | None = None,
    **data: Any,
) -> Workload:
    group, _, name = kind.rpartition("/")
    made = tuple(_numbered(each, NUMBER.get(kind)) for each in made)
    document = {"metadata": {"name": "chat", **data.pop("metadata", {})}, **data}
    return Workload(
        group,
        name,
        "ml-training",
        document,
        made,
        is_one_gang=starts_together,
        deadline=deadline,
        stage_field=stage_field,
        leader_edit=leader_edit,
    )


def _numbered(made: WorkloadPods, field: str | None) -> WorkloadPods:
    is_stated = field and made.count.number is None and not made.count.maximum
    number = PodNumber(field) if field and is_stated and (made.count.running or 0) > 1 else made.count.number
    return replace(made, count=replace(made.count, number=number))


def said(
    subject: Workload,
    ledger: QuotaLedger,
    *,
    mode: Mode = Mode.ENFORCE,
    on_exceeded: OnExceeded = OnExceeded.DENY,
    kueue: Kueue = Kueue.LIMIT,
    **around: Any,
) -> list[str]:
    lets_wait = mode is Mode.ENFORCE and on_exceeded is OnExceeded.QUEUE
    held = context(Phase.TEMPLATE, ledger=ledger, lets_wait=lets_wait, **around)
    options = GPUQuotaOptions(mode=mode, on_exceeded=on_exceeded, kueue=kueue)
    is_checked = requests_gpus(subject, held.resource_mapping)
    return [finding.sentence() for finding in check_workload(subject, options, held) if is_checked]


A100_NEVER = "nvidia-a100-80gb, which can never fit: the GPUQuota of ml-training grants 8 in all"
NEVER = "which can never fit: the GPUQuota of ml-training grants 16 in all"
RAISE = "ask the platform team to raise spec.hard.gpus"
RAISE_A100 = "ask the platform team to raise spec.hard.classes[nvidia-a100-80gb]"
