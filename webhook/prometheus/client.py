"""Instant queries to Prometheus, or to what speaks its HTTP API (Thanos, Mimir, VictoriaMetrics).

The token and the authorities are read again for each query, so a rotated file needs no restart. Redirects are not followed: the
token goes to the named server only.
"""

import ssl
from datetime import datetime
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec
import urllib3

from policies.finding import truncate
from policies.printable import printable
from webhook.cluster.errors import failure_text

SECONDS = 30.0
"""Timeout of one query, unless the caller names another. Prometheus itself ends a query after 2 min by default."""
LONGEST_ANSWER = 32 * 1024 * 1024
"""Bytes. 20,000 series of five labels take some 5 MB."""
LONGEST_REASON = 200
"""Characters of an error of the server in ours."""
_PIECE = 1024 * 1024


class PrometheusError(Exception):
    """Prometheus could not be asked, or refused the query. The message is a sentence with the URL, never with credentials."""


class Sample(msgspec.Struct, frozen=True):
    """The value of one series at the time of the query."""

    labels: dict[str, str]
    value: float


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str
    result: msgspec.Raw


class _Answer(msgspec.Struct, frozen=True):
    status: str = ""
    error: str = ""
    data: _Data | None = None


# Made once, as everywhere: msgspec crashes where threads use a type for the first time together.
_ANSWER = msgspec.json.Decoder(_Answer)
_VECTOR = msgspec.json.Decoder(list[_Series])


class Prometheus:
    """`url` is the address below which the API is (`https://prometheus.monitoring:9090`, also with a path).

    Raises PrometheusError for a URL that cannot be used. Thread-safe: it keeps nothing between queries.
    """

    def __init__(
        self, url: str, token_file: Path | None = None, ca_file: Path | None = None, timeout: float = SECONDS
    ) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname
            _ = parts.port  # raises ValueError where a port cannot be read
        except ValueError:
            host, parts = None, urlsplit("")
        if parts.scheme not in {"http", "https"} or not host:
            raise PrometheusError("the URL of Prometheus must be such as https://prometheus.monitoring:9090")
        if "@" in parts.netloc or parts.query or parts.fragment:
            problem = "must have no user name, password, query or fragment: put credentials into a token file"
            raise PrometheusError(f"the URL of Prometheus {problem}")
        self.url = url.rstrip("/")
        self._token_file, self._ca_file, self._timeout = token_file, ca_file, timeout

    def query(self, promql: str, at: datetime | None = None) -> list[Sample]:
        """Return the instant vector of a query, now or at a time. Raises PrometheusError."""
        form = {"query": promql} | ({"time": str(at.timestamp())} if at else {})
        status, document = self._post(urlencode(form))
        try:
            answer = _ANSWER.decode(document)
        except msgspec.MsgspecError:
            raise self._error(f"answered HTTP {status} without JSON of Prometheus") from None
        if answer.status != "success" or answer.data is None:
            raise self._error(
                f"refused the query (HTTP {status}): {_shown(answer.error or 'without a reason')}"
            )
        try:
            series = _VECTOR.decode(answer.data.result)
            return [Sample(sample.metric, float(sample.value[1])) for sample in series]
        except ValueError:  # of msgspec and float
            raise self._error(
                f"answered a {_shown(answer.data.result_type)} that is not a vector of numbers"
            ) from None

    def _post(self, form: str) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/x-www-form-urlencoded", "User-Agent": "gpu-admission"}
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {self._token(self._token_file)}"
        # The context of plain HTTP would load the authorities of the system for nothing.
        context = self._ssl_context() if self.url.startswith("https") else None
        with urllib3.PoolManager(ssl_context=context) as pool:
            try:
                response = pool.request(
                    "POST",
                    f"{self.url}/api/v1/query",
                    body=form,
                    headers=headers,
                    timeout=self._timeout,
                    retries=False,
                    redirect=False,
                    preload_content=False,
                )
                document = bytearray()
                for piece in response.stream(_PIECE, decode_content=False):
                    document += piece
                    if len(document) > LONGEST_ANSWER:
                        raise self._error(f"answered more than {LONGEST_ANSWER >> 20} MiB")
            except urllib3.exceptions.HTTPError as error:
                raise self._error(failure_text(error)) from None
        return response.status, bytes(document)

    def _token(self, file: Path) -> str:
        try:
            token = file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            # The text of a UnicodeDecodeError shows bytes of the file.
            why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise self._error(f"needs the token of {file}, which cannot be read: {why}") from None
        if not token.isprintable() or not token:
            raise self._error(f"needs the token of {file}, which must be one line that is not empty")
        return token

    def _ssl_context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            why = "it must hold certificates in PEM" if isinstance(error, ssl.SSLError) else error.strerror
            raise self._error(
                f"needs the authorities of {self._ca_file}, which cannot be read: {why}"
            ) from None

    def _error(self, problem: str) -> PrometheusError:
        return PrometheusError(f"Prometheus at {self.url} {problem}")


def _shown(text: str) -> str:
    return truncate(printable(text), LONGEST_REASON)
