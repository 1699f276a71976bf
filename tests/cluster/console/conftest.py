"""One cluster at work and one browser for all tests of the console; each test has contexts, and so cookies, of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
from playwright.sync_api import Browser, expect

from tests.browser import chromium
from tests.cluster.console.world import HOME, world
from tests.controlplane import ControlPlane
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.tools.console.app import console_server

Address = str
WAIT = 30_000
"""Milliseconds; a page is answered in some tens, and is read again every five seconds."""
FIRST_PAGE = 120_000
"""Milliseconds; the first page waits for doctor's checks, of which each may wait for a busy API server."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        expect.set_options(timeout=WAIT)
        yield running


@pytest.fixture(scope="package")
def working(browser: Browser) -> Iterator[ControlPlane]:  # noqa: ARG001 - without a browser no cluster is needed
    with world() as plane:
        yield plane


@contextmanager
def served(plane: ControlPlane, user: str) -> Iterator[Address]:
    """Serve the console as that user, from this process."""
    api = ApiClient(load_access(str(plane.kubeconfig(user))))
    server = console_server(api, cluster="gpu-prod", home=HOME)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join(30)


@pytest.fixture(scope="package")
def consoles(working: ControlPlane) -> Iterator[Callable[[str], Address]]:
    """Return the address of a user's console."""
    with served(working, "admin") as admin, served(working, "tenant") as tenant:
        yield {"admin": admin, "tenant": tenant}.__getitem__
