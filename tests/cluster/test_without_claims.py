"""An API server that serves no ResourceClaims, as every one before 1.34 by default: quotas are counted from pods alone."""

import pytest

from tests.cluster.controllers import Running, eventually, is_ready, uses
from tests.controlplane import ControlPlane, claims_api
from tests.controlplane.gpuquota import Namespace, install_quota_kind

pytestmark = pytest.mark.slow


def test_a_quota_is_counted_where_no_claims_are_served() -> None:
    with ControlPlane(claims=False) as plane:
        install_quota_kind(plane.client())
        assert plane.client().get(claims_api())[0] == 404
        with Running(plane):
            team = Namespace(plane)
            team.pod("train", 2)
            team.quota({"gpus": "8"})

            assert uses(team, 2)
            assert eventually(lambda: is_ready(team))
