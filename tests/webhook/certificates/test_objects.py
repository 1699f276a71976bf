"""Secrets and configurations whose answer cannot be read."""

from pathlib import Path

import pytest

from tests.webhook.cluster.apiserver import Answer, ApiServer
from webhook.certificates.objects import ClusterConfigurations, ClusterSecret, SecretName
from webhook.cluster import errors

WHY = "cannot be read: JSON is malformed: invalid character (byte 0)"


def test_an_answer_that_cannot_be_read_names_its_object(tmp_path: Path) -> None:
    with ApiServer(tmp_path, lambda _: Answer(b"<")) as server:
        with pytest.raises(errors.ApiError) as of_a_secret:
            ClusterSecret(server.client(), SecretName("ns", "certificates")).read()
        with pytest.raises(errors.ApiError) as of_a_configuration:
            ClusterConfigurations(server.client()).read()

    assert str(of_a_secret.value) == f"the Secret ns/certificates {WHY}"
    assert str(of_a_configuration.value) == f"the MutatingWebhookConfiguration zz-gpu-admission {WHY}"
