"""What the values say of pods, ports, selectors and callers stands in every object that it concerns."""

import json
import re
from typing import Any

import pytest
import yaml

from tests.cases import cases
from tests.controlplane import helm
from tests.deploy.manifests import arguments, of_kind, pods, rendered, template, webhooks

pytestmark = pytest.mark.usefixtures("rendering")
POD_VALUES = """
{podLabels: {a: b}, podAnnotations: {c: d}, serviceAccount: {annotations: {role: gpus}}, hostNetwork: true,
 podSecurityContext: {fsGroup: 7}, securityContext: {readOnlyRootFilesystem: null},
 extraEnv: [{name: TZ, value: UTC}], extraVolumes: [{name: x, emptyDir: {}}], extraVolumeMounts: [{name: x, mountPath: /x}]}
"""


@pytest.mark.parametrize("component", ["webhook", "controller"])
def test_what_the_values_say_of_pods_stands_in_them(component: str) -> None:
    documents = rendered("--set-json", f"{component}={json.dumps(yaml.safe_load(POD_VALUES))}")
    (template_of,) = (
        each["spec"]["template"]
        for each in of_kind("Deployment", documents)
        if each["metadata"]["name"].endswith(component)
    )
    accounts = {
        each["metadata"]["name"]: each["metadata"].get("annotations")
        for each in of_kind("ServiceAccount", documents)
        if "helm.sh/hook" not in each["metadata"].get("annotations", {})
    }
    pod = template_of["spec"]
    (container,) = pod["containers"]

    assert accounts.pop(f"gpu-admission-{component}") == {"role": "gpus"}
    assert set(accounts.values()) == {None}
    assert template_of["metadata"]["labels"]["a"] == "b"
    assert template_of["metadata"]["annotations"] == {"c": "d"}
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        "fsGroup": 7,
    }
    assert "readOnlyRootFilesystem" not in container["securityContext"]
    assert container["env"] == [{"name": "TZ", "value": "UTC"}]
    assert {"name": "x", "emptyDir": {}} in pod["volumes"]
    assert {"name": "x", "mountPath": "/x"} in container["volumeMounts"]


def test_ports_of_pods_are_the_same_wherever_they_stand() -> None:
    ports = "webhook.port=10250,webhook.metricsPort=10251,controller.port=10252"
    documents = rendered("--set", f"{ports},webhook.dnsPolicy=Default")
    found = pods(documents)
    allowed = {
        each["metadata"]["name"].removeprefix("gpu-admission-"): [
            port["port"] for rule in each["spec"]["ingress"] for port in rule["ports"]
        ]
        for each in of_kind("NetworkPolicy", documents)
    }
    targets = {
        each["metadata"]["name"]: [port["targetPort"] for port in each["spec"]["ports"]]
        for each in of_kind("Service", documents)
    }

    for name, want in {"webhook": [10250, 10251], "controller": [10252]}.items():
        (container,) = found[name]["containers"]
        assert [port["containerPort"] for port in container["ports"]] == allowed[name] == want
    assert {"--port=10250", "--metrics-port=10251"} < set(arguments(documents, "webhook"))
    assert "--port=10252" in arguments(documents, "controller")
    assert targets == {
        "gpu-admission": [10250],
        "gpu-admission-webhook-metrics": [10251],
        "gpu-admission-controller-metrics": [10252],
    }
    assert (found["webhook"]["dnsPolicy"], "dnsPolicy" in found["controller"]) == ("Default", False)


def test_by_default_no_pod_has_a_user_of_its_own() -> None:
    found = pods(rendered())

    assert [pod["securityContext"]["runAsNonRoot"] for pod in found.values()] == [True, True]
    assert not [key for key in ("runAsUser", "runAsGroup", "fsGroup") if key in str(found)]


def test_an_autoscaler_alone_sets_the_replicas() -> None:
    documents = rendered("--set", "webhook.autoscaling.enabled=true,webhook.autoscaling.maxReplicas=9")
    (autoscaler,) = of_kind("HorizontalPodAutoscaler", documents)
    replicas = {d["metadata"]["name"]: d["spec"].get("replicas") for d in of_kind("Deployment", documents)}

    assert autoscaler["spec"]["scaleTargetRef"]["name"] == "gpu-admission-webhook"
    assert (autoscaler["spec"]["minReplicas"], autoscaler["spec"]["maxReplicas"]) == (2, 9)
    assert replicas == {"gpu-admission-webhook": None, "gpu-admission-controller": 2}
    assert not of_kind("HorizontalPodAutoscaler", rendered())


