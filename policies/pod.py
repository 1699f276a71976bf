"""The part of a pod that a GPU class speaks of."""

import msgspec


class Toleration(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A toleration as it stands in a pod."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None
