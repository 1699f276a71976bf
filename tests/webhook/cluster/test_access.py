"""What is said of a kubeconfig that cannot be used: which one, and what is wrong with it."""

import errno
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases import cases
from webhook.cluster import errors
from webhook.cluster.access import AccessError, context_namespace, load_access


def kubeconfig(user: dict[str, Any] | None = None, **cluster: Any) -> str:
    return yaml.safe_dump(
        {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": "https://127.0.0.1:9", **cluster}}],
            "users": [{"name": "it", "user": user or {}}],
        }
    )


EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
YAML, FILES = "must be a kubeconfig in YAML", "a certificate, key or token of it cannot be used"


@cases(
    ("text", "want"),
    a_list=("- a\n", YAML),
    no_yaml=("a: [\n", YAML),
    a_word=("garbage\n", YAML),
    bytes_of_no_text=("\udcff\udcfe", YAML),
    an_alias_of_itself=("&a [*a]", YAML),
    two_documents=("a: 1\n---\nb: 2\n", YAML),
    nothing=("", "Invalid kube-config. {} file is empty"),
    no_context=("x: 1\n", "has no current-context: name one with --context"),
    contexts_of_words=("{contexts: [a], current-context: a}", YAML),
    a_current_context_that_is_not_there=(
        "{current-context: prod, contexts: [{name: a}, {name: b}]}",
        'context not found: "prod": must be one of a, b',
    ),
    no_contexts=("{current-context: prod}", 'context not found: "prod": it has none'),
    a_context_without_a_cluster=(
        "{current-context: a, contexts: [{name: a, context: {cluster: c}}]}",
        'cluster not found: "c": it has none',
    ),
    a_context_that_names_no_cluster=(
        kubeconfig().replace("cluster: it", "namespace: it"),
        'cluster not found: "": must be one of it',
    ),
    a_user_that_is_not_there=(
        kubeconfig().replace("users:\n- name: it", "users:\n- name: me"),
        'user not found: "it": must be one of me',
    ),
    a_user_that_is_a_word=(kubeconfig().replace("user: {}", "user: me"), YAML),
    no_token_file=(kubeconfig({"tokenFile": "/nowhere"}), "/nowhere: No such file or directory"),
    no_address=(kubeconfig(server="ftp://it"), "the server of the cluster must be an https:// address"),
    an_address_that_is_a_number=(
        kubeconfig(server=7),
        "the server of the cluster must be an https:// address",
    ),
    an_address_without_a_host=(
        kubeconfig(server="https://"),
        "the server of the cluster must be an https:// address",
    ),
    an_address_that_does_not_end=(
        kubeconfig(server="https://[::"),
        "the server of the cluster must be an https:// address",
    ),
    an_address_with_a_port_above_65535=(
        kubeconfig(server="https://it:99999"),
        "the server of the cluster must be an https:// address",
    ),
    no_authority=(
        kubeconfig({}, **{"certificate-authority": "/nowhere/ca.pem"}),
        "File does not exist: /nowhere/ca.pem",
    ),
    an_authority_that_is_none=(kubeconfig({}, **{"certificate-authority-data": "aGVsbG8="}), FILES),
    a_certificate_that_is_none=(
        kubeconfig({"client-certificate-data": "aGVsbG8=", "client-key-data": "aGVsbG8="}),
        FILES,
    ),
    a_plugin_that_is_not_installed=(
        kubeconfig({"exec": {**EXEC, "command": "no-such-plugin"}}),
        'no credentials for user "it": no-such-plugin is not on PATH',
    ),
    a_plugin_that_fails=(
        kubeconfig({"exec": {**EXEC, "command": "sh", "args": ["-c", "echo log in; exit 3"]}}),
        'no credentials for user "it": sh gave none',
    ),
    a_provider_that_is_gone=(
        kubeconfig({"auth-provider": {"name": "azure"}}),
        'no credentials for user "it": its auth-provider gave none',
    ),
)
def test_a_kubeconfig_that_cannot_be_used(tmp_path: Path, text: str, want: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(AccessError) as refused:
        load_access(str(path))

    assert str(refused.value) == f"kubeconfig {path}: {want.format(path)}"


@cases(
    ("name", "want"),
    that_is_not_there=("nowhere", "No such file or directory"),
    that_is_a_folder=(".", "Is a directory"),
    that_links_to_itself=("loop", "No such file or directory"),
)
def test_a_path(tmp_path: Path, name: str, want: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(AccessError) as refused:
        load_access(str(tmp_path / name))

    assert str(refused.value) == f"kubeconfig {tmp_path / name}: {want}"


def test_of_several_files_the_wrong_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, wrong = tmp_path / "good", tmp_path / "wrong"
    good.write_text(kubeconfig())
    wrong.write_text("garbage")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'nowhere'}:{good}")
    assert load_access().url == "https://127.0.0.1:9"

    monkeypatch.setenv("KUBECONFIG", f"{good}:{wrong}")
    with pytest.raises(AccessError) as refused:
        load_access()

    assert str(refused.value) == f"kubeconfig {wrong}: {YAML}"


def test_a_kubeconfig_without_a_namespace_to_work_in(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("- a\n")

    with pytest.raises(AccessError) as refused:
        context_namespace(str(path))

    assert str(refused.value) == f"kubeconfig {path}: must be a kubeconfig in YAML"


def test_no_access_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", "/nowhere")

    with pytest.raises(AccessError) as refused:
        load_access()

    assert str(refused.value) == "kubeconfig /nowhere/.kube/config: No such file or directory"


def test_a_pod_without_a_service_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")

    with pytest.raises(AccessError) as refused:
        load_access()

    assert str(refused.value) == "the service account of the pod: Service token file does not exist."


@cases(
    ("failure", "want"),
    of_a_file_without_a_name=(
        OSError(errno.EIO, "Input/output error"),
        "a file that it names: Input/output error",
    ),
    of_the_package=(ValueError("<object>"), "a certificate, key or token of it cannot be used"),
)
def test_credentials_that_cannot_be_read(
    tmp_path: Path, failure: Exception, want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig())
    access = load_access(str(path))

    def fail(_configuration: object) -> None:
        raise failure

    monkeypatch.setattr(access._configuration, "refresh_api_key_hook", fail)
    with pytest.raises(errors.Unauthorized) as refused:
        access.authorization()

    assert str(refused.value) == f"the credentials cannot be read: {want}"
