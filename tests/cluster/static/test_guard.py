"""What nobody can switch off: policies in files of the API server, and their guard over what is stored."""

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs.files import ensure_self_signed
from tests.builders import JSON, container, gpu_container, pod
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.exported import ALL
from tests.cluster.static.files import (
    API_SERVER_ITSELF,
    CA_INJECTOR,
    CONTROLLER,
    POLICY,
    RELOADED_WITHIN,
    export,
    reading,
    written,
)
from tests.controlplane import ControlPlane, accepted, minor_version
from tests.controlplane.gpuquota import install_kinds
from tests.controlplane.webhook import CONFIGURATION_PATHS, SERVER_NAME, manifests
from webhook.configuration.documents import Document
from webhook.tools.export.admission_policies import ADMISSION_GROUP

pytestmark = pytest.mark.skipif(
    minor_version() < 37, reason="API servers read policies from files since 1.37"
)

REGISTRATION = f"/apis/{ADMISSION_GROUP}/v1"
STORED = f"{REGISTRATION}/validatingadmissionpolicies/gpu-admission.default.gpu-requests"
STORED_BINDING = f"{REGISTRATION}/validatingadmissionpolicybindings/gpu-admission.default.gpu-requests"
EXPORTED_LABELS = f"{REGISTRATION}/mutatingadmissionpolicies/gpu-admission.default.gpu-toleration"
EXPORTED_BINDING = f"{REGISTRATION}/mutatingadmissionpolicybindings/gpu-admission.default.gpu-toleration"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpupolicies.gpu-admission.dev"
SERVED = "/apis/apiregistration.k8s.io/v1/apiservices"
API = "/apis/gpu-admission.dev/v1alpha1"
DOCUMENTS = {
    "gpuclasses": Document("GPUClass", "guarded", {"memoryGiB": 16}),
    "gpuresourcemappings": Document("GPUResourceMapping", "guarded", {"ignoredResources": ["example.com/x"]}),
}
PROTECTED = (
    *CONFIGURATION_PATHS,
    STORED,
    STORED_BINDING,
    EXPORTED_LABELS,
    EXPORTED_BINDING,
    f"{API}/gpupolicies/default",
    f"{API}/gpuclasses/guarded",
    f"{API}/gpuresourcemappings/guarded",
    CRD,
)
REFUSED = (
    "only release or a member of group breakers may change it, not admin: the guard of gpu-admission, a file of the API server, "
    "protects it"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("guard"))


