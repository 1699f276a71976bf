"""A way to the API server on which a watch of pods can end as one does whose revision is too old: with 410 Gone, once.

`python -m tests.bench.gone API-SERVER-PORT CA-FILE` takes plain HTTP on loopback, at the port that it says. At SIGUSR1 it ends
the watches of pods that there are, and refuses the next one that would go on where one ended.
"""

import asyncio
import contextlib
import json
import re
import signal
import ssl
import sys

from tests.controlplane.forwarder import copy

WATCH = re.compile(rb"GET /api/v1/pods\?[^ ]*watch=(?:1|true)")
CONTINUED = re.compile(rb"[?&]resourceVersion=[1-9]")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
STATUS = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "message": "too old resource version",
    "reason": "Expired",
    "code": 410,
}


class Way:
    """Who watches pods, and whether the next watch is refused."""

    def __init__(self, port: int, ca_file: str) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=ca_file)
        self._watching: set[asyncio.StreamWriter] = set()
        self._gone = False

    def end_watches(self) -> None:
        self._gone = True
        for writer in list(self._watching):
            writer.transport.abort()

    async def forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._context, server_hostname="localhost"
        )
        answers = asyncio.create_task(copy(there, sink))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await source.readuntil(b"\r\n\r\n")
                length = LENGTH.search(head)
                body = await source.readexactly(int(length[1]) if length else 0)
                if WATCH.match(head):
                    if self._gone and CONTINUED.search(head.partition(b"\r\n")[0]):
                        self._gone = False
                        said = json.dumps(STATUS).encode()
                        fields = b"Content-Type: application/json\r\nConnection: close\r\nContent-Length: %d"
                        sink.write(b"HTTP/1.1 410 Gone\r\n" + fields % len(said) + b"\r\n\r\n" + said)
                        await sink.drain()
                        break
                    self._watching.add(sink)
                back.write(head + body)
                await back.drain()
        answers.cancel()
        self._watching.discard(sink)
        back.close()
        sink.close()


async def serve(server_port: int, ca_file: str) -> None:
    way = Way(server_port, ca_file)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, way.end_watches)
    server = await asyncio.start_server(way.forward, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
