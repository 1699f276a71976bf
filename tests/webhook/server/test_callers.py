"""Callers that are known by a client certificate: on kept connections, resumed sessions, and while the authorities change."""

import datetime as dt
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from prometheus_client import CollectorRegistry

from tests.cases import cases
from tests.controlplane.pki import Authority
from tests.webhook.server.harness import Client, Server, certificates, new_pair, replace, request, serving
from webhook.server.callers import CallerAuthentication
from webhook.server.dispatcher import ServerMetrics
from webhook.server.http import RefusedError
from webhook.server.settings import StartupError
from webhook.server.tls import Caller, CertificateState, ServingCertificate

CALLER = "kube-apiserver-webhooks"
AUTHORITY, ANOTHER = Authority("callers"), Authority("others")
NO_CERTIFICATE = "gpu-admission takes reviews only from callers with a client certificate: see its docs/operate/security.md\n"
REFUSED_TOTAL = "gpu_admission_callers_refused_total"
SECOND = dt.timedelta(seconds=1)
VALID_FOR = 6 * SECOND
"""For certificates that are used and then expire; to use one takes some hundredths."""


def issued(folder: Path, authority: Authority = AUTHORITY, *names: str, **fields: Any) -> Path:
    path = folder / f"caller-{time.monotonic_ns()}.pem"
    path.write_bytes(authority.issue(names=names or [CALLER], **{"client": True, **fields}))
    return path


def asking(directory: Path, **settings: Any) -> dict[str, Any]:
    """Return settings with the authority of callers in a file of the directory."""
    replace(directory / "callers.crt", AUTHORITY.certificate)
    return {"client_ca": str(directory / "callers.crt"), "client_names": [CALLER], **settings}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = certificates(tmp_path_factory.mktemp("certificates"))
    with serving(directory, **asking(directory)) as running:
        yield running


# ---- who may call


@cases("names", common_name=[CALLER], dns_name=["control-plane-1", CALLER])
def test_allowed_caller_is_answered_on_every_request_of_its_connection(
    server: Server, tmp_path: Path, names: list[str]
) -> None:
    with server.client(pem=issued(tmp_path, AUTHORITY, *names)) as client:
        assert [client.post("/body", b"review").status for _ in range(3)] == [200, 200, 200]


def test_uri_name_is_a_name(tmp_path: Path, directory: Path) -> None:
    uri = "spiffe://cluster.example/kube-apiserver"
    with serving(directory, **asking(directory, client_names=[uri])) as server:
        with server.client(pem=issued(tmp_path, uris=[uri])) as client:
            assert client.post("/body").status == 200
        with server.client(pem=issued(tmp_path)) as client:
            assert client.post("/body").status == 403


@pytest.mark.parametrize(
    "path", ["/body", "/at-once?0", "/", "//healthz", "/healthz/", "/healthz/../body", "/HEALTHZ"]
)
def test_without_a_certificate_every_page_but_the_probes_is_refused(server: Server, path: str) -> None:
    with server.client() as client:
        answer = client.post(path, b"review")
        assert (answer.status, answer.body.decode()) == (403, NO_CERTIFICATE)
        assert client.is_closed(within=30)


def test_probe_needs_no_certificate(server: Server) -> None:
    with server.client() as client:
        assert [client.post("/healthz").status for _ in range(2)] == [200, 200]
        assert client.post("/body").status == 403, "a probe makes nobody a caller"


def named(*names: str) -> Caller:
    return Caller(frozenset(names), is_client=True, not_after=inf, ca_bundle=b"callers")


NOT_FOR_CLIENTS = "with a certificate that is not for clients: its extended key usage lacks clientAuth"
AGAIN = (503, "the client certificate must be verified again; try again\n")
OUTDATED = ("no longer valid", "whose client certificate is no longer valid", AGAIN)


def wrong_name(names: str) -> tuple[str, str, tuple[int, str]]:
    problem = f"with a client certificate of {names}, which --client-name does not allow"
    return "name not allowed", problem, (403, f"gpu-admission was called {problem}\n")


