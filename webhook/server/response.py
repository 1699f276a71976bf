"""
Answers, made in memory.

An AdmissionReview is small, so a thread writes its answer here and goes on to the next request; the
client's readiness to take it is the poller's business. Head and body leave in one TLS record, and an
application that fails half-way still gets a clean 500.
"""

_REASONS = {
    411: ("Length Required", "say how long the body is: Content-Length is required"),
    413: ("Content Too Large", "the body is longer than this server accepts"),
    431: ("Request Header Fields Too Large", "the head of the request is longer than this server accepts"),
    503: ("Service Unavailable", "too many bytes of unfinished requests; try again"),
}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def refusal(status: int) -> bytes:
    """Answer without the application's help, after which the connection closes."""
    reason, text = _REASONS[status]
    # kube-apiserver repeats a call only if the answer says when (client-go with_retry.go).
    retry = "Retry-After: 1\r\n" if status == 503 else ""  # noqa: PLR2004 - an HTTP status
    head = (
        f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\n{retry}"
        f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text) + 1}\r\n\r\n"
    )
    return f"{head}{text}\n".encode()


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
