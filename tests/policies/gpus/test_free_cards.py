"""What is left of the counters of cards."""

from policies.gpus.device_slices import CounterValue, DeviceShape, LayoutDevice, SliceLayout
from policies.gpus.stored_devices import can_be_allocated, counters_left
from tests.cases import cases


def shape(memory: str) -> DeviceShape:
    consumes = (("card", (("memory", CounterValue(value=memory)),)),)
    return DeviceShape(attributes=(), capacity=(), unknown=(), consumes=consumes, is_shared=False)


@cases(
    ("card", "half", "want"),
    room_for_another_half=("80Gi", "40Gi", True),
    too_little_for_another=("70Gi", "40Gi", False),
    a_card_that_cannot_be_read=("1e30", "40Gi", False),
    a_device_that_cannot_be_read=("80Gi", "much", True),
)
def test_whether_another_device_fits_on_a_card(card: str, half: str, want: bool) -> None:
    first, second = shape(half), shape(half)
    layout = SliceLayout(
        "gpu.example.com",
        (LayoutDevice("a", first, ""), LayoutDevice("b", second, "")),
        (("card", (("memory", CounterValue(value=card)),)),),
    )

    assert can_be_allocated(second, counters_left([layout], {"a"}), is_allocated=False) is want