@cases(
    ("caller", "reason", "logged", "answer"),
    none=(None, "no certificate", "without a client certificate", (403, NO_CERTIFICATE)),
    of_authorities_that_are_gone=(named(CALLER)._replace(ca_bundle=b"others"), *OUTDATED),
    expired=(named(CALLER)._replace(not_after=0), *OUTDATED),
    whose_certificate_says_nothing_of_its_usage=(
        named(CALLER)._replace(is_client=False),
        "not for clients",
        NOT_FOR_CLIENTS,
        (403, f"gpu-admission was called {NOT_FOR_CLIENTS}\n"),
    ),
    of_another_name=(named("system:node:gpu-7"), *wrong_name("'system:node:gpu-7'")),
    in_capitals=(named(CALLER.upper()), *wrong_name("'KUBE-APISERVER-WEBHOOKS'")),
    of_a_longer_name=(named(f"{CALLER}.example.com"), *wrong_name("'kube-apiserver-webhooks.example.com'")),
    of_a_wildcard=(named("*-apiserver-webhooks"), *wrong_name("'*-apiserver-webhooks'")),
    of_many_names=(named("d", "c", "b", "a"), *wrong_name("'a', 'b', 'c'")),
    of_no_name=(named(), *wrong_name("nobody")),
)
def test_who_is_refused_reads_and_leaves_the_reason(
    caplog: pytest.LogCaptureFixture,
    caller: Caller | None,
    reason: str,
    logged: str,
    answer: tuple[int, str],
) -> None:
    registry = CollectorRegistry()
    serving: Any = SimpleNamespace(ca_bundle=b"callers")
    connection: Any = SimpleNamespace(
        caller=caller, socket=SimpleNamespace(getpeername=lambda: ("10.0.0.7", 4711))
    )

    with pytest.raises(RefusedError) as error:
        CallerAuthentication([CALLER], serving, ServerMetrics(registry)).check(connection)

    response = error.value.response
    assert (response.status, response.body.decode()) == answer
    assert caplog.messages == [f"refusing a caller: 10.0.0.7, {logged}"]
    counted = registry.collect()
    assert [
        sample.labels for family in counted for sample in family.samples if sample.name == REFUSED_TOTAL
    ] == [{"reason": reason}]


def test_certificate_that_says_nothing_of_its_usage_is_refused(server: Server, tmp_path: Path) -> None:
    """OpenSSL takes it for a client's: any certificate of the authority would do, such as a server's."""
    with server.client(pem=issued(tmp_path, client=None)) as client:
        assert client.post("/body", b"review").status == 403
        assert client.is_closed(within=30)


@cases(
    ("pem", "alert"),
    of_another_authority=(lambda folder: issued(folder, ANOTHER), "alert unknown ca"),
    expired=(lambda folder: issued(folder, lifetime=-SECOND), "alert certificate expired"),
    for_servers_only=(lambda folder: issued(folder, client=False), "alert unsupported certificate"),
)
def test_certificate_that_does_not_verify_ends_the_handshake_with_a_reason(
    server: Server, tmp_path: Path, pem: Callable[[Path], Path], alert: str
) -> None:
    with pytest.raises(ssl.SSLError, match=alert), server.client(pem=pem(tmp_path)) as client:
        client.post("/body", b"x" * 100_000)


def test_refusal_waits_for_no_body_and_holds_none(server: Server) -> None:
    with server.client() as client:
        client.send(request("/body", b"x" * 1_000_000)[:200])
        assert client.answer().status == 403


def test_refusals_are_counted_and_logged_with_the_address(directory: Path, tmp_path: Path) -> None:
    with serving(directory, **asking(directory)) as server:
        for _ in range(2):
            with server.client() as client:
                client.post("/body")
        with pytest.raises(ssl.SSLError), server.client(pem=issued(tmp_path, ANOTHER)) as client:
            client.post("/body")
        server.wait_for("whose client certificate: ")  # the client has the alert before the server counts it
        counted = [line for line in server.scrape().splitlines() if line.startswith(REFUSED_TOTAL)]
        server.stop()
        said = [line for line in server.lines if "refusing a caller" in line]
    assert counted == [
        f'{REFUSED_TOTAL}{{reason="no certificate"}} 2.0',
        f'{REFUSED_TOTAL}{{reason="not verified"}} 1.0',
    ]
    by = "WARNING:gpu_admission.server:refusing a caller: 127.0.0.1,"
    assert said == [
        f"{by} without a client certificate\n",
        f"{by} without a client certificate\n",
        f"{by} whose client certificate: unable to get local issuer certificate\n",
    ]


