"""What is said of the GPUs that a LimitRange gave a pod: what its author can write, and what to ask for, where it helps."""

import json
from datetime import UTC, datetime
from fractions import Fraction

import msgspec

from policies.pods.limit_ranges import as_admitted, decode_limit_range, namespace_limits
from policies.quota.amounts import GPUS
from policies.quota.ledger.quota_ledger import Revisions
from tests.builders import JSON, container, gpu_container, pod, quota_ledger, view
from tests.cases import cases
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_objects
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.facts import Facts
from webhook.quota.enforcer import ReadOnlyQuota
from webhook.tools.stored_objects import evaluate

GPU = "nvidia.com/gpu"


def limit_range(name: str, **item: JSON) -> JSON:
    return {"metadata": {"name": name}, "spec": {"limits": [{"type": "Container", **item}]}}


def said(document: JSON, *stored: JSON, grants: int | None = None, **of_requests: int) -> list[str]:
    """Return what is found of a new pod. grants: GPUs of its quota, of which nobody uses any; `of_requests`: gpu-requests."""
    rules = {"rules": {"gpu-requests": of_requests}}
    cache = DecisionCache(load_objects([Document("GPUPolicy", "cluster-default", rules)]))
    limits = namespace_limits(decode_limit_range(json.dumps(each).encode()) for each in stored)
    quota = None
    if grants is not None:
        none, hard = {GPUS: Fraction(0)}, {GPUS: Fraction(grants)}
        ledger = quota_ledger(hard=hard, used=none, revisions=Revisions(pods=1))
        quota = ReadOnlyQuota(ledger, cache.configuration)
    by = Evaluator(
        cache=cache,
        now=datetime(2026, 11, 21, 12, tzinfo=UTC),
        facts=Facts(limits_of=lambda _: limits),
        quota_of=lambda _: quota,
    )
    created = msgspec.json.encode(as_admitted(view(document), limits))
    return [each.finding.sentence() for each in evaluate("", "Pod", "team", created, by).findings()]


MAIN = f'spec.containers[0].resources.limits[{GPU}] (container "main") = "1"'
GIVES = f"LimitRange gpus gives {GPU}: 1 to each container that requests none"
TO_TAKE = f"ask the platform team to take {GPU} out of LimitRange gpus"
RATIO: JSON = {"maxLimitRequestRatio": {GPU: "1"}}
"""Refuses 0."""
GIVEN, BOUND = limit_range("gpus", default={GPU: "1"}), limit_range("gpus", default={GPU: "1"}, **RATIO)
HALF_OWN = container(name="own", resources={"requests": {GPU: "1"}})
AMOUNT = MAIN.replace('"1"', '"2"')


@cases(
    ("document", "want"),
    taking_them_out_helps=(pod(container()), [f"{MAIN}: {GIVES}; {TO_TAKE} [gpu-requests]"]),
    it_would_leave_a_request_without_a_limit=(
        pod(container(), HALF_OWN),
        [f"{MAIN}: {GIVES} [gpu-requests]"],
    ),
)
def test_the_question_to_take_them_out_of_a_limit_range(document: JSON, want: list[str]) -> None:
    assert said(document, BOUND) == want


def test_an_amount_that_its_author_may_have_written_stays_where_no_limit_range_gives_it() -> None:
    given = limit_range("gpus", default={GPU: "2"}, **RATIO)
    others = limit_range("more", default={"memory": "1Gi"})  # overwrites what the annotation lists

    denied, warned = said(pod(gpu_container("2")), given, others, maxPerPod=1)

    gives = GIVES.replace(": 1", ": 2")
    assert (
        denied
        == f"{AMOUNT}: request {GPU}: 1 or less; must be at most 1 per pod by policy; {gives} [gpu-requests]"
    )
    assert warned == f"{AMOUNT}: set {GPU}: 1; {gives} [gpu-requests]"


TO_0 = f"set {GPU}: 0 in resources.limits if it needs no GPU"
EXCEEDS = "exceeded quota: team/default, {} can never fit: the quota grants {}"
RAISE = "ask the platform team to raise spec.hard.gpus [gpu-quota]"


@cases(
    ("document", "stored", "grants", "want"),
    all_gpus_of_the_pod=(
        pod(container()), GIVEN, 0, f"{TO_0}; {EXCEEDS.format('1 GPU', 0)}; {GIVES}; or {RAISE}",
    ),
    those_that_exceed_it=(
        pod(container(), gpu_container(name="own")), GIVEN, 1, f"{TO_0}; {EXCEEDS.format('2 GPUs', 1)}; {GIVES}; or {RAISE}",
    ),
    its_own_exceed_it_alone=(
        pod(container(), gpu_container(name="own")), GIVEN, 0, f"{EXCEEDS.format('2 GPUs', 0)}; {GIVES}; {RAISE}",
    ),
    the_limit_range_refuses_0=(pod(container()), BOUND, 0, f"{EXCEEDS.format('1 GPU', 0)}; {GIVES}; {RAISE}"),
)  # fmt: skip
def test_what_a_quota_says_of_them(document: JSON, stored: JSON, grants: int, want: str) -> None:
    assert said(document, stored, grants=grants)[-1] == want
