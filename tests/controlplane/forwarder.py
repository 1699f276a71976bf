"""What a Service does with connections: each goes to the next process behind it that takes one.

`python tests/controlplane/forwarder.py ADDRESS:PORT BACKEND:PORT…`, a process of its own, so that it has a core's time when a
test has none to give. A backend that died refuses connections and is passed over; those that it had are cut.
"""

import asyncio
import contextlib
import itertools
import sys

CHUNK = 65536


async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK):
            sink.write(data)
            await sink.drain()
    sink.close()


async def serve(listen: str, backends: list[str]) -> None:
    turns = itertools.cycle(backends)
    held: set[asyncio.StreamWriter] = set()  # a writer that nobody holds is closed

    async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        for backend in itertools.islice(turns, len(backends)):
            host, _, port = backend.rpartition(":")
            try:
                there, back = await asyncio.open_connection(host, int(port))
            except OSError:
                continue
            held.update({sink, back})
            await asyncio.gather(copy(source, back), copy(there, sink))
            held.difference_update({sink, back})
            return
        sink.close()

    host, _, port = listen.rpartition(":")
    server = await asyncio.start_server(forward, host, int(port), backlog=512)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2:]))
