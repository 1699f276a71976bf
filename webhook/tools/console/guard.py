"""Who gets an answer: the browser of this machine, asked by its user or by the console's own pages; everything else gets nothing.

A page of somebody else can send requests to a port of loopback, and by DNS rebinding even read the answers, because the browser
then takes both for one origin. Such requests name the other page: in Host, in Origin, or in Sec-Fetch-Site (W3C Fetch Metadata).
"""

import ipaddress
from urllib.parse import urlsplit

import flask

METHODS = ("GET", "HEAD")
OWN_SITES = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site: a request of our own page, and one that the user made (address bar, bookmark)."""

HEADERS = {
    "Content-Security-Policy": "; ".join(
        [
            "default-src 'none'",
            *(f"{kind}-src 'self'" for kind in ("connect", "img", "script", "style")),
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        ]
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def guard(app: flask.Flask) -> None:
    """Have the application refuse whatever did not come from its own pages or its user, and send HEADERS with every answer."""

    @app.before_request
    def refuse() -> flask.Response | None:
        refusal = _refusal(flask.request)
        if refusal is None:
            return None
        status, sentence = refusal
        return flask.Response(f"{sentence}\n", status, mimetype="text/plain")

    @app.after_request
    def protect(response: flask.Response) -> flask.Response:
        response.headers.update(HEADERS)
        return response


def _refusal(request: flask.Request) -> tuple[int, str] | None:
    if not _is_loopback(request.host):
        return 403, "Host must be 127.0.0.1 or localhost"
    if request.headers.get("Origin", origin := f"http://{request.host}") != origin:
        return 403, "requests of other origins are refused"
    if request.headers.get("Sec-Fetch-Site", "none") not in OWN_SITES:
        return 403, f"open {origin}/ from the address bar: links and requests of other pages are refused"
    if request.method not in METHODS:
        return 405, "the console only reads: the method must be GET or HEAD"
    return None


def _is_loopback(host: str) -> bool:
    """Whether the text of a Host header names this machine; the port may belong to a tunnel."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
