"""What cannot work is refused before anything is read, by exit status 2 and a sentence on stderr."""

from click.testing import CliRunner

from tests.cases import cases
from webhook.commands import main

TWO_CERTIFICATES = ["serve", "--certificate-secret", "x", "--self-signed", "y"]
CONTROLLER, URL = ["controller", "--prometheus-url"], "https://prometheus:9090"
CHECK, SERVE = ["check", "-f", "-"], ["serve", "--standalone"]
STANDALONE = "Error: --standalone works without a cluster: omit it, or --kubeconfig and --context"


@cases(
    ("arguments", "want"),
    an_unknown_command=(["chekc"], "Error: No such command 'chekc'. Did you mean 'check'?"),
    an_unknown_option=([*CHECK, "--strct"], "Error: No such option '--strct'. Did you mean '--strict'?"),
    check_nothing=(["check"], "Error: Missing option '-f' / '--filename', or a file"),
    check_unknown_output=(
        [*CHECK, "-o", "xml"],
        "Error: Invalid value for '-o' / '--output': "
        "'xml' is not one of 'text', 'json', 'yaml', 'lines', 'diff', 'sarif', 'junit'.",
    ),
    check_at_no_time=(
        [*CHECK, "--now", "soon"],
        "Error: Invalid value for '--now': \"soon\" is not a valid time: write it as 2027-01-31T18:00:00Z.",
    ),
    check_at_a_time_without_zone=(
        [*CHECK, "--now", "2027-01-01T00:00:00"],
        "Error: Invalid value for '--now': \"2027-01-01T00:00:00\" must have a time zone: "
        "write it as 2027-01-31T18:00:00Z.",
    ),
    fix_with_another_output=([*CHECK, "--fix", "-o", "json"], "Error: --fix cannot be used with -o json"),
    yes_without_fix=([*CHECK, "--yes"], "Error: --yes requires --fix"),
    config_of_a_directory_and_a_cluster=(
        ["config", ".", "--context", "p"],
        "Error: DIRECTORY must not be combined with --kubeconfig or --context",
    ),
    export_of_no_directory=(
        ["export", "--config", "/nowhere"],
        "error: /nowhere: No such file or directory 1 problem; nothing was done",
    ),
    export_of_no_cluster=(
        ["export", "--kubeconfig", "/nowhere"],
        "error: kubeconfig /nowhere: No such file or directory",
    ),
    serve_with_two_certificates=(
        TWO_CERTIFICATES,
        "Error: --certificate-secret says where the certificate is: leave --tls-cert, --tls-key, --self-signed out",
    ),
    serve_with_a_file_and_a_directory=(
        ["serve", "--self-signed", "y", "--tls-cert", "x"],
        "Error: --self-signed makes the certificate itself: leave --tls-cert and --tls-key out",
    ),
    serve_without_a_certificate=(
        SERVE,
        "Error: give --tls-cert and --tls-key, --self-signed DIR or --certificate-secret NAME",
    ),
    serve_by_a_secret_without_a_cluster=(
        [*SERVE, "--certificate-secret", "x"],
        "Error: --certificate-secret needs a cluster: omit --standalone",
    ),
    serve_a_cluster_without_one=([*SERVE, "--context", "p"], STANDALONE),
    export_a_cluster_without_one=(["export", "--standalone", "--context", "p"], STANDALONE),
    export_a_cluster_and_a_directory=(
        ["export", "--config", ".", "--context", "p"],
        "Error: --config needs no cluster: omit either it or --kubeconfig and --context",
    ),
    serve_no_port=(
        [*SERVE, "--port", "65536"],
        "Error: Invalid value for '--port': 65536 is not in the range 0<=x<=65535.",
    ),
    serve_no_threads=(
        [*SERVE, "--threads", "0"],
        "Error: Invalid value for '--threads': 0 is not in the range 1<=x<=1000.",
    ),
    serve_too_many_threads=(
        [*SERVE, "--threads", "1001"],
        "Error: Invalid value for '--threads': 1001 is not in the range 1<=x<=1000.",
    ),
    serve_drain=(
        [*SERVE, "--drain-seconds", "-1"],
        "Error: Invalid value for '--drain-seconds': -1.0 is not in the range x>=0.",
    ),
    certificate_name=(
        ["controller", "--certificate-name", "no name"],
        "Error: Invalid value for '--certificate-name': \"no name\" is not a valid DNS name",
    ),
    no_time_to_rotate=(
        ["certs", "rotate", "--timeout-seconds", "0"],
        "Error: Invalid value for '--timeout-seconds': 0.0 is not in the range x>=1.0.",
    ),
    leaf_too_short=(
        ["controller", "--leaf-days", "0.1"],
        "Error: Invalid value for '--leaf-days': 0.1 is not in the range x>=1.0.",
    ),
    authority_too_short=(
        ["controller", "--ca-days", "1"],
        "Error: Invalid value for '--ca-days': 1.0 is not in the range x>=2.0.",
    ),
    a_prometheus_without_a_scheme=(
        [*CONTROLLER, "prometheus:9090"],
        "Error: Invalid value for --prometheus-url: "
        "the URL of Prometheus must be such as https://prometheus.monitoring:9090",
    ),
    a_prometheus_with_a_password=(
        [*CONTROLLER, "https://me:secret@p"],
        "Error: Invalid value for --prometheus-url: the URL of Prometheus must have no user name, password, "
        "query or fragment: put credentials into a token file",
    ),
    a_token_without_a_prometheus=(
        ["controller", "--prometheus-token-file", "token"],
        "Error: --prometheus-token-file and --prometheus-ca-file need --prometheus-url",
    ),
    idle_after_no_time=(
        [*CONTROLLER, URL, "--idle-after", "soon"],
        "Error: Invalid value for '--idle-after': \"soon\" is not a valid duration: write 30m or 1h30m.",
    ),
    idle_after_a_moment=(
        [*CONTROLLER, URL, "--idle-after", "10ms"],
        "Error: Invalid value for '--idle-after': \"10ms\" must be at least 1s.",
    ),
    idle_after_less_than_a_sample=(
        [*CONTROLLER, URL, "--idle-after", "30s"],
        "Error: --idle-after must be at least --use-rules-interval",
    ),
    idle_below_nothing=(
        [*CONTROLLER, URL, "--idle-below", "0"],
        "Error: Invalid value for '--idle-below': 0.0 is not in the range 0.0<x<=1.0.",
    ),
    usage_until_before_since=(
        ["usage", "--since", "2027-02-01", "--until", "2027-01-01"],
        "Error: --until must be later than --since",
    ),
    usage_of_prometheus_without_since=(
        ["usage", "--prometheus-url", URL],
        "Error: --prometheus-url requires --since: from then on, use is read",
    ),
    usage_since_no_time=(
        ["usage", "--since", "soon"],
        "Error: Invalid value for '--since': \"soon\" is not valid: "
        "write how long ago, 24h or 7d, a date, 2027-01-31, or a time, 2027-01-31T18:00:00Z.",
    ),
    why_all_namespaces_and_a_name=(
        ["why", "-A", "job/train"],
        "Error: -A lists all namespaces: omit the name",
    ),
    pause_without_an_end=(["pause", "--reason", "x"], "Error: Missing option '--for'."),
    pause_without_a_reason=(["pause", "--for", "5m"], "Error: Missing option '--reason'."),
    pause_for_an_empty_reason=(
        ["pause", "--for", "5m", "--reason", " "],
        "Error: Invalid value for --reason: must say why the policy is paused",
    ),
    pause_for_two_days=(
        ["pause", "--reason", "x", "--for", "48h"],
        "Error: Invalid value for '--for': \"48h\" must be at most 24h.",
    ),
)
def test_what_cannot_work_is_refused(arguments: list[str], want: str) -> None:
    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 2
    assert " ".join(result.stderr.split()).rpartition("--help' for help. ")[2] == want
