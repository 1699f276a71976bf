"""A workload of an object that may be anything."""

from typing import Any

from policies.pods.workload import Workload
from tests.cases import cases


@cases(
    ("data", "name"),
    named=({"metadata": {"name": "chat"}}, "chat"),
    generated=({"metadata": {"generateName": "chat-"}}, "chat-"),
    no_metadata=({}, ""),
    metadata_of_another_type=({"metadata": {"name": 1}}, ""),
    no_object=("chat", ""),
)
def test_the_name_of_a_workload(data: Any, name: str) -> None:
    found = Workload("apps", "Deployment", "team", data)

    assert found.name == name