@pytest.fixture(scope="module")
def plane(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    authority = tmp_path_factory.mktemp("certificates")
    ensure_self_signed(authority, [SERVER_NAME], datetime.now(UTC))
    with reading(directory) as plane:
        install_kinds(plane.client("release"), "gpupolicies", *DOCUMENTS)
        for document in manifests(plane.service_address(), authority / "ca.crt"):
            accepted(plane.client("release").apply(document)[:2])
        plane.kubectl("apply", "-f", "-", stdin=export("--config", directory.parent / "documents").stdout)
        plane.kubectl("apply", "-f", "-", stdin=POLICY, user="release")
        for plural, guarded in DOCUMENTS.items():
            accepted(plane.client("release").post(f"{API}/{plural}", guarded.data))
        yield plane


@pytest.mark.parametrize("user", ["admin", API_SERVER_ITSELF])
@pytest.mark.parametrize("path", PROTECTED)
def test_a_cluster_admin_may_not_change_it(plane: ControlPlane, path: str, user: str) -> None:
    client = plane.client(user)
    stored = client.get(path)[1]
    label = {"metadata": {"labels": {"a": "b"}}}

    answers = {
        "delete": client.delete(path, query={"dryRun": "All"}),
        "patch": client.patch(path, label, {"dryRun": "All"}),
        "replace": client.put(
            path, {**stored, "metadata": {**stored["metadata"], **label["metadata"]}}, {"dryRun": "All"}
        ),
    }

    assert {verb: status for verb, (status, _) in answers.items()} == dict.fromkeys(answers, 403)
    assert all(REFUSED.replace("admin", user) in answer["message"] for _, answer in answers.values())


@pytest.mark.parametrize("account", [CONTROLLER, CA_INJECTOR])
@pytest.mark.parametrize("path", CONFIGURATION_PATHS)
@cases(
    "change",
    no_rules={"rules": []},
    failures_are_ignored={"failurePolicy": "Ignore"},
    only_some_namespaces={"namespaceSelector": {"matchLabels": {"a": "b"}}},
)
def test_who_issues_certificates_may_renew_bundles_and_nothing_else(
    plane: ControlPlane, path: str, account: str, change: JSON
) -> None:
    client = plane.client(account)
    stored = client.get(path)[1]
    hooks = [
        {**each, "clientConfig": {**each["clientConfig"], "caBundle": None}} for each in stored["webhooks"]
    ]
    changed = [{**stored["webhooks"][0], **change}, *stored["webhooks"][1:]]

    renewed = client.put(path, {**stored, "webhooks": hooks}, {"dryRun": "All"})
    refused = client.put(path, {**stored, "webhooks": changed}, {"dryRun": "All"})

    assert renewed[0] == 200, renewed
    assert (refused[0], f"not {account}: the guard" in refused[1]["message"]) == (403, True)


@pytest.mark.parametrize("collection", sorted({path.rpartition("/")[0] for path in PROTECTED}))
def test_a_collection_is_refused_too(plane: ControlPlane, collection: str) -> None:
    status, answer = plane.client().delete(collection)

    assert (status, REFUSED in answer["message"]) == (403, True)


def test_a_server_side_apply_is_refused_too(plane: ControlPlane) -> None:
    named = {"name": "zz-gpu-admission", "labels": {"a": "b"}}
    configuration = {
        "apiVersion": f"{ADMISSION_GROUP}/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": named,
    }

    status, answer, _ = plane.client().apply(configuration)

    assert (status, REFUSED in answer["message"]) == (403, True)


def test_a_kind_cannot_be_taken_away_by_its_status(plane: ControlPlane) -> None:
    ending = {"type": "Terminating", "status": "True", "reason": "Mine", "message": "Mine"}

    status, answer = plane.client().patch(f"{CRD}/status", {"status": {"conditions": [ending]}})

    assert (status, REFUSED in answer["message"]) == (403, True)


@cases(
    "name",
    of_our_documents="v1alpha1.gpu-admission.dev",
    of_webhooks_and_policies="v1.admissionregistration.k8s.io",
    of_kinds="v1.apiextensions.k8s.io",
    of_pods="v1.",
    of_claims="v1.resource.k8s.io",
)
def test_no_other_server_may_serve_what_the_webhook_depends_on(plane: ControlPlane, name: str) -> None:
    path, client = f"{SERVED}/{name}", plane.client()
    spec = {"service": {"namespace": "default", "name": "mine"}, "insecureSkipTLSVerify": True}
    new = {**accepted(client.get(path)), "metadata": {"name": f"v9.{name.partition('.')[2]}"}}

    answers = {
        "patch": client.patch(path, {"spec": spec}),
        "delete": client.delete(path),
        "create": client.post(SERVED, {**new, "spec": {**new["spec"], **spec, "version": "v9"}}),
    }

    # Of the core group, the API server takes no version but v1.
    statuses = {"patch": 403, "delete": 403, "create": 422 if name == "v1." else 403}
    assert {verb: status for verb, (status, _) in answers.items()} == statuses
    assert all(REFUSED in answer["message"] for status, answer in answers.values() if status == 403)


NEW_POLICY = {
    "priority": 9,
    "match": {"namespaces": ["mine"]},
    "rules": {"gpu-isolation": {"mode": "disabled"}},
}


@cases(
    ("plural", "document"),
    a_policy_that_takes_namespaces_from_the_others=("gpupolicies", Document("GPUPolicy", "mine", NEW_POLICY)),
    a_class=("gpuclasses", Document("GPUClass", "mine", DOCUMENTS["gpuclasses"].data["spec"])),
    a_mapping=("gpuresourcemappings", Document("GPUResourceMapping", "mine", {})),
)
def test_new_documents_are_refused(plane: ControlPlane, plural: str, document: Document) -> None:
    status, answer = plane.client().post(f"{API}/{plural}", document.data)

    assert (status, REFUSED in answer["message"]) == (403, True)


@pytest.mark.parametrize("user", ["release", "breaker"])
@pytest.mark.parametrize("path", PROTECTED)
def test_named_accounts_may(plane: ControlPlane, path: str, user: str) -> None:
    assert plane.client(user).delete(path, query={"dryRun": "All"})[0] == 200


def test_objects_of_others_are_not_guarded(plane: ControlPlane) -> None:
    other = {
        "apiVersion": f"{ADMISSION_GROUP}/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "others"},
    }
    client, path = plane.client(), f"{REGISTRATION}/validatingwebhookconfigurations"

    assert client.post(path, other)[0] == 201
    assert client.delete(f"{path}/others")[0] == 200


def test_the_check_finds_what_the_api_server_has_loaded(plane: ControlPlane, directory: Path) -> None:
    documents = ("--config", directory.parent / "documents")
    accounts = ("--release-account", "release", "--break-glass-group", "breakers")
    of_cluster = ("--kubeconfig", plane.kubeconfig(), "--check", directory, *accounts)

    same = export(*of_cluster)
    other = export(*of_cluster, "--exclude-namespace", "mine")
    alone = export(*documents, "--check", directory, *accounts)

    assert (alone.exit_code, other.exit_code) == (0, 1)
    # It has loaded the folder, which another export would change.
    assert other.stdout.count(": export again with the same options: ") == 2
    assert " of API server " not in other.stdout
    # The stored GPUPolicy is the one in the directory, but for what the cluster's webhook excludes.
    assert "asked API server sha256:" in same.stderr


def test_shape_rules_hold_when_everything_else_is_gone(plane: ControlPlane) -> None:
    for path in PROTECTED:
        assert plane.client("breaker").delete(path)[0] == 200
    plane.client().apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})

    def create(document: JSON) -> tuple[int, JSON]:
        path = "/api/v1/namespaces/team/pods"
        return plane.client().post(path, {**document, "metadata": {"name": "p"}}, {"dryRun": "All"})

    assert eventually(lambda: create(pod(container()))[0] == 201, seconds=30)
    seeing, too_many = create(pod(container(env=[ALL]))), create(pod(gpu_container("9")))
    status, admitted = create(pod(gpu_container()))

    assert (seeing[0], too_many[0], status) == (403, 403, 201)
    assert 'env[0] (container "main") = "all": request nvidia.com/gpu: 1' in seeing[1]["message"]
    assert "must be at most 8 per pod by policy" in too_many[1]["message"]
    assert "nvidia.com/gpu" in [each.get("key") for each in admitted["spec"]["tolerations"]]


