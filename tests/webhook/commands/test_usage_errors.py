"""What cannot work is refused before anything is read, by exit status 2 and a sentence on stderr."""

from click.testing import CliRunner

from tests.cases import cases
from webhook.commands import main

TWO_CERTIFICATES = ["serve", "--certificate-secret", "x", "--self-signed", "y"]
CONTROLLER, URL = ["controller", "--prometheus-url"], "https://prometheus:9090"
CHECK, EXPORT, SERVE = ["check", "-f", "-"], ["export", "--kubernetes"], ["serve", "--standalone"]


@cases(
    ("arguments", "want"),
    an_unknown_command=(["chekc"], "No such command 'chekc'"),
    check_nothing=(["check"], "Missing option '-f' / '--filename'"),
    check_unknown_output=([*CHECK, "-o", "xml"], "'xml' is not one of"),
    check_at_no_time=([*CHECK, "--now", "soon"], '"soon" is not a valid time'),
    check_at_a_time_without_zone=([*CHECK, "--now", "2027-01-01T00:00:00"], "must have a time zone"),
    fix_with_another_output=([*CHECK, "--fix", "-o", "json"], "--fix cannot be used with -o json"),
    yes_without_fix=([*CHECK, "--yes"], "--yes requires --fix"),
    export_for_an_old_version=([*EXPORT, "1.32"], "must be 1.33 or newer"),
    export_for_no_version=([*EXPORT, "new"], '"new" must be a version of Kubernetes'),
    export_of_no_directory=(["export", "--config", "/nowhere"], "error: /nowhere: No such file or directory"),
    export_of_no_cluster=(["export", "--kubeconfig", "/nowhere"], "error: "),
    serve_with_two_certificates=(TWO_CERTIFICATES, "--certificate-secret says where the certificate is"),
    serve_by_a_secret_without_a_cluster=(
        [*SERVE, "--certificate-secret", "x"],
        "--certificate-secret needs a cluster",
    ),
    serve_a_cluster_without_one=([*SERVE, "--context", "p"], "--standalone works without a cluster"),
    export_a_cluster_without_one=(
        ["export", "--standalone", "--context", "p"],
        "--standalone works without a cluster",
    ),
    export_a_cluster_and_a_directory=(
        ["export", "--config", ".", "--context", "p"],
        "--config needs no cluster",
    ),
    serve_no_port=([*SERVE, "--port", "65536"], "'--port': 65536 is not in the range 0<=x<=65535"),
    serve_no_threads=([*SERVE, "--threads", "0"], "'--threads': 0 is not in the range 1<=x<=1000"),
    serve_too_many_threads=([*SERVE, "--threads", "1001"], "'--threads': 1001 is not in the range"),
    serve_drain=([*SERVE, "--drain-seconds", "-1"], "'--drain-seconds': -1.0 is not in the range x>=0"),
    certificate_name=(["controller", "--certificate-name", "no name"], '"no name" is not a valid DNS name'),
    no_time_to_rotate=(["certs", "rotate", "--timeout-seconds", "0"], "--timeout-seconds"),
    leaf_too_short=(["controller", "--leaf-days", "0.1"], "--leaf-days"),
    a_prometheus_without_a_scheme=(
        [*CONTROLLER, "prometheus:9090"],
        "the URL of Prometheus must be such as https://",
    ),
    a_prometheus_with_a_password=(
        [*CONTROLLER, "https://me:secret@p"],
        "must have no user name, password, query or fragment: put credentials into a token file",
    ),
    a_token_without_a_prometheus=(
        ["controller", "--prometheus-token-file", "token"],
        "--prometheus-token-file and --prometheus-ca-file need --prometheus-url",
    ),
    idle_after_no_time=(
        [*CONTROLLER, URL, "--idle-after", "soon"],
        '"soon" is not a valid duration: write 30m or 1h30m',
    ),
    idle_after_a_moment=([*CONTROLLER, URL, "--idle-after", "10ms"], '"10ms" must be at least 1s'),
    idle_after_less_than_a_sample=(
        [*CONTROLLER, URL, "--idle-after", "30s"],
        "--idle-after must be at least --use-rules-interval",
    ),
    idle_below_nothing=([*CONTROLLER, URL, "--idle-below", "0"], "--idle-below"),
    authority_too_short=(["controller", "--ca-days", "1"], "--ca-days"),
)
def test_what_cannot_work_is_refused(arguments: list[str], want: str) -> None:
    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 2
    assert want in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
