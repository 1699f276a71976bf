"""The canary sends two GPU pods to the API server as dry runs: a valid one, and an invalid one that our webhook must reject.

The traces in the answers say which rules the policy of the namespace enforces. The result says what was not proved. The
controller exports the last one as metrics.
"""

import logging
import secrets
from collections.abc import Iterator, Mapping
from time import perf_counter, time
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from policies.gpus.mapping_spec import NVIDIA_GPU
from policies.pods.annotations import CANARY, INJECTED
from policies.pods.pod import decode_pod
from webhook.canary.traces import MUTATE, VALIDATE, CanaryTrace, read_canary_traces
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, DryRunResult, api_path
from webhook.cluster.objects import WEBHOOK_CONFIGURATION

log = logging.getLogger("gpu_admission.canary")

REQUEST_SECONDS = 20.0
"""Timeout of one request. The API server gives each of our webhooks 5 s; the rest is for other webhooks."""
CONFIGURATION_PATH = (
    f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{WEBHOOK_CONFIGURATION}"
)
MUTATING, VALIDATING = "pods.mutate.gpu-admission.dev", "pods.validate.gpu-admission.dev"
DENIED = f'admission webhook "{MUTATING}" denied the request'
CALL_FAILED = "failed calling webhook"
REQUESTS_ID, TOLERATION_ID = "gpu-requests", "gpu-toleration"

_ADDED_BY_THE_API_SERVER = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
"""Tolerations that every pod gets (admission plugin DefaultTolerationSeconds)."""

FAILS_OPEN = (
    "with failurePolicy Ignore, start the webhook (kubectl -n gpu-admission get pods) or correct the caBundle"
)
"""With Ignore, the API server admits the pod, and does not say that the call failed."""
REMEDIES = {
    "api-server": "check whether the API server answers: kubectl get --raw /readyz",
    "namespace": "kubectl create namespace {namespace}",
    "forbidden": "allow it to create pods in namespace {namespace}: apply the RBAC of deploy/ again",
    "rejected": "remove what rejects the pod in namespace {namespace}, or name another --canary-namespace",
    "call-failed": "kubectl -n gpu-admission get pods,endpointslices",
    "not-called": f"{FAILS_OPEN}; else apply the MutatingWebhookConfiguration zz-gpu-admission of deploy/ again; "
    "its namespaceSelector must not exclude {namespace}",
    "not-validated": f"{FAILS_OPEN}; else apply the ValidatingWebhookConfiguration zz-gpu-admission of deploy/ again; "
    "its namespaceSelector must not exclude {namespace}",
    "not-patched": "find the mutating webhook that runs after zz-gpu-admission and removes annotations: "
    "kubectl get mutatingwebhookconfigurations",
    "undone": "find the mutating webhook that runs after zz-gpu-admission: kubectl get mutatingwebhookconfigurations",
    "not-rejected": "see which version answers, and its log: kubectl -n gpu-admission logs -l "
    "app.kubernetes.io/component=webhook",
}
"""The remedy for each reason of a failure. There are no other reasons."""

_REMEDIES_BY_CAUSE = (
    ("certificate", "the caBundle does not verify the certificate that is served: gpu-admission doctor"),
    ("not found", "apply the Service of deploy/ again: kubectl -n gpu-admission get service gpu-admission"),
    ("no endpoints available", "start the webhook: kubectl -n gpu-admission get pods"),
    ("connection refused", "start the webhook: kubectl -n gpu-admission get pods"),
    (
        "deadline exceeded",
        "allow connections from the API server to port 8443 of the webhook (firewall, NetworkPolicy)",
    ),
)
"""A part of the API server's message, and the remedy if the message has it. The first match decides."""


class CanaryResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`reason` is empty after success, and a key of REMEDIES after a failure."""

    reason: str = ""
    message: str = ""
    remedy: str = ""
    proved: tuple[str, ...] = ()
    unproved: tuple[str, ...] = msgspec.field(name="open", default=())
    """What was not proved, and why: the policy does not enforce it, or something rejected the canary."""
    answered_by: tuple[str, ...] = ()
    """Replica and version for every call."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.reason


