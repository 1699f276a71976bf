"""One canary: a GPU pod that the real API server is asked about on a dry run, and a wrong one that must be refused in our words.

What is proved is told apart from what the policy of the namespace leaves open: the marks in the answers say which rules are
enforced.
"""

import secrets
from time import perf_counter
from typing import Any

import msgspec

from policies.pods.annotations import CANARY, INJECTED
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, Attempt
from webhook.serving.canary_trace import MUTATE, VALIDATE, CanaryTrace, read_canary_traces

GPU = "nvidia.com/gpu"
SECONDS = 20.0
"""For one request: the API server's own 5 s for each of our webhooks, and time for those of others."""
MUTATING, VALIDATING = "pods.mutate.gpu-admission.dev", "pods.validate.gpu-admission.dev"
DENIED = f'admission webhook "{MUTATING}" denied the request'
CALL_FAILED = "failed calling webhook"
SHAPE, TOLERATION = "gpu-requests", "gpu-toleration"

REMEDIES = {
    "api-server": "see whether the API server answers: kubectl get --raw /readyz",
    "namespace": "kubectl create namespace {namespace}",
    "forbidden": "let it create pods in namespace {namespace}: apply the RBAC of deploy/ again",
    "refused": "take away in namespace {namespace} what refuses the pod, or name another --canary-namespace",
    "call-failed": "kubectl -n gpu-admission get pods,endpointslices",
    "not-called": "apply the MutatingWebhookConfiguration zz-gpu-admission of deploy/ again; "
    "its namespaceSelector must not exclude {namespace}",
    "not-validated": "apply the ValidatingWebhookConfiguration zz-gpu-admission of deploy/ again; "
    "its namespaceSelector must not exclude {namespace}",
    "not-patched": "see which mutating webhook runs after zz-gpu-admission and takes annotations away: "
    "kubectl get mutatingwebhookconfigurations",
    "undone": "see which mutating webhook runs after zz-gpu-admission: kubectl get mutatingwebhookconfigurations",
    "not-refused": "see which version answers, and what its log says: kubectl -n gpu-admission logs -l "
    "app.kubernetes.io/component=webhook",
}
"""By the reason of a failure, of which there are no others."""

_CAUSES = (
    ("x509", "the caBundle does not vouch for what is served: gpu-admission certs check"),
    ("certificate", "the caBundle does not vouch for what is served: gpu-admission certs check"),
    ("not found", "apply the Service of deploy/ again: kubectl -n gpu-admission get service gpu-admission"),
    ("no endpoints available", "start the webhook: kubectl -n gpu-admission get pods"),
    ("connection refused", "start the webhook: kubectl -n gpu-admission get pods"),
    (
        "deadline exceeded",
        "see whether packets get from the API server to the webhook (firewall, NetworkPolicy), port 8443",
    ),
)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a canary. `reason` is empty where it came through, else one of REMEDIES."""

    reason: str = ""
    message: str = ""
    remedy: str = ""
    proved: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    """What was not proved, and why: the policy does not enforce it."""
    answered_by: tuple[str, ...] = ()
    """Replica and version, of every call."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.reason


class _Failed(Exception):  # noqa: N818 - ends a canary, nothing more
    def __init__(self, reason: str, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.remedy = remedy


class _Metadata(msgspec.Struct):
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct):
    tolerations: list[dict[str, Any]] | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec


def canary_pod(nonce: str, amount: str) -> dict[str, Any]:
    """Return a pod that asks for so many GPUs; it fits the restricted profile, and asks for nothing else."""
    container = {
        "name": "canary",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"limits": {GPU: amount}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "canary-", "annotations": {CANARY: nonce}},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [container],
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65534,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }


def probe(api: ApiClient, namespace: str) -> Outcome:
    """Send both pods. Never raises for what it is there to find out."""
    begun = perf_counter()
    try:
        outcome = _Canary(api, namespace).run()
    except _Failed as failed:
        remedy = failed.remedy or REMEDIES[failed.reason].format(namespace=namespace)
        outcome = Outcome(reason=failed.reason, message=str(failed), remedy=remedy)
    except errors.ApiError as error:
        outcome = Outcome(reason="api-server", message=str(error), remedy=REMEDIES["api-server"])
    return msgspec.structs.replace(outcome, seconds=perf_counter() - begun)


