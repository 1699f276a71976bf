"""What is said of a kubeconfig that cannot be used: which one, and what is wrong with it."""

import errno
from pathlib import Path

import pytest
import yaml

from tests.cases import cases
from webhook.cluster import errors
from webhook.cluster.access import AccessError, context_namespace, load_access


def kubeconfig(user: dict[str, str] | None = None, **cluster: str) -> str:
    return yaml.safe_dump(
        {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": "https://127.0.0.1:9", **cluster}}],
            "users": [{"name": "it", "user": user or {}}],
        }
    )


@cases(
    ("text", "want"),
    a_list=("- a\n", "kubeconfig {}: must be a kubeconfig in YAML"),
    no_yaml=("a: [\n", "kubeconfig {}: must be a kubeconfig in YAML"),
    no_context=("x: 1\n", "kubeconfig {}: Invalid kube-config file. Expected key current-context in {}"),
    no_token_file=(
        kubeconfig({"tokenFile": "/nowhere"}),
        "kubeconfig {}: /nowhere: No such file or directory",
    ),
    no_address=(
        kubeconfig(server="ftp://it"),
        "kubeconfig {}: the server of the cluster must be an https:// address",
    ),
)
def test_a_kubeconfig_that_cannot_be_used(tmp_path: Path, text: str, want: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)

    with pytest.raises(AccessError) as refused:
        load_access(str(path))

    assert str(refused.value) == want.format(path, path)


def test_a_kubeconfig_without_a_namespace_to_work_in(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("- a\n")

    with pytest.raises(AccessError) as refused:
        context_namespace(str(path))

    assert str(refused.value) == f"kubeconfig {path}: must be a kubeconfig in YAML"


def test_no_access_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", "/nowhere")

    with pytest.raises(AccessError) as refused:
        load_access()

    assert str(refused.value) == (
        "no pod's service account, and kubectl's kubeconfig: Invalid kube-config file. No configuration found."
    )


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
