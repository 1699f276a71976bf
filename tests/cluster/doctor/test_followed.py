"""What doctor says to do is done on a real installation, literally, and then it does not say it again."""

from contextlib import ExitStack

import yaml
from click.testing import CliRunner

from tests.builders import JSON
from tests.cluster.applying import apply
from tests.cluster.controllers import eventually
from tests.cluster.doctor.faults import API, MUTATING, created, patched, policy
from tests.cluster.doctor.installation import Installation
from tests.cluster.versions import since
from webhook.commands.export import export

OUTDATED = "exported-policies-outdated"


def exported(installation: Installation) -> list[JSON]:
    kubeconfig = str(installation.plane.kubeconfig())
    written = CliRunner().invoke(export, ["--kubeconfig", kubeconfig])
    assert written.exit_code == 0, written.stderr
    return [each for each in yaml.safe_load_all(written.stdout) if each]


@since(36, "MutatingAdmissionPolicies are not served")
def test_policies_are_exported_again_after_a_change(installation: Installation) -> None:
    versioned = {
        "apiVersion": "gpu-admission.dev/v1alpha1",
        **policy(rules={"gpu-isolation": {"mode": "enforce"}}),
    }
    with ExitStack() as repairs:
        created(f"{API}/gpupolicies", versioned)(installation, repairs)
        for each in exported(installation):
            kind = each["kind"].lower()
            plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
            created(f"/apis/{each['apiVersion']}/{plural}", each)(installation, repairs)
        assert OUTDATED not in installation.findings()
        changed = {**versioned, "spec": {"rules": {"gpu-isolation": {"mode": "warn"}}}}
        assert apply(installation.plane, changed)[0]

        found = installation.findings()[OUTDATED]
        assert found["remedy"] == "run gpu-admission export again, and apply what it writes"
        for each in exported(installation):
            assert apply(installation.plane, each) == (True, "")

        assert OUTDATED not in installation.findings()
    assert eventually(lambda: installation.run()[1]["healthy"]), installation.text()


def test_an_entry_of_another_version_is_removed(installation: Installation) -> None:
    name = "pods.example.com"
    entry = {**installation.client.get(MUTATING)[1]["webhooks"][0], "name": name}
    with ExitStack() as repairs:
        patched(MUTATING, ("add", "/webhooks/-", entry))(installation, repairs)

        found = installation.findings()["entry-unknown"]
        assert name in found["object"]
        assert "is unknown to version " in found["message"]
        assert found["message"].endswith(": remove it")
    assert installation.run()[1]["healthy"], installation.text()


def test_the_namespace_of_a_gpu_operator_is_excluded(installation: Installation) -> None:
    said = (
        "pods of gpu-operator that request GPUs are reviewed, and start only while the webhook answers: name it in "
        "webhooks.excludedNamespaces of the chart where only administrators create pods in it"
    )

    def notes() -> list[str]:
        return [note for check in installation.run()[1]["checks"] for note in check["notes"]]

    with ExitStack() as repairs:
        namespace: JSON = {"metadata": {"name": "gpu-operator"}, "spec": {"finalizers": []}}
        # No controller removes the finalizer of a deleted namespace here.
        finalize = "/api/v1/namespaces/gpu-operator/finalize"
        repairs.callback(installation.client.put, finalize, namespace)
        created("/api/v1/namespaces", {"metadata": {"name": "gpu-operator"}})(installation, repairs)
        assert said in notes()
        at = "/webhooks/0/namespaceSelector/matchExpressions/0/values/-"
        patched(MUTATING, ("add", at, "gpu-operator"))(installation, repairs)

        assert said not in notes()
