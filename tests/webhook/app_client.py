"""Ask what `create_app` returns as the HTTP server does: a head that its parser has read, and the whole body."""

from typing import Any

import msgspec

from webhook.server.http import Handler, Response, find_request


class Answered:
    def __init__(self, response: Response) -> None:
        headers = {name.lower(): value for name, value in response.headers}
        self.status_code, self.data = response.status, response.body
        self.mimetype = headers["content-type"].partition(";")[0]
        self.text = response.body.decode()

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.data)


class AppClient:
    def __init__(self, app: Handler) -> None:
        self._app = app

    def get(self, path: str) -> Answered:
        return self.ask(f"GET {path} HTTP/1.1\r\n\r\n")

    def post(
        self, path: str, data: bytes = b"", content_type: str = "application/json", json: Any = None
    ) -> Answered:
        body = msgspec.json.encode(json) if json is not None else data
        fields = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        return self.ask(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n", body)

    def ask(self, head: str, body: bytes = b"") -> Answered:
        request = find_request(bytearray(head.encode()))
        assert request is not None, head
        request.body = body
        return Answered(self._app(request))
