"""What a Service does with connections: each goes to the next process behind it.

`python tests/controlplane/forwarder.py [--follow SECONDS] ADDRESS:PORT BACKEND:PORT…`, a process of its own, so that it has
a core's time when a test has none to give.

Without --follow a backend that refuses connections is passed over. With it, as in a cluster, new connections go to those that
/readyz says are ready, and every change of that takes so many seconds to get here, as an EndpointSlice takes its time to reach
every node: until then a connection may be led to a process that has gone. Connections that there are stay as they are.
"""

import argparse
import asyncio
import contextlib
import itertools
import ssl

CHUNK = 65536
PROBE_SECONDS = 0.5
"""Between two looks at /readyz; one that fails is believed, as the end of a container is."""
UNVERIFIED = ssl.SSLContext(
    ssl.PROTOCOL_TLS_CLIENT
)  # create_default_context() reads all authorities of the machine: 16 ms
UNVERIFIED.check_hostname, UNVERIFIED.verify_mode = False, ssl.CERT_NONE


class Backends:
    def __init__(self, addresses: list[str], *, followed: bool) -> None:
        self._turns = itertools.cycle(addresses)
        self._count = len(addresses)
        self._followed = followed
        self.ready = set() if followed else set(addresses)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for address in itertools.islice(self._turns, self._count):
            if address not in self.ready:
                continue
            host, _, port = address.rpartition(":")
            try:
                return await asyncio.open_connection(host, int(port))
            except OSError:
                if self._followed:
                    return None
        return None

    async def follow(self, address: str, delay: float) -> None:
        """Keep `ready` true of one backend, `delay` seconds late."""
        believed = False
        loop = asyncio.get_running_loop()
        while True:
            ready = await answers(address)
            if ready != believed:
                believed = ready
                loop.call_later(delay, self.ready.add if ready else self.ready.discard, address)
            await asyncio.sleep(PROBE_SECONDS)


async def answers(address: str) -> bool:
    """Ask for /readyz as the kubelet does, whatever the certificate; with more time, since one that has gone refuses at once."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(host, int(port), ssl=UNVERIFIED)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")
            line = await reader.readline()
            writer.close()
    except (OSError, TimeoutError):
        return False
    return b" 200 " in line


async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK):
            sink.write(data)
            await sink.drain()
    sink.close()


async def serve(listen: str, addresses: list[str], follow: float | None) -> None:
    backends = Backends(addresses, followed=follow is not None)
    held: set[asyncio.StreamWriter] = set()  # a writer that nobody holds is closed
    following = (
        [] if follow is None else [asyncio.create_task(backends.follow(each, follow)) for each in addresses]
    )

    async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        connected = await backends.connect()
        if connected is None:
            sink.transport.abort()
            return
        there, back = connected
        held.update({sink, back})
        await asyncio.gather(copy(source, back), copy(there, sink))
        held.difference_update({sink, back})

    host, _, port = listen.rpartition(":")
    server = await asyncio.start_server(forward, host, int(port), backlog=512)
    await asyncio.gather(server.serve_forever(), *following)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Forward connections as a Service does.")
    parser.add_argument("--follow", type=float)
    parser.add_argument("listen")
    parser.add_argument("backends", nargs="+")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.listen, arguments.backends, arguments.follow))
