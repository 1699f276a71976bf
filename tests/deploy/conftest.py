import pytest

from tests.deploy.helm_needed import need_helm


@pytest.fixture(scope="session")
def rendering() -> None:
    """Render the chart in this test, which needs Helm."""
    need_helm()