class _Failed(Exception):  # noqa: N818 - ends one canary
    def __init__(self, reason: str, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.remedy = remedy


def canary_pod(nonce: str, amount: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a pod that requests only GPUs and fits the restricted profile."""
    # It names no user: OpenShift's restricted-v2 accepts only users of a range of the namespace.
    container = {
        "name": "canary",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"limits": {NVIDIA_GPU: amount}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "canary-", "labels": labels or {}, "annotations": {CANARY: nonce}},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [container],
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    }


def selected_labels(selector: Mapping[str, Any]) -> dict[str, str]:
    labels = {
        expression["key"]: (expression.get("values") or [""])[0]
        for expression in selector.get("matchExpressions") or ()
        if expression["operator"] in {"In", "Exists"}
    }
    return labels | (selector.get("matchLabels") or {})


def probe(api: ApiClient, namespace: str) -> CanaryResult:
    """Send both pods. A failure is a result, and never raised."""
    begun = perf_counter()
    try:
        result = _Probe(api, namespace).run()
    except _Failed as failed:
        remedy = failed.remedy or REMEDIES[failed.reason].format(namespace=namespace)
        result = CanaryResult(reason=failed.reason, message=str(failed), remedy=remedy)
    except errors.ApiError as error:
        result = CanaryResult(reason="api-server", message=str(error), remedy=REMEDIES["api-server"])
    return msgspec.structs.replace(result, seconds=perf_counter() - begun)


class _Probe:
    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._nonce = secrets.token_hex(8)
        self._labels: Mapping[str, str] = {}
        self.proved: list[str] = []
        self.unproved: list[str] = []

    def run(self) -> CanaryResult:
        self._labels = self._selected_labels()
        answer = self._send("1")
        traces = self._traces(answer)
        if answer.error is None:
            self._check_admitted(answer, traces)
        else:
            # The policy, a quota or another webhook rejected the pod. The traces prove the path up to there.
            self.unproved.append(f"that injections persist: the canary itself was rejected: {answer.error}")
        enforced = {rule for trace in traces for rule in trace.enforces}
        if REQUESTS_ID in enforced:
            self._check_rejected(self._send("0.5"))
        else:
            self.unproved.append(
                f"that an invalid pod is rejected: {REQUESTS_ID} is not enforced in {self._namespace}"
            )
        return CanaryResult(
            proved=tuple(self.proved),
            unproved=tuple(self.unproved),
            answered_by=tuple(
                dict.fromkeys(f"{trace.replica or '?'} (version {trace.version or '?'})" for trace in traces)
            ),
        )

    def _selected_labels(self) -> Mapping[str, str]:
        """Return labels that match the objectSelector of our webhook, if it has one."""
        try:
            entries = msgspec.json.decode(self._api.get(CONFIGURATION_PATH)).get("webhooks") or ()
        except (errors.Forbidden, errors.NotFound):
            return {}
        selectors = (entry.get("objectSelector") or {} for entry in entries if entry["name"] == MUTATING)
        return selected_labels(next(selectors, {}))

    def _send(self, amount: str) -> DryRunResult:
        body = msgspec.json.encode(canary_pod(self._nonce, amount, self._labels))
        return self._api.dry_run(
            api_path("/api/v1", "namespaces", self._namespace, "pods"), body, timeout=REQUEST_SECONDS
        )

    def _traces(self, answer: DryRunResult) -> list[CanaryTrace]:
        """Return the traces of the first pod. Raises _Failed unless both webhooks were called, or the first rejected the pod."""
        traces = read_canary_traces(answer.warnings, self._nonce)
        phases = {trace.phase for trace in traces}
        calls = (MUTATE, MUTATING, "not-called"), (VALIDATE, VALIDATING, "not-validated")
        for phase, name, reason in calls:
            if phase not in phases:
                self._raise_explained(answer)
                raise _Failed(reason, f"a GPU pod was admitted without a call of {name}")
            self.proved.append(f"{name} is called")
            if DENIED in str(answer.error):
                unproved = f"that {VALIDATING} is called, and patches applied"
                self.unproved.append(f"{unproved}: the policy rejects the canary before")
                return traces
        if not any(trace.patched for trace in traces if trace.phase == VALIDATE):
            raise _Failed("not-patched", "the annotations of the mutating webhook are not in the final pod")
        self.proved.append("patches are applied")
        return traces

    def _raise_explained(self, answer: DryRunResult) -> None:
        """Raise _Failed if the answer says why a webhook was not called."""
        error = answer.error
        if error is None:
            return
        text = str(error)
        if CALL_FAILED in text:
            causes = (remedy for cause, remedy in _REMEDIES_BY_CAUSE if cause in text)
            raise _Failed("call-failed", text, next(causes, ""))
        if isinstance(error, errors.NotFound):
            raise _Failed("namespace", text)
        if isinstance(error, errors.Unavailable | errors.Unauthorized):
            raise _Failed("api-server", text)
        is_access = isinstance(error, errors.Forbidden) and "cannot create resource" in text
        raise _Failed("forbidden" if is_access else "rejected", text)

    def _check_admitted(self, answer: DryRunResult, traces: list[CanaryTrace]) -> None:
        injected = {rule for trace in traces for rule in trace.injects}
        if not injected:
            self.unproved.append(f"that injections persist: the policy of {self._namespace} injects nothing")
            return
        pod = decode_pod(answer.body)
        tolerated = {toleration.key for toleration in pod.spec.tolerations or ()} - _ADDED_BY_THE_API_SERVER
        rules = ", ".join(sorted(injected))
        if INJECTED not in pod.annotations or (TOLERATION_ID in injected and not tolerated):
            raise _Failed("undone", f"the injections of {rules} are not in the final pod")
        self.proved.append(f"the injections of {rules} are in the final pod")

    def _check_rejected(self, answer: DryRunResult) -> None:
        text = str(answer.error or "")
        if DENIED in text and f"[{REQUESTS_ID}]" in text:
            self.proved.append("half a GPU is rejected with our message")
            return
        if CALL_FAILED in text:
            self._raise_explained(answer)
        raise _Failed("not-rejected", f"{MUTATING} did not reject half a GPU: {text or 'it was admitted'}")


class Canary(Collector):
    """Runs canaries, and exports the result of the last one as metrics."""

    def __init__(self, api: ApiClient, namespace: str, registry: CollectorRegistry) -> None:
        self._api = api
        self._namespace = namespace
        self._logged = ""
        self._last: CanaryResult | None = None
        self._succeeded_at: float | None = None
        self._failures = Counter(
            "gpu_admission_canary_failures", "Failed canaries by reason.", ["reason"], registry=registry
        )
        for reason in REMEDIES:
            self._failures.labels(reason)
        registry.register(self)

    def forget(self) -> None:
        """Forget the last result: another process leads."""
        self._last = self._succeeded_at = None

    def send(self) -> None:
        self._record(probe(self._api, self._namespace))

    def _record(self, result: CanaryResult) -> None:
        self._last = result
        text = "ok" if result.ok else f"{result.reason}: {result.message}"
        differs, self._logged = text != self._logged, text
        if result.ok:
            self._succeeded_at = time()
            if differs:
                log.info("canary: succeeded in %.3f s: %s", result.seconds, "; ".join(result.proved))
        else:
            self._failures.labels(result.reason).inc()
            if differs:
                log.error("canary: %s; %s", result.message, result.remedy)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        last, succeeded_at = self._last, self._succeeded_at
        if last is None:
            return
        yield GaugeMetricFamily(
            "gpu_admission_canary_success",
            "1 if the last canary, a GPU pod sent as a dry run, went through both webhooks with all injections, else 0.",
            value=float(last.ok),
        )
        yield GaugeMetricFamily(
            "gpu_admission_canary_duration_seconds", "Duration of the last canary.", value=last.seconds
        )
        if succeeded_at is not None:
            yield GaugeMetricFamily(
                "gpu_admission_canary_last_success_timestamp_seconds",
                "Time of the last canary that succeeded.",
                value=succeeded_at,
            )
