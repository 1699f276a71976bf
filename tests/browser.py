"""The machine's own Chromium, headless, for tests of pages. GPU_ADMISSION_REQUIRE_BROWSER=1 makes its absence a failure."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start it, and end it with the block; without one the test is skipped."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        lacking = f"no Chromium: none of {', '.join(NAMES)} is installed"
        if os.environ.get("GPU_ADMISSION_REQUIRE_BROWSER") == "1":
            pytest.fail(f"GPU_ADMISSION_REQUIRE_BROWSER=1: {lacking}", pytrace=False)
        pytest.skip(lacking)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        try:
            yield browser
        finally:
            browser.close()
