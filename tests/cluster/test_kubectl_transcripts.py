"""What kubectl prints, whole, of our documents: mistyped, with numbers for amounts, listed and explained."""

import json
import re
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest
import yaml

from tests.cases import cases
from tests.cluster.configuration import install_configuration_kinds, register_reviews, unregister_reviews
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import install_quota_kind
from tests.controlplane.webhook import Webhook
from webhook.configuration.documents import Document
from webhook.configuration.yaml_documents import YamlDocument, load_documents

NAMESPACE = "transcripts"
LONG = {"maxPerPod": {f"example.com/accelerator-{number}": number for number in range(60)}}
"""Makes a policy as long as real ones are."""
AGE = re.compile(r"\d+m?\d*s$", re.MULTILINE)


@pytest.fixture(scope="module")
def reviewed(plane: ControlPlane) -> Iterator[ControlPlane]:
    install_configuration_kinds(plane)
    install_quota_kind(plane.client())
    plane.client().post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    with Webhook(plane, host=41, arguments=("--kubeconfig", plane.kubeconfig())) as webhook:
        register_reviews(plane, webhook)
        yield plane
        unregister_reviews(plane)


def applied(plane: ControlPlane, document: Document) -> str:
    done = plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(document.data), check=False)
    return done.stdout + done.stderr


def listed(plane: ControlPlane, *arguments: str) -> str:
    return AGE.sub("AGE", plane.kubectl("get", *arguments).stdout)


def text(block: str) -> str:
    return dedent(block).lstrip("\n")


def quota(hard: Any) -> Document:
    return Document("GPUQuota", "default", {"hard": hard}, NAMESPACE)


def test_a_typo_in_a_stored_policy(reviewed: ControlPlane) -> None:
    """Of a field that the schema does not know kubectl would print the whole patch, of this policy 5,000 characters."""
    stored = Document("GPUPolicy", "transcript", {"rules": {"gpu-requests": LONG}})
    mistyped = {"prio": 3, "rules": {"gpu-request": LONG, "gpu-class": {"alowed": ["*"]}}}

    assert applied(reviewed, stored) == "gpupolicy.gpu-admission.dev/transcript created\n"
    for name in ("transcript", "created-again"):
        assert applied(reviewed, Document("GPUPolicy", name, mistyped)) == (
            f'The GPUPolicy "{name}" is invalid: \n'
            "* spec.prio: unknown field; did you mean priority?\n"
            "* spec.rules.gpu-class.alowed: unknown field; did you mean allowed?\n"
            '* spec.rules.gpu-request: unknown rule "gpu-request"; did you mean gpu-requests?\n'
        )
    assert applied(reviewed, stored) == "gpupolicy.gpu-admission.dev/transcript unchanged\n"
    reviewed.kubectl("delete", "gpup", "transcript")


def test_a_number_of_gpus(reviewed: ControlPlane) -> None:
    kubectl = ["gpuq", "-n", NAMESPACE]

    assert applied(reviewed, quota({"gpus": 16, "classes": {"nvidia-t4": 4}})) == (
        "gpuquota.gpu-admission.dev/default created\n"
    )
    assert listed(reviewed, *kubectl) == text("""
        NAME      USED   RESERVED   WAITING   HARD   STATUS   COUNTED   AGE
        default                               16                        AGE
        """)
    assert applied(reviewed, quota({"gpus": "16", "classes": {"nvidia-t4": 2}})) == (
        "gpuquota.gpu-admission.dev/default configured\n"
    )
    assert listed(reviewed, *kubectl, "-o", "wide") == text("""
        NAME      USED   RESERVED   WAITING   HARD   STATUS   COUNTED   HARD CLASSES      HARD RESOURCES   ALL USED   GPU-HOURS USED   GPU-HOURS   UNCLASSIFIED   IDLE   AGE
        default                               16                        {"nvidia-t4":2}                                                                                  AGE
        """)  # noqa: E501  - one line of kubectl
    assert applied(reviewed, quota({"gpu": 16, "classes": {"nvidia-t4": 2}})) == (
        'The GPUQuota "default" is invalid: spec.hard.gpu: unknown field; did you mean gpus?\n'
    )
    reviewed.kubectl("delete", *kubectl, "default")


HEAD = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: read-by-kubectl}\n"


@cases(
    "text",
    in_a_map=HEAD + "data: {key: first, other: x, key: last}\n",
    maps_that_are_not_merged=HEAD + "data: {key: first}\ndata: {another: last}\n",
    json=(
        '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "read-by-kubectl"}, '
        '"data": {"key": "first", "key": "last"}}'
    ),
)
def test_of_duplicate_keys_the_last_one_counts(plane: ControlPlane, text: str) -> None:
    """In `check` likewise."""
    done = plane.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=text)

    (document,) = load_documents(text)
    assert isinstance(document, YamlDocument)
    assert len(document.duplicates) == 1
    assert json.loads(done.stdout)["data"] == document.data["data"]
