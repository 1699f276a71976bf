import pytest

pytest.register_assert_rewrite("tests.webhook.tools.installed_clusters")
