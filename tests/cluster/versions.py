"""What older versions of Kubernetes lack. docs/develop/development.md lists the reasons."""

import pytest

from tests.controlplane import minor_version


def since(minor: int, why: str) -> pytest.MarkDecorator:
    """Skip a test before Kubernetes 1.`minor`, because of `why`."""
    return pytest.mark.skipif(minor_version() < minor, reason=f"before Kubernetes 1.{minor}: {why}")
