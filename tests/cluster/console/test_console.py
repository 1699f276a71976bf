"""The console in a real Chromium, on a real API server: what it shows to whom, and that other pages get nothing."""

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.cluster.console.conftest import FIRST_PAGE, WAIT, Address, served
from tests.cluster.console.world import HOME, QUOTAS
from tests.controlplane import ControlPlane

Consoles = Callable[[str], Address]

pytestmark = pytest.mark.slow  # a browser, and pages that are read again every five seconds

STRANGERS = sorted(set(QUOTAS) - {HOME})
PAGES = ["/", f"/quotas/{HOME}", "/denials", "/why", f"/why?object=job/whisper-finetune&namespace={HOME}"]

CONTRAST = """() => {
  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
      .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest("svg, .hidden, .skip")) continue;
    const pair = [getComputedStyle(element).color, behind(element)].map(luminance).sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) found.push(`${element.textContent.trim()}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""
"""Text whose contrast is below 4.5 (WCAG 2.2, 1.4.3, level AA), with the formula of its relative luminance."""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Return a page that fails the test for anything that its console complains about, such as the CSP."""
    complaints: list[str] = []
    context = browser.new_context()
    context.set_default_timeout(WAIT)
    context.set_default_navigation_timeout(FIRST_PAGE)
    opened = context.new_page()
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    context.close()
    assert complaints == []


def test_an_administrator_sees_every_quota_and_what_is_wrong(page: Page, consoles: Consoles) -> None:
    page.goto(consoles("admin") + "/?sort=by+namespace")

    assert page.locator("#quotas a.name").all_inner_texts() == sorted(QUOTAS)
    page.goto(consoles("admin"))
    assert sorted(page.locator("#quotas a.name").all_inner_texts()[:3]) == ["speech", "students", "vision"]
    expect(page.locator("#quotas tr", has_text="students")).to_contain_text("2 of 2")
    expect(page.locator("#classes")).to_contain_text("nvidia-h100-80gb")
    expect(page.locator("#denials")).to_contain_text("Job/sweep")
    expect(page.locator("#live")).to_contain_text("gpu-prod")


def test_a_tenant_sees_his_namespace_and_nothing_else(page: Page, consoles: Consoles) -> None:
    for path in PAGES:
        page.goto(consoles("tenant") + path)
        assert [name for name in STRANGERS if name in page.content()] == [], path
    for path in ("/why?object=job/llama-eval&namespace=foundation", "/quotas/foundation"):
        page.goto(consoles("tenant") + path)
        assert "nvidia-h100" not in page.content(), path
        assert "llama-pretrain" not in page.content(), path

    page.goto(consoles("tenant"))
    assert page.locator("#quotas a.name").all_inner_texts() == [HOME]
    expect(page.locator("#tiles")).to_contain_text("free of 62")
    expect(page.locator("#nodes-from")).to_contain_text("as the controller counted them at ")
    page.goto(consoles("tenant") + "/why?object=job/llama-eval&namespace=foundation")
    expect(page.locator("#answer")).to_contain_text('User "tenant" cannot get resource "jobs"')


@contextmanager
def foreign_page() -> Iterator[Address]:
    """Serve an empty page of somebody else, on another port of this machine."""

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Write nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


READ = """async ([address, mode]) => {
  try {
    const answer = await fetch(address, { mode });
    return `${answer.type} ${answer.status} ${await answer.text()}`;
  } catch (error) {
    return String(error);
  }
}"""
FRAMED = """async (address) => {
  const frame = document.body.appendChild(document.createElement("iframe"));
  const loaded = new Promise((resolve) => frame.onload = resolve);
  frame.src = address;
  await loaded;
  try { return frame.contentDocument ? frame.contentDocument.body.innerText : "nothing"; } catch { return "nothing"; }
}"""
LOADED = """(address) => new Promise((resolve) => {
  const script = document.createElement("script");
  script.onload = () => resolve("loaded");
  script.onerror = () => resolve("refused");
  script.src = address;
  document.head.append(script);
})"""


def test_a_foreign_origin_gets_nothing(browser: Browser, consoles: Consoles) -> None:
    admin = consoles("admin")
    with foreign_page() as stranger:
        context = browser.new_context()
        foreign = context.new_page()
        foreign.goto(stranger)

        assert foreign.evaluate(READ, [admin, "cors"]) == "TypeError: Failed to fetch"
        # The browser itself withholds it (Cross-Origin-Resource-Policy), and the answer was a refusal.
        assert foreign.evaluate(READ, [admin, "no-cors"]) == "TypeError: Failed to fetch"
        assert foreign.evaluate(FRAMED, f"{admin}/quotas/students") == "nothing"
        assert foreign.evaluate(LOADED, f"{admin}/static/console.js") == "refused"
        with foreign.expect_navigation():
            foreign.evaluate("(address) => { location.href = address; }", admin)
        assert "open" in foreign.inner_text("body")
        assert not any(name in foreign.content() for name in QUOTAS)
        context.close()


