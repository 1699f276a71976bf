"""The `kubernetes` package without its models: what of it we use still works."""

import base64
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from webhook.cluster.access import load_access

MODULES = """
import sys
from webhook.cluster.access import load_access
load_access(sys.argv[1]).pool(1)
print([name for name in sys.modules if name.startswith(("kubernetes.client.models.", "kubernetes.client.api."))])
"""


def kubeconfig(folder: Path, user: dict[str, object]) -> str:
    path = folder / "kubeconfig"
    names = {"cluster": "it", "user": "it"}
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "it",
                "contexts": [{"name": "it", "context": names}],
                "clusters": [{"name": "it", "cluster": {"server": "https://127.0.0.1:9"}}],
                "users": [{"name": "it", "user": user}],
            }
        )
    )
    return str(path)


@pytest.mark.processes
def test_access_needs_neither_models_nor_api_classes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MODULES, kubeconfig(tmp_path, {"token": "t"})]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


class Issuer(BaseHTTPRequestHandler):
    """Answers, but not with a configuration."""

    paths: list[str]

    def do_GET(self) -> None:
        self.paths.append(self.path)
        self.send_response(202)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_an_expired_oidc_token_is_renewed_at_its_issuer(tmp_path: Path) -> None:
    """`kubernetes.config` does this by the API client of `kubernetes.client`."""
    claims = base64.urlsafe_b64encode(json.dumps({"exp": 1}).encode()).decode().rstrip("=")
    token, paths = f"e30.{claims}.s", list[str]()
    with HTTPServer(("127.0.0.1", 0), type("It", (Issuer,), {"paths": paths})) as issuer:
        threading.Thread(target=issuer.serve_forever, daemon=True).start()
        config = {"id-token": token, "idp-issuer-url": f"http://127.0.0.1:{issuer.server_port}"}
        access = load_access(kubeconfig(tmp_path, {"auth-provider": {"name": "oidc", "config": config}}))
        issuer.shutdown()

    assert paths == ["/.well-known/openid-configuration"]
    assert access.authorization() == f"Bearer {token}"
