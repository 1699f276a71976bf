import pytest

pytest.register_assert_rewrite("tests.webhook.tools.doctor.clusters")
