"""A controller that somebody has taken over is not cluster-admin: its attempts are refused, and its own work goes on."""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually, is_there
from tests.cluster.deploy.installed import CONTROLLER, WEBHOOK, Installed
from tests.controlplane import JSON_PATCH, MERGE_PATCH, ControlPlane
from tests.controlplane.client import APPLY_PATCH, accepted
from tests.deploy.manifests import NAMESPACE
from webhook.canary.probe import canary_pod

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
KINDS = {
    "MutatingWebhookConfiguration": f"{REGISTRATION}/mutatingwebhookconfigurations/zz-gpu-admission",
    "ValidatingWebhookConfiguration": f"{REGISTRATION}/validatingwebhookconfigurations/zz-gpu-admission",
}
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
CANARIES = "/api/v1/namespaces/gpu-admission-canary/pods"
SERVED, AUTHORITY = "gpu-admission-certificates", "gpu-admission-ca"
ONLY_BUNDLE = "the controller of gpu-admission may change nothing of a webhook configuration but caBundle"
ONLY_DRY = "the controller of gpu-admission may create pods on a dry run only"
ONLY_ITS_SECRETS = "the controller of gpu-admission may create no Secrets but those of its certificates"
ONLY_ITS_LEASE = "the controller of gpu-admission may create no Lease but gpu-admission-controller"


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Installed]:
    installed = Installed(plane, host=70)
    installed.apply()
    installed.start()
    # The API server hears of a policy by a watch: the first refusal says that it has.
    attempt = Attempt("POST", LEASES, lease("probe"), query={"dryRun": "All"})
    assert eventually(lambda: ONLY_ITS_LEASE in attempt.by(installed, CONTROLLER))
    yield installed
    installed.stop()


class Attempt(NamedTuple):
    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"
    query: dict[str, str] | None = None

    def by(self, running: Installed, account: str) -> str:
        """Return the API server's message; empty if it did as asked."""
        client = running.client(account)
        try:
            status, answer = client.request(
                self.method, self.path, self.body, self.query, content_type=self.content_type
            )
        finally:
            client.close()
        return "" if status < 300 else f"{status} {answer['message']}"


def lease(name: str) -> JSON:
    return {"metadata": {"name": name}, "spec": {"holderIdentity": "x"}}


def secret(name: str, kind: str) -> JSON:
    account = {"kubernetes.io/service-account.name": WEBHOOK}
    return {"metadata": {"name": name, "annotations": account}, "type": kind, "stringData": TLS}


TLS = {"tls.crt": "x", "tls.key": "x"}
TOKEN = "kubernetes.io/service-account-token"
PRIVILEGED = canary_pod("", "1")
PRIVILEGED["spec"]["containers"][0]["securityContext"] = {"privileged": True}
DRY = {"dryRun": "All"}


@cases(
    ("attempt", "want"),
    a_pod_that_stays=(Attempt("POST", CANARIES, canary_pod("", "1")), ONLY_DRY),
    a_privileged_pod_on_a_dry_run=(
        Attempt("POST", CANARIES, PRIVILEGED, query=DRY),
        'violates PodSecurity "restricted:latest": privileged',
    ),
    a_token_of_another_account=(Attempt("POST", SECRETS, secret("stolen", TOKEN)), ONLY_ITS_SECRETS),
    a_token_in_a_secret_that_it_may_read=(
        Attempt("POST", SECRETS, secret(SERVED, TOKEN)),
        ONLY_ITS_SECRETS,
    ),
    a_secret_of_another_name=(
        Attempt("POST", SECRETS, secret("other", "kubernetes.io/tls")),
        ONLY_ITS_SECRETS,
    ),
    a_secret_of_a_generated_name=(
        Attempt("POST", SECRETS, {**secret("", "Opaque"), "metadata": {"generateName": AUTHORITY}}),
        ONLY_ITS_SECRETS,
    ),
    another_lease=(Attempt("POST", LEASES, lease("other")), ONLY_ITS_LEASE),
)
def test_it_may_not(running: Installed, attempt: Attempt, want: str) -> None:
    assert want in attempt.by(running, CONTROLLER)