def test_without_the_option_nobody_is_asked_for_a_certificate(tmp_path: Path, directory: Path) -> None:
    with serving(directory) as server, server.client(pem=issued(tmp_path, ANOTHER)) as client:
        assert client.post("/body").status == 200


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_documented_commands_make_an_authority_and_a_caller(directory: Path, tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "operate" / "security.md"
    commands = re.search(r"^ +```sh\n(.*?openssl req.*?)```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert commands is not None
    subprocess.run(["bash", "-ec", commands[1]], cwd=tmp_path, check=True, capture_output=True)
    pem = tmp_path / "caller.pem"
    pem.write_bytes((tmp_path / "client.crt").read_bytes() + (tmp_path / "client.key").read_bytes())
    with (
        serving(directory, client_ca=str(tmp_path / "callers-ca.crt"), client_names=[CALLER]) as server,
        server.client(pem=pem) as client,
    ):
        assert client.post("/body").status == 200


# ---- resumed sessions

VERSIONS = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
each_version = pytest.mark.parametrize("version", VERSIONS)


def context(server: Server, version: ssl.TLSVersion, pem: Path | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=server.ca)
    made.minimum_version = made.maximum_version = version
    if pem is not None:
        made.load_cert_chain(pem)
    return made


def session_of(server: Server, made: ssl.SSLContext) -> ssl.SSLSession:
    """Return a session that the server has given, after a request: tickets of TLS 1.3 come with its answer."""
    with server.client(context=made) as client:
        client.post("/healthz")
        assert client.socket.session is not None
        return client.socket.session


@each_version
@cases(("has_certificate", "want"), none=(False, 403), that_of_a_caller=(True, 200))
def test_resumed_session_has_the_certificate_of_its_first_handshake(
    server: Server, tmp_path: Path, version: ssl.TLSVersion, has_certificate: bool, want: int
) -> None:
    made = context(server, version, issued(tmp_path) if has_certificate else None)
    with server.client(context=made, session=session_of(server, made)) as client:
        assert client.socket.session_reused
        assert client.post("/body").status == want


class Expired(NamedTuple):
    """Sessions by version, each with its context, and an open connection of a client whose certificates have expired since."""

    sessions: dict[ssl.TLSVersion, tuple[ssl.SSLContext, ssl.SSLSession]]
    connection: Client


@pytest.fixture(scope="module")
def expired(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Expired]:
    folder = tmp_path_factory.mktemp("expired")
    contexts = {each: context(server, each, issued(folder, lifetime=VALID_FOR)) for each in VERSIONS}
    sessions = {version: (made, session_of(server, made)) for version, made in contexts.items()}
    with server.client(pem=issued(folder, lifetime=VALID_FOR)) as client:
        assert client.post("/body").status == 200
        time.sleep((VALID_FOR + SECOND / 2).total_seconds())
        yield Expired(sessions, client)


@each_version
def test_resumed_session_does_not_outlive_its_certificate(
    server: Server, expired: Expired, version: ssl.TLSVersion
) -> None:
    made, session = expired.sessions[version]
    with server.client(context=made, session=session) as client:
        assert client.socket.session_reused, "OpenSSL does not look at the certificate again"
        assert client.post("/body").status == 503


@each_version
def test_session_of_an_authority_that_is_gone_is_not_resumed(
    directory: Path, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    with serving(directory, **asking(directory)) as server:
        made = context(server, version, issued(tmp_path))
        session = session_of(server, made)
        replace(directory / "callers.crt", ANOTHER.certificate)
        with (
            pytest.raises(ssl.SSLError, match="alert unknown ca"),
            server.client(context=made, session=session) as client,
        ):
            client.post("/body")


# ---- authorities that change


def test_kept_connection_does_not_outlive_its_certificate(expired: Expired) -> None:
    answer = expired.connection.post("/body")
    assert (answer.status, answer.headers["retry-after"], answer.headers["connection"]) == (503, "1", "close")
    assert answer.body.decode() == "the client certificate must be verified again; try again\n"


def test_new_authority_holds_for_kept_connections_and_new_ones(directory: Path, tmp_path: Path) -> None:
    old, new = issued(tmp_path), issued(tmp_path, ANOTHER)
    with serving(directory, **asking(directory)) as server, server.client(pem=old) as kept:
        assert kept.post("/body").status == 200
        replace(directory / "callers.crt", ANOTHER.certificate)
        until = end_of(ANOTHER.certificate)
        server.wait_for(
            f"callers are verified by {directory}/callers.crt, valid until {until}\n"
        )  # with nobody connecting
        assert kept.post("/body").status == 503, "to be repeated on a new connection, as kube-apiserver does"
        with pytest.raises(ssl.SSLError, match="alert unknown ca"), server.client(pem=old) as again:
            again.post("/body")
        with server.client(pem=new) as renewed:
            assert renewed.post("/body").status == 200


def test_rotation_with_both_authorities_refuses_nobody(directory: Path, tmp_path: Path) -> None:
    with serving(directory, **asking(directory)) as server:
        replace(directory / "callers.crt", AUTHORITY.certificate + ANOTHER.certificate)
        for authority in (AUTHORITY, ANOTHER):
            with server.client(pem=issued(tmp_path, authority)) as client:
                assert client.post("/body").status == 200


def test_new_serving_certificate_ends_no_callers_connection(directory: Path, tmp_path: Path) -> None:
    with serving(directory, **asking(directory)) as server, server.client(pem=issued(tmp_path)) as kept:
        kept.post("/body")
        (directory / "tls.crt").touch()
        with server.client(pem=issued(tmp_path)) as other:
            assert other.post("/body").status == 200
        assert kept.post("/body").status == 200


OLD = Authority("old", lifetime=-SECOND).certificate
IN_PEM = " must hold certificates of authorities in PEM"


def end_of(pem: bytes) -> dt.datetime:
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


@cases(
    ("content", "problem"),
    gone=(None, ": No such file or directory"),
    not_pem=(b"x", IN_PEM),
    empty=(b"", IN_PEM),
    of_a_caller=(AUTHORITY.issue(names=[CALLER]), " must hold certificates of authorities only"),
    expired=(OLD, f" expired on {end_of(OLD):%Y-%m-%d}"),
)
def test_authorities_that_cannot_be_used_keep_the_ones_before(
    directory: Path, caplog: pytest.LogCaptureFixture, content: bytes | None, problem: str
) -> None:
    caplog.set_level("INFO")
    asking(directory)
    paths = [directory / name for name in ("tls.crt", "tls.key", "callers.crt")]
    certificate = ServingCertificate(*paths)
    assert certificate.client_ca is not None
    before, not_after = certificate.ca_bundle, end_of(AUTHORITY.certificate)

    replace(paths[2], content)
    certificate.context()
    certificate.context()

    assert certificate.ca_bundle == before
    assert certificate.client_ca.state == CertificateState(not_after, f"{paths[2]}{problem}")
    with pytest.raises(StartupError) as error:
        ServingCertificate(*paths)
    assert str(error.value) == f"{paths[2]}{problem}", "at the start there are none before"
    replace(paths[2], ANOTHER.certificate)
    certificate.context()
    assert certificate.client_ca.state.last_error is None
    assert caplog.messages == [
        f"keeping the client CA valid until {not_after}: {paths[2]}{problem}",
        f"callers are verified by {paths[2]}, valid until {end_of(ANOTHER.certificate)}",
    ]


def test_broken_authorities_do_not_keep_a_new_serving_certificate_away(
    directory: Path, tmp_path: Path
) -> None:
    with serving(directory, **asking(directory)) as server:
        (directory / "callers.crt").unlink()
        server.wait_for(": No such file or directory")
        authority, pair = new_pair()
        replace(directory / "ca.crt", authority.certificate_pem())
        replace(directory / "tls.key", pair.key_pem())
        replace(directory / "tls.crt", pair.certificate_pem())
        with server.client(pem=issued(tmp_path)) as client:
            assert client.post("/body").status == 200
        with pytest.raises(ssl.SSLError), server.client(pem=issued(tmp_path, ANOTHER)) as client:
            client.post("/body")


# ---- hostile callers


def test_what_follows_a_refused_request_is_not_answered(server: Server) -> None:
    with server.client() as client:
        client.send(request("/body", b"one") + request("/healthz"))
        assert client.answer().status == 403
        with pytest.raises(ConnectionError):
            client.answer()
