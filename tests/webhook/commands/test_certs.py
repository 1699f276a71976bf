"""`gpu-admission certs`, as far as it needs no cluster; the rest is in tests/cluster/certificates/."""

from click.testing import CliRunner

from tests.cases import cases
from webhook.commands import main


@cases(
    ("arguments", "want"),
    two_certificates=(
        ["serve", "--certificate-secret", "x", "--self-signed", "y"],
        "--certificate-secret says where the certificate is",
    ),
    no_cluster=(
        ["serve", "--certificate-secret", "x", "--standalone"],
        "--certificate-secret needs a cluster",
    ),
    name=(["controller", "--certificate-name", "no name"], '"no name" is not a valid DNS name'),
    no_time=(["certs", "rotate", "--timeout-seconds", "0"], "--timeout-seconds"),
    leaf_too_short=(["controller", "--leaf-days", "0.1"], "--leaf-days"),
    authority_too_short=(["controller", "--ca-days", "1"], "--ca-days"),
)
def test_what_cannot_work_is_refused(arguments: list[str], want: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert want in " ".join(result.output.split())
