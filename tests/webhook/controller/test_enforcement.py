"""Whether the rule gpu-quota denies anything in a namespace, lets pods wait there, and respects Kueue."""

from types import SimpleNamespace
from typing import Any

from policies.policy import Labels
from tests.builders import JSON
from tests.cases import cases
from webhook.cluster.namespaces import NamespaceUnknown
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_objects
from webhook.controller.enforcement import Enforcement

BY_LABELS: JSON = {"priority": 1, "match": {"namespaceSelector": {"matchLabels": {"team": "vision"}}}}


def unknown(_namespace: str, deadline: float) -> Labels:
    raise NamespaceUnknown(f"not read before {deadline}")


@cases(
    ("options", "want", "if_labels_are_unknown"),
    by_default=({}, (True, False, False), (True, True, False)),
    only_logged=({"mode": "audit"}, (False, False, False), (True, True, False)),
    queueing=({"onExceeded": "Queue"}, (True, True, False), (True, True, False)),
    queueing_after_kueue=(
        {"onExceeded": "Queue", "kueue": "respect"},
        (True, True, True),
        (True, True, False),
    ),
    disabled=({"mode": "disabled"}, (False, False, False), (True, True, False)),
)
def test_what_holds_in_a_namespace(
    options: JSON, want: tuple[bool, ...], if_labels_are_unknown: tuple[bool, ...]
) -> None:
    policies: dict[str, JSON] = {"default": {"rules": {"gpu-quota": options}}, "by-labels": BY_LABELS}
    configuration = load_objects([Document("GPUPolicy", name, spec) for name, spec in policies.items()])

    def of(labels_of: Any) -> tuple[bool, ...]:
        namespaces: Any = SimpleNamespace(labels_of=labels_of)
        found = Enforcement(lambda: configuration, namespaces)
        return found.enforces_quota("team"), found.lets_wait("team"), found.respects_kueue("team")

    assert of(lambda _namespace, deadline: ()) == want  # noqa: ARG005 - the signature of Namespaces
    assert of(unknown) == if_labels_are_unknown