def test_no_secret_that_the_webhook_can_read_has_the_authoritys_key(
    plane: ControlPlane, running: Installed
) -> None:
    del running
    data = {name: plane.client().get(f"{SECRETS}/{name}")[1]["data"] for name in (SERVED, AUTHORITY)}

    assert set(data[SERVED]) == {"ca.crt", "tls.crt", "tls.key"}
    assert set(data[AUTHORITY]) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}


# ---- Its webhook configurations: every field that the API server knows

CHANGES: dict[str, Any] = {
    "name": "other.gpu-admission.dev",
    "admissionReviewVersions": ["v1", "v1beta1"],
    "failurePolicy": "Ignore",
    "matchConditions": [{"name": "everything", "expression": "true"}],
    "matchPolicy": "Exact",
    "namespaceSelector": {"matchLabels": {"a": "b"}},
    "objectSelector": {"matchLabels": {"a": "b"}},
    "reinvocationPolicy": "Never",
    "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}],
    "sideEffects": "",
    "timeoutSeconds": 30,
}
"""Values that differ from those of the installed webhooks."""
SERVICE_CHANGES: dict[str, Any] = {"namespace": "default", "name": "other", "path": "/other", "port": 8443}
ELSEWHERE = {"url": "https://elsewhere.example/mutate"}
METADATA_CHANGES: dict[str, Any] = {
    "annotations": {"meta.helm.sh/release-name": "other"},
    "finalizers": ["example.com/stay"],
    "labels": {"app.kubernetes.io/name": "other"},
    "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
}
SET_BY_THE_API_SERVER = {
    *("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generateName", "generation"),
    *("managedFields", "name", "namespace", "resourceVersion", "selfLink", "uid"),
}


def pointer(*path: str, value: Any) -> list[JSON]:
    return [{"op": "add", "path": "/".join(("", *path)), "value": value}]


WEBHOOK_0 = ("webhooks", "0")
FIELDS: dict[str, list[JSON]] = {
    **{f"webhooks.{name}": pointer(*WEBHOOK_0, name, value=value) for name, value in CHANGES.items()},
    **{
        f"service.{name}": pointer(*WEBHOOK_0, "clientConfig", "service", name, value=value)
        for name, value in SERVICE_CHANGES.items()
    },
    "clientConfig.url": pointer(*WEBHOOK_0, "clientConfig", value=ELSEWHERE),
    **{
        f"metadata.{name}": pointer("metadata", name, value=value) for name, value in METADATA_CHANGES.items()
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_the_api_server_is_among_the_attempts(plane: ControlPlane, kind: str) -> None:
    document = plane.client().get("/openapi/v3/apis/admissionregistration.k8s.io/v1")[1]
    schemas = document["components"]["schemas"]

    def fields(name: str) -> set[str]:
        return set(schemas[f"io.k8s.{name}"]["properties"])

    webhook = kind.removesuffix("Configuration")
    mutating = {"reinvocationPolicy"} if kind.startswith("Mutating") else set()
    assert fields(f"api.admissionregistration.v1.{kind}") == {"apiVersion", "kind", "metadata", "webhooks"}
    assert fields(f"api.admissionregistration.v1.{webhook}") == (
        CHANGES.keys() - {"reinvocationPolicy"} | mutating | {"clientConfig"}
    )
    assert fields("api.admissionregistration.v1.WebhookClientConfig") == {"caBundle", "service", "url"}
    assert fields("api.admissionregistration.v1.ServiceReference") == set(SERVICE_CHANGES)
    assert (
        fields("apimachinery.pkg.apis.meta.v1.ObjectMeta") == METADATA_CHANGES.keys() | SET_BY_THE_API_SERVER
    )


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        pytest.param(kind, field, id=f"{kind}-{field}")
        for kind in KINDS
        for field in FIELDS
        if kind.startswith("Mutating") or field != "webhooks.reinvocationPolicy"
    ],
)
def test_it_may_change_no_field_but_the_bundle(
    plane: ControlPlane, running: Installed, kind: str, field: str
) -> None:
    path, patch = KINDS[kind], FIELDS[field]
    if field == "webhooks.sideEffects":  # v1 knows two values
        (other,) = {"None", "NoneOnDryRun"} - {first(plane, kind)["sideEffects"]}
        patch = pointer(*WEBHOOK_0, "sideEffects", value=other)
    answer = accepted(plane.client().patch(path, patch, DRY, content_type=JSON_PATCH))
    assert changeable(answer) != changeable(plane.client().get(path)[1]), "this changes something"

    assert ONLY_BUNDLE in Attempt("PATCH", path, patch, JSON_PATCH).by(running, CONTROLLER)


