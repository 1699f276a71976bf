"""A bell that rings whenever one of some named objects changes. What has changed is for its hearers to read."""

import threading
from collections.abc import Iterable

import msgspec

from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Informer, Resource, WatchTimings

PACE = WatchTimings(pause_most=5.0)
"""A watch that was lost is taken up again within seconds; there are two or three of them."""


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    namespace: str = ""
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: _Version


_OBJECT = msgspec.json.Decoder(_Object)


class ChangeSignal:
    """Watches what the resources select; `wait` returns after a change, when it is time for the next look, or to stop."""

    def __init__(self, api: ApiClient, resources: Iterable[Resource]) -> None:
        self._rung = threading.Event()
        self._mirrors = [
            Informer(api, each, _version, lambda _before, _after: self._rung.set(), pace=PACE)
            for each in resources
        ]

    def start(self, stopping: threading.Event) -> None:
        for mirror in self._mirrors:
            name = f"watch-{mirror.resource.plural}"
            threading.Thread(target=mirror.run, args=(stopping,), name=name, daemon=True).start()
        threading.Thread(target=self._stop, args=(stopping,), name="bell", daemon=True).start()

    def wait(self, seconds: float) -> None:
        self._rung.wait(seconds)
        self._rung.clear()

    def _stop(self, stopping: threading.Event) -> None:
        stopping.wait()
        self._rung.set()


def _version(raw: msgspec.Raw) -> _Version:
    return _OBJECT.decode(raw).metadata
