"""Instant queries over TLS, and every way in which Prometheus cannot be asked."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request
from webhook.prometheus import client
from webhook.prometheus.client import Prometheus, PrometheusError, Sample

TOKEN = "s3cr3t"
AT = datetime(2026, 11, 26, 18, tzinfo=UTC)


def vector(*series: tuple[dict[str, str], str]) -> Answer:
    result = [{"metric": labels, "value": [1.5, value]} for labels, value in series]
    return data("vector", result)


def data(kind: str, result: object) -> Answer:
    return Answer(json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode())


def asked(
    folder: Path,
    answer: Callable[[Request], Answer],
    path: str = "",
    token: str | None = TOKEN,
    timeout: float = 5.0,
) -> tuple[list[Sample], Request]:
    """Return what one query gets, and the request. The server's address in an error becomes `HOST`."""
    (folder / "token").write_text(token or "")
    with ApiServer(folder, answer) as server:
        token_file = folder / "token" if token is not None else None
        prometheus = Prometheus(server.url + path, token_file, folder / "ca.pem", timeout)
        try:
            return prometheus.query("up == 1", AT), server.requests[-1]
        except PrometheusError as error:
            raise PrometheusError(
                str(error).replace(server.url, "HOST").replace(str(folder), "DIR")
            ) from None


def test_a_query_is_a_form_with_the_token_below_the_path_of_the_url(tmp_path: Path) -> None:
    series = (({"pod": "a"}, "0.5"), ({"pod": "b"}, "+Inf"))
    found, request = asked(tmp_path, lambda _: vector(*series), "/prometheus/")

    assert found == [Sample({"pod": "a"}, 0.5), Sample({"pod": "b"}, float("inf"))]
    assert (request.method, request.path) == ("POST", "/prometheus/api/v1/query")
    assert parse_qs(request.body.decode()) == {"query": ["up == 1"], "time": [str(AT.timestamp())]}
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"


def test_no_token_is_sent_without_a_file(tmp_path: Path) -> None:
    _, request = asked(tmp_path, lambda _: vector(), token=None)

    assert "Authorization" not in request.headers


def test_a_token_that_is_rotated_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with ApiServer(tmp_path, lambda _: vector()) as server:
        prometheus = Prometheus(server.url, file, tmp_path / "ca.pem")
        for token in ("first\n", "second\n"):
            file.write_text(token)
            prometheus.query("up")

        assert [each.headers["Authorization"] for each in server.requests] == [
            "Bearer first",
            "Bearer second",
        ]


REFUSED = Answer(b'{"status":"error","errorType":"bad_data","error":"parse error\\u001b[31m at char 4"}', 400)


@cases(
    ("answer", "want"),
    a_refused_query=(REFUSED, "refused the query (HTTP 400): parse error�[31m at char 4"),
    a_page_of_a_proxy=(Answer(b"<html>", 502), "answered HTTP 502 without JSON of Prometheus"),
    a_redirect=(
        Answer(b"", 302, {"Location": "https://other.example.com/"}),
        "answered HTTP 302 without JSON of Prometheus",
    ),
    other_json=(Answer(b'{"kind":"Status"}', 403), "refused the query (HTTP 403): without a reason"),
    a_scalar=(data("scalar", [1.5, "1"]), "answered a scalar that is not a vector of numbers"),
    no_number=(vector(({}, "many")), "answered a vector that is not a vector of numbers"),
)
def test_an_answer_that_is_not_a_vector(answer: Answer, want: str, tmp_path: Path) -> None:
    with pytest.raises(PrometheusError) as raised:
        asked(tmp_path, lambda _: answer)

    assert str(raised.value) == f"Prometheus at HOST {want}"


def test_an_answer_that_is_too_long_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LONGEST_ANSWER", 2 << 20)
    pieces = [b" " * (1 << 20)] * 4
    with pytest.raises(PrometheusError, match=r"^Prometheus at HOST answered more than 2 MiB$"):
        asked(tmp_path, lambda _: Answer(stream=pieces))


def test_one_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(PrometheusError) as raised:
        asked(tmp_path, lambda _: Answer(cut=True))
    assert str(raised.value) == "Prometheus at HOST closed the connection"

    # The text is the same each time: it is logged, and shown in statuses, only when it changes.
    away = Prometheus("http://user.invalid:1", timeout=1.0)
    texts = set[str]()
    for _ in range(3):
        with pytest.raises(PrometheusError) as raised:
            away.query("up")
        texts.add(str(raised.value))
    (text,) = texts
    assert text == "Prometheus at http://user.invalid:1 has a name that cannot be resolved"


def test_an_authority_that_did_not_sign_is_not_trusted(tmp_path: Path) -> None:
    with ApiServer(tmp_path, lambda _: vector()) as server, pytest.raises(PrometheusError) as raised:
        Prometheus(server.url).query("up")
    assert not server.requests
    assert str(raised.value) == (
        f"Prometheus at {server.url} has a certificate that is not accepted: its authority is not the one that is trusted "
        "here"
    )


@cases(
    ("content", "want"),
    nothing=("", "needs the token of DIR/token, which must be one line that is not empty"),
    two_lines=("a\nb", "needs the token of DIR/token, which must be one line that is not empty"),
    other_letters=("schlüssel", "needs the token of DIR/token, which cannot be read: it is not ASCII"),
)
def test_a_file_without_a_token(content: str, want: str, tmp_path: Path) -> None:
    with pytest.raises(PrometheusError) as raised:
        asked(tmp_path, lambda _: vector(), token=content)

    assert str(raised.value) == f"Prometheus at HOST {want}"


@cases(
    ("token", "authorities", "want"),
    no_token=("missing", None, "the token of DIR/missing, which cannot be read: No such file or directory"),
    no_authorities=(
        None,
        "missing",
        "the authorities of DIR/missing, which cannot be read: No such file or directory",
    ),
    no_certificates=(
        None,
        "empty",
        "the authorities of DIR/empty, which cannot be read: it must hold certificates in PEM",
    ),
)
def test_files_that_cannot_be_used(
    token: str | None, authorities: str | None, want: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").write_text("")
    token_file, authorities_file = (
        None if name is None else tmp_path / name for name in (token, authorities)
    )
    client = Prometheus("https://p:1", token_file, authorities_file)

    with pytest.raises(PrometheusError) as raised:
        client.query("up")

    assert str(raised.value) == f"Prometheus at https://p:1 needs {want.replace('DIR', str(tmp_path))}"


UNUSABLE = "the URL of Prometheus must be such as https://prometheus.monitoring:9090"
CREDENTIALS = "the URL of Prometheus must have no user name, password, query or fragment: put credentials into a token file"


@cases(
    ("url", "want"),
    no_scheme=("prometheus:9090", UNUSABLE),
    no_host=("https://", UNUSABLE),
    a_file=("file:///etc/passwd", UNUSABLE),
    no_port=("https://prometheus:many", UNUSABLE),
    a_password=(f"https://me:{TOKEN}@prometheus", CREDENTIALS),
    a_query=("https://prometheus/?tenant=a", CREDENTIALS),
)
def test_a_url_that_cannot_be_used(url: str, want: str) -> None:
    with pytest.raises(PrometheusError) as raised:
        Prometheus(url)

    assert str(raised.value) == want