class _Canary:
    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._nonce = secrets.token_hex(8)
        self.proved: list[str] = []
        self.open: list[str] = []

    def run(self) -> Outcome:
        attempt = self._send("1")
        marks = self._marks(attempt)
        if attempt.error is None:
            self._admitted(attempt, marks)
        else:
            # The path is proved as far as it goes: what refused the pod is the policy, a quota, another webhook.
            self.open.append(f"that injections survive: the canary itself was refused: {attempt.error}")
        enforced = {rule for mark in marks for rule in mark.enforces}
        if SHAPE in enforced:
            self._refused(self._send("0.5"))
        else:
            self.open.append(f"that a wrong pod is refused: {SHAPE} is not enforced in {self._namespace}")
        return Outcome(
            proved=tuple(self.proved),
            open=tuple(self.open),
            answered_by=tuple(
                dict.fromkeys(f"{mark.replica or '?'} (version {mark.version or '?'})" for mark in marks)
            ),
        )

    def _send(self, amount: str) -> Attempt:
        body = msgspec.json.encode(canary_pod(self._nonce, amount))
        return self._api.dry_run(f"/api/v1/namespaces/{self._namespace}/pods", body, timeout=SECONDS)

    def _marks(self, attempt: Attempt) -> list[CanaryTrace]:
        """Return the marks of the first pod, which show that it went through both webhooks, or was refused by the first."""
        marks = read_canary_traces(attempt.warnings, self._nonce)
        phases = {mark.phase for mark in marks}
        if MUTATE not in phases:
            self._explain(attempt)
            raise _Failed("not-called", f"a GPU pod was admitted without a call of {MUTATING}")
        self.proved.append(f"{MUTATING} is called")
        if DENIED in str(attempt.error):
            self.open.append(
                f"that {VALIDATING} is called, and patches applied: the policy refuses the canary before"
            )
            return marks
        if VALIDATE not in phases:
            self._explain(attempt)
            raise _Failed("not-validated", f"a GPU pod was admitted without a call of {VALIDATING}")
        self.proved.append(f"{VALIDATING} is called")
        if not any(mark.patched for mark in marks if mark.phase == VALIDATE):
            raise _Failed("not-patched", "what the mutating webhook added is not in the final pod")
        self.proved.append("patches are applied")
        return marks

    def _explain(self, attempt: Attempt) -> None:
        """Raise for an answer that itself says why a webhook was not reached."""
        error = attempt.error
        if error is None:
            return
        told = str(error)
        if CALL_FAILED in told:
            causes = (remedy for cause, remedy in _CAUSES if cause in told)
            raise _Failed("call-failed", told, next(causes, ""))
        if isinstance(error, errors.NotFound):
            raise _Failed("namespace", told)
        if isinstance(error, errors.Unavailable | errors.Unauthorized):
            raise _Failed("api-server", told)
        is_access = isinstance(error, errors.Forbidden) and "cannot create resource" in told
        raise _Failed("forbidden" if is_access else "refused", told)

    def _admitted(self, attempt: Attempt, marks: list[CanaryTrace]) -> None:
        """Check that what was injected is in the pod as it would be stored."""
        injected = {rule for mark in marks for rule in mark.injects}
        if not injected:
            self.open.append(f"that injections survive: the policy of {self._namespace} injects nothing")
            return
        pod = msgspec.json.decode(attempt.body, type=_Pod)
        kept = {each.get("key") for each in pod.spec.tolerations or ()} - _ADDED_BY_THE_API_SERVER
        if INJECTED not in (pod.metadata.annotations or {}) or (TOLERATION in injected and not kept):
            raise _Failed("undone", f"what {', '.join(sorted(injected))} injected is not in the final pod")
        self.proved.append(f"what {', '.join(sorted(injected))} injects is in the final pod")

    def _refused(self, attempt: Attempt) -> None:
        told = "" if attempt.error is None else str(attempt.error)
        if DENIED in told and f"[{SHAPE}]" in told:
            self.proved.append("half a GPU is refused in our words")
            return
        if CALL_FAILED in told:
            self._explain(attempt)
        raise _Failed("not-refused", f"half a GPU was not refused by {MUTATING}: {told or 'it was admitted'}")


_ADDED_BY_THE_API_SERVER = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
"""Tolerations that every pod gets (admission plugin DefaultTolerationSeconds)."""
