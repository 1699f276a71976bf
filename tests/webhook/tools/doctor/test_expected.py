"""What doctor holds installations against is what deploy/ has; UPDATE_EXPECTED=1 writes it again."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from webhook.tools.doctor.checks.configurations import ExpectedObjects, crd_digest, expected_objects

ROOT = Path(__file__).parents[4]
KEPT = ROOT / "webhook" / "tools" / "doctor" / "expected.json"


def manifests() -> list[dict[str, Any]]:
    """Return what deploy/static/strict makes of the rendered manifests: its patches set fields of webhooks by their names."""
    static = ROOT / "deploy" / "static"
    rendered = [static / "crds" / "crds.yaml", static / "first-install" / "install.yaml"]
    documents = [document for path in rendered for document in yaml.safe_load_all(path.read_text())]
    entries = {entry["name"]: entry for document in documents for entry in document.get("webhooks", ())}
    overlay = yaml.safe_load((static / "strict" / "kustomization.yaml").read_text())
    for patch in (yaml.safe_load(each["patch"]) for each in overlay["patches"]):
        for entry in patch.get("webhooks", ()):
            entries[entry["name"]].update(entry)
    return documents


def expected_of(documents: Iterable[Mapping[str, Any]]) -> ExpectedObjects:
    configurations: dict[str, dict[str, Any]] = {}
    crds = {}
    for document in documents:
        if document["kind"].endswith("WebhookConfiguration"):
            configurations[f"{document['kind'].lower()}s"] = {
                webhook["name"]: {
                    **{key: value for key, value in webhook.items() if key != "clientConfig"},
                    "path": webhook["clientConfig"]["service"]["path"],
                }
                for webhook in document["webhooks"]
            }
        elif document["kind"] == "CustomResourceDefinition":
            crds[document["metadata"]["name"]] = crd_digest(document)
    return ExpectedObjects(configurations=configurations, crds=crds)


def test_expected_is_what_deploy_has() -> None:
    found = expected_of(manifests())
    text = msgspec.json.format(msgspec.json.encode(found, order="deterministic"), indent=1)
    if os.environ.get("UPDATE_EXPECTED"):
        KEPT.write_bytes(text + b"\n")

    assert KEPT.read_bytes() == text + b"\n", "UPDATE_EXPECTED=1 writes it again"
    assert set(found.configurations) == {"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}
    assert "gpuquotas.gpu-admission.dev" in found.crds


def test_the_namespace_of_an_installation_is_put_in() -> None:
    entries = expected_objects("ml-platform").configurations["mutatingwebhookconfigurations"]
    (expression,) = entries["pods.mutate.gpu-admission.dev"]["namespaceSelector"]["matchExpressions"]

    assert "ml-platform" in expression["values"]
    assert "gpu-admission" not in expression["values"]
