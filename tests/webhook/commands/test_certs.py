"""`gpu-admission certs`, as far as it needs no cluster; the rest is in tests/cluster/certificates/."""

import datetime as dt
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from certs.files import ensure_self_signed
from certs.issue import issue_authority
from tests.cases import cases
from webhook.commands import main

NOW = dt.datetime.now(dt.UTC)


def certs(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["certs", *map(str, arguments)])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    ensure_self_signed(tmp_path, ["hook.ns.svc"], NOW)
    return tmp_path


def test_good_files(directory: Path) -> None:
    result = certs("check", "--dir", directory, "--name", "hook.ns.svc")
    assert (result.exit_code, result.output) == (0, "1 check, no findings\n")


def test_all_that_is_wrong_with_files_is_reported_at_once(directory: Path) -> None:
    other = issue_authority(common_name="other", now=NOW, lifetime=dt.timedelta(days=1))
    (directory / "ca.crt").write_bytes(other.certificate_pem())
    (directory / "tls.key").write_bytes(other.key_pem())
    result = certs("check", "--dir", directory, "--name", "another.ns.svc", "-o", "json")
    assert result.exit_code == 1
    (checked,) = json.loads(result.output)["checks"]
    assert [f"{finding['object']} {finding['message']}" for finding in checked["findings"]] == [
        f"{directory} cannot be served: key: must be the key of the certificate",
        f"{directory} cannot be served: certificate: does not carry the name another.ns.svc",
        f"{directory} cannot be served: certificate: must be issued by the authority",
    ]
    text = certs("check", "--dir", directory).output
    assert "2 findings" in text
    assert "fix: renew the files" in text


@cases(
    ("arguments", "want"),
    {
        "name-without-files": (["check", "--name", "x"], "--name needs --dir"),
        "no-directory": (["check", "--dir", "/nowhere"], "does not exist"),
        "no-time": (["rotate", "--timeout-seconds", "0"], "--timeout-seconds"),
    },
)
def test_bad_use(arguments: list[str], want: str) -> None:
    result = certs(*arguments)
    assert result.exit_code == 2
    assert want in result.output


def test_a_directory_without_certificates(tmp_path: Path) -> None:
    result = certs("check", "--dir", tmp_path)
    assert result.exit_code == 2
    assert result.output == f"error: {tmp_path / 'tls.crt'}: No such file or directory\n"


@cases(
    ("arguments", "want"),
    {
        "two-certificates": (
            ["serve", "--certificate-secret", "x", "--self-signed", "y"],
            "--certificate-secret says where the certificate is",
        ),
        "no-cluster": (
            ["serve", "--certificate-secret", "x", "--standalone"],
            "--certificate-secret needs a cluster",
        ),
        "name": (["controller", "--certificate-name", "no name"], '"no name" is not a valid DNS name'),
        "leaf-too-short": (["controller", "--leaf-days", "0.1"], "--leaf-days"),
        "authority-too-short": (["controller", "--ca-days", "1"], "--ca-days"),
    },
)
def test_what_cannot_work_is_refused(arguments: list[str], want: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert want in " ".join(result.output.split())
