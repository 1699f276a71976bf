"""
Answers, made in memory.

An AdmissionReview is small, so a thread writes its answer here and goes on to the next request; the
client's readiness to take it is the poller's business. Head and body leave in one TLS record, and an
application that fails half-way still gets a clean 500.
"""

from typing import NamedTuple

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Refusal(NamedTuple):
    """An answer without the application's help, after which the connection closes."""

    status: int
    reason: str
    text: str
    retry: bool = False

    def content(self) -> bytes:
        # kube-apiserver repeats a call on 429 and 5xx, and only if the answer says when, as a whole number of
        # seconds (client-go with_retry.go).
        retry = "Retry-After: 1\r\n" if self.retry else ""
        head = (
            f"HTTP/1.1 {self.status} {self.reason}\r\nConnection: close\r\n{retry}"
            f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(self.text) + 1}\r\n\r\n"
        )
        return f"{head}{self.text}\n".encode()


NO_LENGTH = Refusal(411, "Length Required", "say how long the body is: Content-Length is required")
BODY_TOO_LONG = Refusal(413, "Content Too Large", "the body is longer than this server accepts")
HEAD_TOO_LONG = Refusal(
    431, "Request Header Fields Too Large", "the head of the request is longer than this server accepts"
)
TOO_MANY_BYTES = Refusal(
    503, "Service Unavailable", "too many bytes of unfinished requests; try again", retry=True
)
TOO_MANY_REQUESTS = Refusal(503, "Service Unavailable", "too many requests at once; try again", retry=True)
STOPPING = Refusal(
    503, "Service Unavailable", "this replica of gpu-admission is stopping; try again", retry=True
)


class ResponseBuffer:
    """Stands where gunicorn expects the client's socket, and collects what is sent."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        self._parts.append(bytes(data))

    def send(self, data: bytes) -> int:
        self.sendall(data)
        return len(data)

    def gettimeout(self) -> float:
        """Never blocks, which is what gunicorn asks before it writes an error."""
        return 0.0

    def clear(self) -> None:
        self._parts.clear()

    def content(self) -> bytes:
        return b"".join(self._parts)