def changeable(configuration: JSON) -> list[Any]:
    metadata = configuration["metadata"]
    return [configuration["webhooks"], *(metadata.get(field) for field in METADATA_CHANGES)]


def first(plane: ControlPlane, kind: str) -> JSON:
    return dict(plane.client().get(KINDS[kind])[1]["webhooks"][0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "how", ["added", "removed", "all-removed", "in-another-order", "with-the-bundle", "applied"]
)
def test_it_may_not_change_which_webhooks_there_are(
    plane: ControlPlane, running: Installed, kind: str, how: str
) -> None:
    own = first(plane, kind)
    other = {**own, "name": "other.gpu-admission.dev"}
    rules = pointer(*WEBHOOK_0, "rules", value=CHANGES["rules"])
    bundle = pointer(*WEBHOOK_0, "clientConfig", "caBundle", value=own["clientConfig"]["caBundle"])
    move = {"op": "move", "from": "/webhooks/0", "path": "/webhooks/-"}
    version = "admissionregistration.k8s.io/v1"
    named = {"apiVersion": version, "kind": kind, "metadata": {"name": "zz-gpu-admission"}}
    patches: dict[str, tuple[Any, str]] = {
        "added": (pointer("webhooks", "-", value=other), JSON_PATCH),
        "removed": ([{"op": "remove", "path": "/webhooks/0"}], JSON_PATCH),
        "all-removed": ({"webhooks": None}, MERGE_PATCH),
        "in-another-order": ([*pointer("webhooks", "-", value=other), move], JSON_PATCH),
        "with-the-bundle": ([*bundle, *rules], JSON_PATCH),
        "applied": ({**named, "webhooks": [{**own, "rules": CHANGES["rules"]}]}, APPLY_PATCH),
    }
    body, content_type = patches[how]
    query = {"fieldManager": "x", "force": "true"} if content_type == APPLY_PATCH else None

    assert ONLY_BUNDLE in Attempt("PATCH", KINDS[kind], body, content_type, query).by(running, CONTROLLER)


# ---- Its own work


def test_it_rotates_and_sends_canaries(plane: ControlPlane, running: Installed) -> None:
    def authority() -> str:
        return str(plane.client().get(f"{SECRETS}/{SERVED}")[1]["data"]["ca.crt"])

    before = authority()
    requested = {"metadata": {"annotations": {"gpu-admission.dev/rotate": "ca"}}}
    assert plane.client().patch(f"{SECRETS}/{AUTHORITY}", requested)[0] == 200

    assert eventually(lambda: authority() != before), plane.logs(CONTROLLER)
    assert eventually(lambda: set(bundles(plane)) == {authority()}), plane.logs(CONTROLLER)
    begun = time.time()

    def succeeded() -> bool:
        lines = running.metrics(9444).splitlines()  # without the metric before the first canary
        shown = [each for each in lines if each.startswith("gpu_admission_canary_last_success_timestamp")]
        return any(float(line.split()[-1]) > begun for line in shown)

    assert eventually(succeeded), plane.logs(CONTROLLER)
    for name in (SERVED, AUTHORITY):
        assert plane.client().delete(f"{SECRETS}/{name}")[0] == 200
    for name in (SERVED, AUTHORITY):
        assert is_there(plane, f"{SECRETS}/{name}"), plane.logs(CONTROLLER)
    assert "may create no" not in plane.logs(CONTROLLER)


@pytest.mark.parametrize("name", ["gpu-admission-controller", "gpu-admission-limit-ranges"])
def test_the_api_server_finds_no_mistake_in_the_policy(
    plane: ControlPlane, running: Installed, name: str
) -> None:
    del running
    path = f"{REGISTRATION}/validatingadmissionpolicies/{name}"

    def status() -> JSON:
        return dict(plane.client().get(path)[1].get("status", {}))

    assert eventually(lambda: "observedGeneration" in status())
    assert "expressionWarnings" not in status().get("typeChecking", {})


def bundles(plane: ControlPlane) -> Iterator[str]:
    for path in KINDS.values():
        for webhook in plane.client().get(path)[1]["webhooks"]:
            yield webhook["clientConfig"]["caBundle"]
