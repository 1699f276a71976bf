"""The response to a canary: a warning that says who answered, and an annotation that proves the patch.

A trace works under any policy, paused, auditing or exempt: it says that the webhook was called, not its decision. All rules run
as usual, and only dry runs are traced, so no stored object differs.
"""

import os
import re
import socket
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

import msgspec

from policies.pods.annotations import CANARY, CANARY_ANSWER
from policies.pods.field_paths import json_pointer
from policies.pods.patch import Operation
from policies.pods.pod import Pod
from policies.rule import Mode, Phase
from webhook.evaluation.decision import Decision
from webhook.version import VERSION

MUTATE, VALIDATE = Phase.MUTATE.value, Phase.VALIDATE.value
PREFIX = "gpu-admission canary "
NONCE = re.compile(r"[0-9a-f]{8,32}")
REPLICA = os.environ.get("POD_NAME") or socket.gethostname()


class CanaryTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one call. `enforces`: rules in that mode; `injects`: rules that changed this pod.

    `patched`: the pod has the annotation of an earlier call, so the API server applies patches.
    """

    nonce: str
    phase: str
    patched: bool = False
    enforces: tuple[str, ...] = ()
    injects: tuple[str, ...] = ()
    version: str = ""
    replica: str = ""

    def text(self) -> str:
        """Return the warning: one line, and what matters first, since long ones are cut."""
        return (
            f"{PREFIX}nonce={self.nonce} phase={self.phase} patched={'yes' if self.patched else 'no'}"
            f" injects={','.join(self.injects)} enforces={','.join(self.enforces)}"
            f" version={self.version} replica={self.replica}"
        )

    @property
    def proof(self) -> Operation:
        """The operation whose result a later call sees, if patches are applied."""
        return Operation("add", json_pointer("metadata", "annotations", CANARY_ANSWER), self.nonce)


def read_canary_traces(warnings: Iterable[str], nonce: str) -> list[CanaryTrace]:
    """Return the traces among warnings that answer this canary."""
    traces = []
    for warning in warnings:
        words = (word.partition("=") for word in warning.removeprefix(PREFIX).split(" "))
        fields = defaultdict(str, {name: value for name, _, value in words})
        if warning.startswith(PREFIX) and fields["nonce"] == nonce:
            rules = {name: tuple(filter(None, fields[name].split(","))) for name in ("enforces", "injects")}
            trace = {"phase": "", **fields, **rules, "patched": fields["patched"] == "yes"}
            traces.append(msgspec.convert(trace, CanaryTrace))
    return traces


def canary_trace(
    pod: Pod, decision: Decision, now: datetime, *, phase: Phase, dry_run: bool
) -> CanaryTrace | None:
    """Return the trace of a canary; None for any other pod, and for a pod that is to be stored."""
    nonce = pod.annotations.get(CANARY)
    if nonce is None or not dry_run or not NONCE.fullmatch(nonce):
        return None
    policy, is_mutation = decision.policy, phase is Phase.MUTATE
    return CanaryTrace(
        nonce=nonce,
        phase=phase.value,
        patched=pod.annotations.get(CANARY_ANSWER) == nonce,
        enforces=tuple(rule.rule.id for rule in policy.bound_rules if policy.mode(rule, now) is Mode.ENFORCE),
        injects=tuple(dict.fromkeys(change.rule for change in decision.changes)) if is_mutation else (),
        version=VERSION,
        replica=REPLICA,
    )
