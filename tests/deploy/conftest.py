import pytest

from tests.deploy.helm_needed import need_helm


@pytest.fixture(scope="session")
def rendering() -> None:
    need_helm()
