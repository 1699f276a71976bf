"""The built-in table of kinds: every row is valid, and none of it weighs anything."""

from webhook.configuration.loader import load_directory


def test_the_kinds_are_no_part_of_what_a_charge_is_computed_from() -> None:
    mapping = load_directory(None).resource_mapping

    assert b"workloadKinds" not in mapping.document
    assert all(spec.resources or spec.device_classes for spec in mapping.specs)