def test_a_cluster_that_opts_in_by_labels() -> None:
    expression = {"key": "team", "operator": "Exists"}
    selectors = {
        "namespaceSelector": {"matchLabels": {"gpus": "checked"}, "matchExpressions": [expression]},
        "objectSelector": {"matchLabels": {"queue": "gpus"}},
    }
    documents = rendered("--set-json", f"webhooks={json.dumps(selectors)}")
    (canary,) = (d for d in of_kind("Namespace", documents) if d["metadata"]["name"].endswith("canary"))

    assert canary["metadata"]["labels"]["gpus"] == "checked"
    for webhook in webhooks(documents):
        if webhook["name"] == "documents.validate.gpu-admission.dev":
            assert not {"namespaceSelector", "objectSelector"} & webhook.keys()
            continue
        assert webhook["namespaceSelector"]["matchLabels"] == {"gpus": "checked"}
        excluded, added = webhook["namespaceSelector"]["matchExpressions"]
        assert (excluded["operator"], added) == ("NotIn", expression)
        assert webhook["objectSelector"] == {"matchLabels": {"queue": "gpus"}}


NEVER = {"matchConditions": "never", "namespaceSelector": {"matchLabels": {"gpus": "reviewed"}}}


def test_without_conditions_only_for_new_pods() -> None:
    """A change of a stored pod is reviewed only if it concerns its placement, whatever the values say."""
    found, usual = (
        {entry["name"]: "matchConditions" in entry for entry in webhooks(documents)}
        for documents in (rendered("--set-json", f"webhooks={json.dumps(NEVER)}"), rendered())
    )

    new_pods = {"pods.mutate.gpu-admission.dev", "pods.validate.gpu-admission.dev"}
    assert {name for name, has in usual.items() if has != found[name]} == new_pods
    assert not any(found[name] for name in new_pods)


def test_without_conditions_namespaces_must_be_chosen() -> None:
    want = "webhooks.matchConditions: never needs webhooks.namespaceSelector"
    with pytest.raises(helm.HelmFailed, match=re.escape(want)):
        template("--set", "webhooks.matchConditions=never")


KNOWN = "webhook.clientAuthentication."


@cases(
    ("source", "volume"),
    config_map=("caConfigMap", {"configMap": {"name": "callers"}}),
    secret=("caSecret", {"secret": {"secretName": "callers"}}),
)
def test_known_callers_are_those_of_the_values(source: str, volume: dict[str, Any]) -> None:
    documents = rendered("--set", f"{KNOWN}{source}=callers,{KNOWN}names={{kube-apiserver,spiffe://a/b}}")
    webhook = pods(documents)["webhook"]
    (container,) = webhook["containers"]
    (mounted,) = [each for each in webhook["volumes"] if each["name"] == "client-ca"]

    assert [argument for argument in container["args"] if argument.startswith("--client")] == [
        "--client-ca=/etc/gpu-admission/client-ca/ca.crt",
        "--client-name=kube-apiserver",
        "--client-name=spiffe://a/b",
    ]
    assert {"name": "client-ca", "mountPath": "/etc/gpu-admission/client-ca", "readOnly": True} in container[
        "volumeMounts"
    ], "not by subPath, which kubelet never updates"
    assert mounted == {
        "name": "client-ca",
        **{kind: {**named, "items": [{"key": "ca.crt", "path": "ca.crt"}]} for kind, named in volume.items()},
    }
    assert "client-ca" not in str(pods(documents)["controller"])


def test_callers_are_not_asked_for_a_certificate_unless_values_say_so() -> None:
    assert "client" not in str(pods(rendered()))


@cases(
    ("values", "want"),
    any_certificate=(f"{KNOWN}caSecret=a", f"{KNOWN}names: must name the callers"),
    no_authority=(f"{KNOWN}names={{a}}", "names need the authority"),
    two_authorities=(
        f"{KNOWN}caSecret=a,{KNOWN}caConfigMap=b,{KNOWN}names={{a}}",
        "set one of caConfigMap and caSecret",
    ),
)
def test_known_callers_need_one_authority_and_names(values: str, want: str) -> None:
    with pytest.raises(helm.HelmFailed, match=re.escape(want)):
        template("--set", values)