def test_why_leads_from_a_denial_to_its_reason(page: Page, consoles: Consoles) -> None:
    page.goto(consoles("admin") + "/denials")
    waits = "With it, the quota has no room now: needs 2 GPUs; students has 0 of 2 free"
    expect(page.locator("section.denied", has_text="Job/sweep")).to_contain_text(waits)
    page.get_by_role("link", name="Job/sweep").click()

    expect(page.locator("h1")).to_have_text("Job/sweep")
    expect(page.locator("#answer")).to_contain_text("can never fit")
    expect(page.locator(".minus")).to_contain_text("nvidia.com/gpu: '4'")
    expect(page.locator(".plus").first).to_contain_text("nvidia.com/gpu: 2")
    expect(page.locator("#answer")).to_contain_text(waits)


@pytest.mark.parametrize(
    ("requested", "want"),
    [
        pytest.param("job/nothing", "not found", id="an-object-that-is-not-there"),
        pytest.param("gizmo/train", 'no namespaced kind "gizmo"', id="a-kind-that-is-not-served"),
        pytest.param("train", "must be KIND/NAME", id="a-name-without-a-kind"),
        pytest.param("<script>alert(1)</script>/x", "no namespaced kind", id="markup"),
    ],
)
def test_why_says_what_it_was_not_told(page: Page, consoles: Consoles, requested: str, want: str) -> None:
    page.goto(consoles("admin") + "/why")
    page.fill("#object", requested)
    page.fill("#namespace", "students")
    page.keyboard.press("Enter")

    expect(page.locator("#answer [role=status]")).to_contain_text(want)
    expect(page.locator("#object")).to_have_value(requested)


def test_every_page_is_reached_by_keys(page: Page, consoles: Consoles) -> None:
    page.goto(consoles("admin"))
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("2")
    page.wait_for_url("**/denials")  # loaded: its script listens
    expect(page.locator("h1")).to_have_text("Denials")
    page.keyboard.press("3")
    page.wait_for_url("**/why")
    page.keyboard.press("/")
    expect(page.locator("#object")).to_be_focused()
    page.keyboard.type("2")
    expect(page.locator("#object")).to_have_value("2")
    page.goto(consoles("admin"))
    for _ in range(60):  # past the tile of denials, and what stands before the quotas
        page.keyboard.press("j")
        if page.evaluate("document.activeElement.matches('#quotas a.name')"):
            break
    page.keyboard.press("Enter")
    expect(page.locator("h1 .crumb").first).to_have_text("Quotas")


@pytest.mark.parametrize("scripts", [True, False])
def test_quotas_are_searched_and_sorted_with_and_without_scripts(
    browser: Browser, consoles: Consoles, scripts: bool
) -> None:
    context = browser.new_context(java_script_enabled=scripts)
    page, names = context.new_page(), "#quotas a.name"
    page.goto(
        consoles("admin") + "/?sort=most+GPUs+first"
    )  # with a few quotas there is no form until it was used
    expect(page.locator(names)).to_have_count(len(QUOTAS))
    expect(page.locator(names).first).to_have_text("foundation")
    page.fill("#search", "whisper")
    page.get_by_role("button", name="Show").click()
    expect(page.locator(names)).to_have_text([HOME])
    page.fill("#search", "")
    page.get_by_label("Only problems").check()
    if not scripts:
        page.get_by_role("button", name="Show").click()
    expect(page.locator(names).first).to_be_visible()
    expect(page.get_by_label("Only problems")).to_be_checked()
    expect(page.locator("#quotas")).not_to_contain_text("recsys")
    context.close()


def test_a_page_that_stays_open_shows_what_changes(page: Page, consoles: Consoles) -> None:
    page.clock.install()
    page.goto(consoles("admin"))
    page.locator("#quotas a.name").first.focus()
    shown = page.locator("#live time").inner_text()
    page.clock.fast_forward(6_000)
    # Real time goes on for the console, which reads every five seconds.
    for _ in range(60):
        if page.locator("#live time").inner_text() != shown:
            break
        page.wait_for_timeout(500)
        page.clock.fast_forward(6_000)

    assert page.locator("#live time").inner_text() != shown
    expect(page.locator("#quotas a.name").first).to_be_focused()


def test_a_page_says_that_the_console_has_stopped(browser: Browser, working: ControlPlane) -> None:
    page = browser.new_page()
    page.clock.install()
    with served(working, "tenant") as address:
        page.goto(address)
    page.clock.fast_forward(6_000)

    expect(page.locator("#live")).to_have_text("the console has stopped")
    expect(page.locator("#quotas a.name")).to_have_text(HOME)
    page.close()


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1400, "light")])
def test_a_page_fits_and_can_be_read(browser: Browser, consoles: Consoles, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    for path in [
        *PAGES,
        "/?problems=1",
        "/why?namespace=students",
        "/why?object=job/sweep&namespace=students",
    ]:
        page.goto(consoles("admin") + path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert page.evaluate(CONTRAST) == [], path
    context.close()
