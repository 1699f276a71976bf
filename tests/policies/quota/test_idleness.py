"""Which GPUs of a pod exporters measure, and what it takes to call them idle."""

from datetime import UTC, datetime
from fractions import Fraction

from policies.quota.idleness import Activity, activity, idle_for, measured_devices
from tests.cases import cases
from webhook.configuration.loader import load_directory

MAPPING = load_directory(None).resource_mapping
NAN = float("nan")


@cases(
    ("demand", "want"),
    cards=({"gpus": "2", "classes/nvidia-a100": "2", "resources/nvidia.com/gpu": "2"}, 2),
    cards_of_amd=({"gpus": "1", "resources/amd.com/gpu": "1"}, 1),
    slices=({"gpus": "3/7", "resources/nvidia.com/mig-1g.10gb": "3"}, 3),
    slices_of_two_profiles=(
        {"gpus": "5/7", "resources/nvidia.com/mig-1g.10gb": "2", "resources/nvidia.com/mig-3g.40gb": "1"},
        3,
    ),
    # All of these share a card with others, or may: what is measured of the card is not theirs.
    cards_beside_slices=(
        {"gpus": "8/7", "resources/nvidia.com/gpu": "1", "resources/nvidia.com/mig-1g.10gb": "1"},
        None,
    ),
    a_share_by_the_class=({"gpus": "1/4", "resources/nvidia.com/gpu": "1"}, None),
    a_card_of_two_by_the_class=({"gpus": "2", "resources/nvidia.com/gpu": "1"}, None),
    a_time_sliced_share=({"gpus": "1", "resources/nvidia.com/gpu.shared": "1"}, None),
    a_shared_slice=({"gpus": "1/7", "resources/nvidia.com/mig-1g.10gb.shared": "1"}, None),
    a_part_of_the_memory=(
        {"gpus": "1", "resources/nvidia.com/gpu": "1", "resources/nvidia.com/gpumem": "4000"},
        None,
    ),
    an_annotation=({"gpus": "1/2"}, None),
    a_name_that_is_not_known=({"gpus": "1", "resources/example.com/gpu": "1"}, None),
    nothing=({}, None),
)
def test_what_is_measured_of_a_demand(demand: dict[str, str], want: int | None) -> None:
    assert measured_devices({key: Fraction(text) for key, text in demand.items()}, MAPPING) == want


@cases(
    ("devices", "largest", "want"),
    all_below=(2, [0.0, 0.049], Activity.IDLE),
    one_above=(2, [0.0, 0.9], Activity.BUSY),
    as_much_as_the_bound=(1, [0.05], Activity.BUSY),
    one_not_measured=(2, [0.0], Activity.UNKNOWN),
    none_measured=(1, [], Activity.UNKNOWN),
    more_than_it_holds=(1, [0.0, 0.0], Activity.UNKNOWN),
    shared=(None, [0.0], Activity.UNKNOWN),
    not_a_number=(2, [0.0, NAN], Activity.UNKNOWN),
)
def test_what_a_pod_did(devices: int | None, largest: list[float], want: Activity) -> None:
    assert activity(devices, largest, 0.05) is want


@cases(
    ("since", "want"),
    now=("2026-11-26T18:00:00Z", "0 min"),
    ahead_of_our_clock=("2026-11-26T18:10:00Z", "0 min"),
    minutes=("2026-11-26T17:00:01Z", "59 min"),
    hours=("2026-11-26T11:01:00Z", "6 h"),
    two_days_less_a_minute=("2026-11-24T18:01:00Z", "47 h"),
    days=("2026-11-20T17:00:00Z", "6 d"),
)
def test_for_how_long(since: str, want: str) -> None:
    assert idle_for(since, datetime(2026, 11, 26, 18, tzinfo=UTC)) == want
