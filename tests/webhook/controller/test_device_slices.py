"""DeviceSlices hears of ResourceSlices from the thread of a watch, while others take them over."""

import threading
from types import SimpleNamespace
from typing import Any

from webhook.cluster.collection import MergedCollection
from webhook.configuration.loader import load_directory
from webhook.controller.device_slices import DeviceSlices, SliceRecord


def test_a_change_that_comes_while_slices_are_taken_over() -> None:
    """Each of the two threads has a lock that the other one needs, if `sync` asks the informer while it has its own."""
    configuration, api = load_directory(None), SimpleNamespace()
    slices = DeviceSlices(api, lambda: configuration)  # type: ignore[arg-type]  # nothing is read
    informer: Any = MergedCollection[SliceRecord]("resourceslices", slices._changed)
    informer.synced, slices._watch.informer = True, informer

    def tell() -> None:
        with informer.lock:  # as during an event
            taking_over.start()
            taking_over.join(0.3)
            slices._changed(None, None)

    taking_over = threading.Thread(target=slices.sync, daemon=True)
    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    telling.join(10)

    assert not telling.is_alive(), "the watch waits for the count, which waits for the watch"
