"""What a canary concludes from the answers of the API server."""

from typing import cast

import msgspec

from policies.pods.annotations import CANARY, INJECTED
from tests.cases import cases
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, Attempt
from webhook.controller.canary import MUTATING, REMEDIES, VALIDATING, probe
from webhook.serving.canary_trace import MUTATE, VALIDATE, CanaryTrace

DENIED = f'admission webhook "{MUTATING}" denied the request: '
HALF = errors.ApiError(DENIED + "[gpu-requests] must be a whole number", code=403)
BOTH = (MUTATE, VALIDATE)


class Cluster:
    """An API server that answers the first pod with the error, and traces of these calls; the second pod is rejected."""

    def __init__(
        self, error: errors.ApiError | None, calls: tuple[str, ...], *, patched: bool = True
    ) -> None:
        self.error, self.calls, self.patched = error, calls, patched
        self.injects: tuple[str, ...] = ()
        self.tolerations: list[dict[str, str]] = []

    def get(self, path: str) -> bytes:
        raise errors.NotFound(path)

    def dry_run(self, path: str, body: bytes, *, timeout: float) -> Attempt:
        assert (path, timeout) == ("/api/v1/namespaces/team/pods", 20.0)
        document = msgspec.json.decode(body)
        nonce = document["metadata"]["annotations"][CANARY]
        traces = tuple(
            CanaryTrace(
                nonce=nonce, phase=call, patched=patched, enforces=("gpu-requests",), injects=self.injects
            ).text()
            for call, patched in ((call, self.patched and call == VALIDATE) for call in self.calls)
        )
        whole = document["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        document["metadata"]["annotations"] |= {INJECTED: "{}"} if self.tolerations else {}
        document["spec"]["tolerations"] = self.tolerations
        return Attempt(msgspec.json.encode(document), self.error if whole else HALF, traces)


@cases(
    ("error", "calls", "want"),
    {
        "no-call": ("", (), "not-called"),
        "one-call": ("", (MUTATE,), "not-validated"),
        "no-namespace": (errors.NotFound("namespaces team not found"), (), "namespace"),
        "api-server-away": (errors.Unavailable("away"), (), "api-server"),
        "unknown-credentials": (errors.Unauthorized("who?"), (), "api-server"),
        "no-rights": (errors.Forbidden("cannot create resource pods"), (), "forbidden"),
        "another-webhook": (errors.Forbidden("another webhook denied"), (), "refused"),
        "a-failed-call": (errors.ApiError(f"failed calling webhook {MUTATING}: 42"), (), "call-failed"),
    },
)
def test_a_failure_has_a_reason_and_its_remedy(
    error: errors.ApiError | str, calls: tuple[str, ...], want: str
) -> None:
    result = probe(cast(ApiClient, Cluster(error or None, calls)), "team")  # type: ignore[arg-type]

    assert (result.reason, result.ok) == (want, False)
    assert result.remedy == REMEDIES[want].format(namespace="team")


def test_a_failed_call_with_a_known_cause_has_the_remedy_of_the_cause() -> None:
    refused = errors.ApiError(f"failed calling webhook {MUTATING}: connection refused")

    result = probe(cast(ApiClient, Cluster(refused, ())), "team")

    assert (result.reason, result.remedy) == (
        "call-failed",
        "start the webhook: kubectl -n gpu-admission get pods",
    )


def test_patches_that_are_not_in_the_final_pod_are_a_failure() -> None:
    assert probe(cast(ApiClient, Cluster(None, BOTH, patched=False)), "team").reason == "not-patched"


def test_a_success_says_what_was_proved_and_what_the_policy_leaves_open() -> None:
    result = probe(cast(ApiClient, Cluster(None, BOTH)), "team")

    called = (f"{MUTATING} is called", f"{VALIDATING} is called")
    assert result.proved == (*called, "patches are applied", "half a GPU is rejected with our message")
    assert result.open == ("that injections persist: the policy of team injects nothing",)


@cases(
    ("tolerated", "want"),
    {
        "nothing-is-left": ([], "undone"),
        "what-every-pod-gets": (["node.kubernetes.io/not-ready"], "undone"),
        "our-toleration": (["node.kubernetes.io/not-ready", "nvidia.com/gpu"], ""),
    },
)
def test_injections_are_in_the_final_pod(tolerated: list[str], want: str) -> None:
    cluster = Cluster(None, BOTH)
    cluster.injects, cluster.tolerations = ("gpu-toleration",), [{"key": each} for each in tolerated]

    result = probe(cast(ApiClient, cluster), "team")

    assert result.reason == want
    assert ("the injections of gpu-toleration are in the final pod" in result.proved) is (not want)
