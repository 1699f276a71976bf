"""Structs that `-o json` prints."""

import msgspec


class JsonStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the structs that `-o json` prints."""
