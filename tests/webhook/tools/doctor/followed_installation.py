"""What checks of the installation see, what doctor says to do then, and what they see once it is done."""

from tests.builders import JSON
from tests.webhook.tools.doctor.followed import FOLLOWED, MAPPINGS, Row, document
from tests.webhook.tools.doctor.objects import LEADS, MUTATING, NAMESPACES, engine, namespace
from webhook.tools.doctor.checks.configurations import expected_objects

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
PODS, RESTORE = "pods.mutate.gpu-admission.dev", "pods.restore.gpu-admission.dev"
DEPLOYMENT = "/apis/apps/v1/namespaces/gpu-admission/deployments/gpu-admission-webhook"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/gpu-admission/networkpolicies"
LABELS = {"app.kubernetes.io/name": "gpu-admission", "app.kubernetes.io/component": "webhook"}
CONTROL_PLANE = {"from": [{"ipBlock": {"cidr": "10.0.0.0/28"}}], "ports": [{"port": 8443, "protocol": "TCP"}]}
KIND = {"group": "example.com", "kind": "TrainingJob", "pods": [{"path": "spec.template"}]}
EXTRA = {
    "apiGroups": ["example.com"],
    "apiVersions": ["*"],
    "resources": ["trainingjobs"],
    "operations": ["CREATE", "UPDATE"],
    "scope": "Namespaced",
}


def configuration(kind: str, changed: str, **fields: object) -> JSON:
    """Return a configuration of this version, with other fields of one webhook."""
    expected = expected_objects().configurations[f"{kind}webhookconfigurations"]
    entries = [
        {**meant, "name": name, **(fields if name == changed else {})} for name, meant in expected.items()
    ]
    return {f"{REGISTRATION}/{kind}webhookconfigurations/zz-gpu-admission": {"webhooks": entries}}


def excluded(*names: str) -> JSON:
    expression = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(names)}
    return configuration("mutating", PODS, namespaceSelector={"matchExpressions": [expression]})


def workload_kinds(*extra: JSON) -> JSON:
    name = "custom-workloads.validate.gpu-admission.dev"
    built_in = expected_objects().configurations["validatingwebhookconfigurations"][name]["rules"]
    return {
        **configuration("validating", name, rules=[*built_in, *extra]),
        MAPPINGS: [document({"workloadKinds": [KIND]})],
    }


def called_by(*flags: str, ingress: JSON | None = None) -> JSON:
    spec = {"containers": [{"name": "webhook", "args": ["serve", *flags]}]}
    rule = {"podSelector": {"matchLabels": LABELS}, "ingress": [ingress]}
    return {
        DEPLOYMENT: {"spec": {"template": {"metadata": {"labels": LABELS}, "spec": spec}}},
        POLICIES: [{"metadata": {"name": "gpu-admission-webhook"}, "spec": rule}] if ingress else [],
    }


def controller(account: str) -> JSON:
    spec = {"serviceAccountName": account, "containers": [{"name": "controller", "args": []}]}
    metadata = {"name": "controller", "namespace": "gpu-admission"}
    return {
        "/apis/apps/v1/deployments": [{"metadata": metadata, "spec": {"template": {"spec": spec}}}],
    }


FOLLOWED_INSTALLATION = {
    "an old API server": Row(
        "kubernetes-version",
        {"/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.4"}},
        "upgrade Kubernetes to 1.35 or newer",
        ({"/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"}},),
    ),
    "no controller": Row(
        "controller",
        {},
        "start the controller: kubectl -n gpu-admission logs deployment/gpu-admission-controller",
        (LEADS,),
    ),
    "a controller that the webhook does not know": Row(
        "controller-user",
        controller("builder"),
        "run it in gpu-admission with serviceAccountName: gpu-admission-controller, without --kubeconfig",
        (controller("gpu-admission-controller"),),
    ),
    "a webhook of updates that fails closed": Row(
        "entries",
        configuration("mutating", RESTORE, failurePolicy="Fail"),
        "set failurePolicy: Ignore for it",
        (configuration("mutating", RESTORE, failurePolicy="Ignore"),),
    ),
    "a long timeout": Row(
        "entries",
        configuration("mutating", PODS, timeoutSeconds=20),
        "set timeoutSeconds: 5",
        (configuration("mutating", PODS, timeoutSeconds=5),),
    ),
    "its own namespace": Row(
        "entries",
        excluded("kube-system", "kube-node-lease"),
        "add gpu-admission to the values of its namespaceSelector",
        (excluded("kube-system", "kube-node-lease", "gpu-admission"),),
    ),
    "a kind of workloads that is not sent": Row(
        "workload-kinds",
        workload_kinds(),
        "add {apiGroup: example.com, resources: [trainingjobs]} to webhooks.extraWorkloads of the chart",
        (workload_kinds(EXTRA),),
    ),
    "a webhook that reviews ledgers": Row(
        "ledger-webhooks",
        {MUTATING: engine(), NAMESPACES: [namespace("gpu-admission")]},
        "exclude namespace gpu-admission in its namespaceSelector, or in the settings of what writes that",
        ({MUTATING: engine("NotIn"), NAMESPACES: [namespace("gpu-admission")]},),
    ),
    "callers that nobody knows": Row(
        "callers",
        called_by(),
        "set webhook.clientAuthentication, or networkPolicy.webhookFrom where kube-apiserver cannot be configured; see "
        "docs/operate/security.md",
        (called_by("--client-ca=/ca.crt", "--client-name=a"), called_by(ingress=CONTROL_PLANE)),
    ),
}

ALL_FOLLOWED = {**FOLLOWED, **FOLLOWED_INSTALLATION}
"""Those of the cluster, too."""
