"""DeviceSlices hears of ResourceSlices from the thread of a watch, while others take them over."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.lock_orders import no_circle
from webhook.cluster.informer import Informer, Resource
from webhook.configuration.loader import load_directory
from webhook.controller.device_slices import DeviceSlices, SliceRecord


def changed_and_taken_over() -> DeviceSlices:
    configuration, api = load_directory(None), SimpleNamespace()
    slices = DeviceSlices(api, lambda: configuration)  # type: ignore[arg-type]  # nothing is read
    informer: Any = Informer[SliceRecord](
        api,  # type: ignore[arg-type]
        Resource("/apis", "resourceslices"),
        slices._record,
        slices._changed,
    )
    informer.synced, slices._watch.informer = True, informer
    with informer.lock:  # as during an event
        slices._changed(None, None)
    slices.sync()
    return slices


def test_a_change_and_a_count_take_their_locks_in_one_order() -> None:
    """Otherwise the watch and the count wait for each other, and neither goes on."""
    with no_circle():
        changed_and_taken_over()


def test_two_orders_are_noticed() -> None:
    def take_over_otherwise() -> None:
        with no_circle():
            slices = changed_and_taken_over()
            informer = slices._watch.informer
            assert informer is not None
            with slices._lock:
                informer.position()

    with pytest.raises(AssertionError, match=r"cluster/informer\.py.*controller/device_slices\.py"):
        take_over_otherwise()