def test_a_policy_that_blocks_too_much_is_taken_out_as_the_readme_says(
    plane: ControlPlane, directory: Path
) -> None:
    client, file = plane.client(), directory / "validating/gpu-admission.yaml"
    client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "blocked"}})
    for path in (*CONFIGURATION_PATHS, STORED_BINDING.rpartition("/")[0]):
        plane.client("breaker").delete(path)

    def is_admitted(document: JSON) -> bool:
        metadata = {"name": "p", "namespace": "blocked"}
        path = "/api/v1/namespaces/blocked/pods"
        return client.post(path, {**document, "metadata": metadata}, {"dryRun": "All"})[0] == 201

    many, seeing = pod(gpu_container("9")), pod(container(env=[ALL]))
    assert (is_admitted(many), is_admitted(seeing)) == (False, False)

    documents = file.read_text().split("---\n")
    left = [each for each in documents if "name: gpu-admission.default.gpu-requests" not in each]
    assert len(left) == len(documents) - 2, "the policy, and its binding"
    file.with_name(".left").write_text("---\n".join(left))
    file.with_name(".left").replace(file)
    assert eventually(lambda: is_admitted(many), seconds=RELOADED_WITHIN)
    assert not is_admitted(seeing)

    subprocess.run(["mv", "validating/gpu-admission.yaml", directory.parent], cwd=directory, check=True)
    assert eventually(lambda: is_admitted(seeing), seconds=RELOADED_WITHIN)
