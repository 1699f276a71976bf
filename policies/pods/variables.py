"""Where the value of a variable of a container comes from, if the pod does not have it."""

import msgspec

from policies.pods.pod import EnvVar, View


class _Key(View, frozen=True):
    name: str = ""
    key: str = ""


class _Field(View, frozen=True):
    field_path: str = ""


class Source(View, frozen=True):
    """A key of a ConfigMap, a field of the pod, or another source, which is not read."""

    config_map_key_ref: _Key | None = None
    field_ref: _Field | None = None

    def is_annotation(self, key: str) -> bool:
        return self.field_ref is not None and self.field_ref.field_path == f"metadata.annotations['{key}']"


_decode = msgspec.json.Decoder(Source).decode


def source_of(variable: EnvVar) -> Source | None:
    """Return the source of the value; None if the pod has the value."""
    if not isinstance(variable.value_from, msgspec.Raw) or bytes(variable.value_from) == b"null":
        return None
    try:
        return _decode(variable.value_from)
    except msgspec.ValidationError:  # the API server rejects it
        return Source()
