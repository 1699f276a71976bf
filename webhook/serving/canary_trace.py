"""What the webhook adds to its answer about a canary: a warning that says who answered, and an annotation that proves the patch.

The mark works under any policy, paused, auditing or exempt, since it says that the webhook was called, not what it decided. It
takes nothing away: every rule runs as ever, and only a dry run is add_canary_trace, so nothing that is stored ever differs.
"""

import os
import re
import socket
from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import version

import msgspec

from policies.pods.annotations import CANARY, CANARY_ANSWER
from policies.pods.field_paths import json_pointer
from policies.pods.patch import Operation
from policies.pods.pod import Pod
from policies.rule import Mode
from webhook.serving.engine import Decision
from webhook.serving.review import AdmissionRequest, AdmissionResponse, encode_operations

MUTATE, VALIDATE = "mutate", "validate"
PREFIX = "gpu-admission canary "
NONCE = re.compile(r"[0-9a-f]{8,32}")
VERSION = version("gpu-admission")
REPLICA = os.environ.get("POD_NAME") or socket.gethostname()


class CanaryTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What one call tells. `enforces`: rules in that mode; `injects`: those that changed this pod.

    `patched`: the object that was shown carries the annotation of an earlier call, so patches are applied.
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
        fields = {
            "nonce": self.nonce,
            "phase": self.phase,
            "patched": "yes" if self.patched else "no",
            "injects": ",".join(self.injects),
            "enforces": ",".join(self.enforces),
            "version": self.version,
            "replica": self.replica,
        }
        return PREFIX + " ".join(f"{name}={value}" for name, value in fields.items())


def read_canary_traces(warnings: Iterable[str], nonce: str) -> list[CanaryTrace]:
    """Return the marks among warnings that answer this canary."""
    marks = []
    for warning in warnings:
        if not warning.startswith(PREFIX):
            continue
        pairs = (word.partition("=") for word in warning.removeprefix(PREFIX).split(" "))
        fields = {name: value for name, _, value in pairs}
        if fields.get("nonce") == nonce:
            marks.append(
                CanaryTrace(
                    nonce=nonce,
                    phase=fields.get("phase", ""),
                    patched=fields.get("patched") == "yes",
                    enforces=_listed(fields.get("enforces", "")),
                    injects=_listed(fields.get("injects", "")),
                    version=fields.get("version", ""),
                    replica=fields.get("replica", ""),
                )
            )
    return marks


def _listed(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def add_canary_trace(
    response: AdmissionResponse,
    request: AdmissionRequest,
    pod: Pod,
    decision: Decision,
    now: datetime,
    *,
    patch: bool,
) -> AdmissionResponse:
    """Return the answer with the mark, where the pod is a canary; else the answer as it is."""
    nonce = pod.annotations.get(CANARY)
    if nonce is None or request.dry_run is not True or not NONCE.fullmatch(nonce):
        return response
    patched = pod.annotations.get(CANARY_ANSWER) == nonce
    policy = decision.policy
    mark = CanaryTrace(
        nonce=nonce,
        phase=MUTATE if patch else VALIDATE,
        patched=patched,
        enforces=tuple(each.rule.id for each in policy.bindings if policy.mode(each, now) is Mode.ENFORCE),
        injects=tuple(dict.fromkeys(change.rule for change in decision.changes)) if patch else (),
        version=VERSION,
        replica=REPLICA,
    )
    response = msgspec.structs.replace(response, warnings=(mark.text(), *(response.warnings or ())))
    if patched or not patch or not response.allowed:
        return response
    proof = Operation("add", json_pointer("metadata", "annotations", CANARY_ANSWER), nonce)
    operations = encode_operations([*decision.operations, proof])
    return msgspec.structs.replace(response, patch=operations, patch_type="JSONPatch")
