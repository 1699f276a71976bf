"""Settings of all tests."""

import os

from hypothesis import settings

# CI judges this change, not the luck of its draw; everywhere else each run looks at new examples.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
