"""What keeps `gpu-admission serve` from serving; what it serves: tests/webhook/serving/ and tests/cluster/."""

from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from webhook.commands import serve
from webhook.commands.options import ClusterChoice
from webhook.server.settings import StartupError


def test_without_a_usable_cluster(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    with pytest.raises(StartupError) as error:
        serve._client(ClusterChoice(str(nowhere), None))

    assert str(error.value) == (
        f"no cluster to work with: kubeconfig {nowhere}: No such file or directory; "
        "name one with --kubeconfig, or serve without one: --standalone"
    )


def test_documents_that_are_not_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.yaml").write_text(
        "apiVersion: gpu-admission.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: default}\nspec: {rule: {}}\n"
    )
    monkeypatch.setattr(serve, "REGISTRY", CollectorRegistry())
    serving = cast(Any, None)
    with pytest.raises(StartupError) as error:
        serve.build(tmp_path, "", None, None, "fetcher", serving, lambda: False)

    assert str(error.value) == (
        f"the configuration in {tmp_path} cannot be used:\n"
        "p.yaml:4: GPUPolicy/default spec.rule: unknown field; did you mean rules?"
    )
