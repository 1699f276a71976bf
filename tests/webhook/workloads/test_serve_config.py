"""`serveConfigV2` of a RayService, as authors write it: YAML in a field of text."""

from typing import Any

from tests.cases import cases
from webhook.workloads.places import serve_config

TEXT = """\
# of a file that is also deployed by hand
applications:
- name: llm
  deployments:
  - {name: Model, num_replicas: 2, ray_actor_options: {num_gpus: 0.5}}
"""
WANT = {
    "applications": [
        {
            "name": "llm",
            "deployments": [{"name": "Model", "num_replicas": 2, "ray_actor_options": {"num_gpus": 0.5}}],
        }
    ]
}


@cases(
    ("kind", "spec", "want"),
    of_a_service=("RayService", {"serveConfigV2": TEXT}, WANT),
    that_is_no_yaml=("RayService", {"serveConfigV2": "a: ["}, None),
    of_two_documents=("RayService", {"serveConfigV2": "a: 1\n---\nb: 2"}, None),
    that_is_no_text=("RayService", {"serveConfigV2": WANT}, None),
    that_is_too_long=("RayService", {"serveConfigV2": f"{TEXT}#{' ' * 8192}"}, None),
    that_is_absent=("RayService", {}, None),
    of_another_kind=("RayJob", {"serveConfigV2": TEXT}, None),
)
def test_serve_config(kind: str, spec: Any, want: Any) -> None:
    assert serve_config("ray.io", kind, {"spec": spec}) == want
