"""Only the browser of this machine, asked by its user or by our own pages, gets an answer."""

import flask
import pytest
from werkzeug.test import TestResponse

from tests.cases import cases
from webhook.tools.console.guard import guard

HERE = {"Host": "127.0.0.1:7080"}
SECRET = "what the cluster holds"
NO_HOST = "Host must be 127.0.0.1 or localhost"
NO_ORIGIN = "requests of other origins are refused"
NO_SITE = "open http://127.0.0.1:7080/ from the address bar: links and requests of other pages are refused"


def answer(headers: dict[str, str], method: str = "GET") -> tuple[int, str, TestResponse]:
    app = flask.Flask("guarded", static_folder=None)
    app.add_url_rule("/", "page", lambda: SECRET, methods=["GET", "POST"])
    guard(app)
    response = app.test_client().open("/", method=method, headers=headers)
    return response.status_code, response.get_data(as_text=True), response


@cases(
    "headers",
    a_client_without_a_browser=HERE,
    by_name={"Host": "localhost:7080"},
    through_a_tunnel={"Host": "localhost:9000", "Origin": "http://localhost:9000"},
    ipv6={"Host": "[::1]:7080"},
    typed_into_the_address_bar={**HERE, "Sec-Fetch-Site": "none"},
    our_own_page=({**HERE, "Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:7080"}),
)
def test_the_user_and_our_own_pages_get_the_page(headers: dict[str, str]) -> None:
    assert answer(headers)[:2] == (200, SECRET)


@cases(
    ("headers", "want"),
    a_rebound_name=({"Host": "evil.example:7080"}, NO_HOST),
    a_name_like_an_address=({"Host": "127.0.0.1.evil.example"}, NO_HOST),
    an_address_of_the_network=({"Host": "10.0.0.5:7080"}, NO_HOST),
    no_host=({"Host": ""}, NO_HOST),
    half_an_address=({"Host": "[::1"}, NO_HOST),
    foreign=({**HERE, "Origin": "https://evil.example"}, NO_ORIGIN),
    a_sandboxed_frame=({**HERE, "Origin": "null"}, NO_ORIGIN),
    another_port_of_this_machine=({**HERE, "Origin": "http://127.0.0.1:3000"}, NO_ORIGIN),
    another_scheme=({**HERE, "Origin": "https://127.0.0.1:7080"}, NO_ORIGIN),
    an_image_or_a_frame_in_another_page=({**HERE, "Sec-Fetch-Site": "cross-site"}, NO_SITE),
    another_server_of_this_machine=({**HERE, "Sec-Fetch-Site": "same-site"}, NO_SITE),
)
def test_other_pages_get_nothing(headers: dict[str, str], want: str) -> None:
    status, text, response = answer(headers)

    assert (status, text) == (403, f"{want}\n")
    assert response.mimetype == "text/plain"
    assert "Access-Control-Allow-Origin" not in response.headers


def test_nothing_is_changed_through_it() -> None:
    status, text, _ = answer(HERE, "POST")

    assert (status, text) == (405, "the console only reads: the method must be GET or HEAD\n")


@pytest.mark.parametrize("headers", [HERE, {"Host": "evil.example"}], ids=["answered", "refused"])
def test_every_answer_says_what_browsers_may_do_with_it(headers: dict[str, str]) -> None:
    sent = answer(headers)[2].headers

    assert sent["Content-Security-Policy"] == (
        "default-src 'none'; connect-src 'self'; img-src 'self'; script-src 'self'; style-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    assert sent["Cross-Origin-Resource-Policy"] == "same-origin"
    assert sent["X-Content-Type-Options"] == "nosniff"
    assert sent["Cache-Control"] == "no-store"
