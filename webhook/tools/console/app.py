"""The pages: a Flask application that shows what an observer read last, and reads the cluster for a page about one object."""

from datetime import UTC, datetime
from inspect import isfunction

import flask

from policies.printable import printable_lines
from policies.quota.amounts import unit
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.configuration.loader import ConfigurationError
from webhook.tools.console import views
from webhook.tools.console.guard import guard
from webhook.tools.console.history import SIDE, History
from webhook.tools.console.observer import Observer
from webhook.tools.console.proposals import DenialProposals, Proposal, ProposalReader
from webhook.tools.status.report import ClusterStatus, Health
from webhook.tools.why.discovery import UnknownKindError
from webhook.tools.why.explaining import explain
from webhook.tools.why.explanation import Explanation

SHOWN_DENIALS = 5
"""On the overview; their own page has all."""

FILTERS = {name: each for name, each in vars(views).items() if isfunction(each)}
"""By their names in templates."""


def create_app(
    api: ApiClient, observer: Observer[ClusterStatus], history: History, *, cluster: str, home: str
) -> flask.Flask:
    """Return the application; `cluster` names the cluster for people, `home` is the namespace where none is named."""
    app = flask.Flask(__name__)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.globals.update(
        cluster=cluster, home=home, side=SIDE, LOOKS=views.LOOKS, OK=Health.OK, quota_of=views.quota_of
    )
    app.jinja_env.filters.update(FILTERS, unit=unit)
    guard(app)
    proposals, opened = DenialProposals(api), datetime.now(UTC)

    def page(template: str, *, code: int = 200, **values: object) -> flask.Response:
        """Render a page around what was read last, or one that says why nothing could be."""
        status, unread = observer.observation()
        if status is None:
            template, code = "unread.html", 502
        text = flask.render_template(
            template, unread=unread, status=status, opened=opened, now=datetime.now(UTC), **values
        )
        return flask.Response(printable_lines(text), code)

    @app.route("/")
    def overview() -> flask.Response:
        return page("overview.html", totals=views.totals, drawing=history.drawing, shown=SHOWN_DENIALS)

    @app.route("/quotas/<namespace>")
    def quota(namespace: str) -> flask.Response:
        return page("quota.html", namespace=namespace, drawing=history.drawing)

    @app.route("/denials")
    def denials() -> flask.Response:
        status, _ = observer.observation()
        try:
            offers = proposals.of((status and status.denials) or (), datetime.now(UTC))
        except errors.ApiError:  # the page says so, as soon as the observer meets it
            offers = {}
        return page("denials.html", offers=offers)

    @app.route("/why")
    def why() -> flask.Response:
        requested, namespace = (flask.request.args.get(each, "").strip() for each in ("object", "namespace"))
        found, offer, problem = _explained(api, requested, namespace or home)
        return page(
            "why.html", requested=requested, namespace=namespace, found=found, offer=offer, problem=problem
        )

    @app.errorhandler(404)
    def missing(_error: Exception) -> flask.Response:
        return page("missing.html", code=404)

    return app


def _explained(
    api: ApiClient, requested: str, namespace: str
) -> tuple[Explanation | None, Proposal | None, str]:
    kind, _, name = (each.strip() for each in requested.partition("/" if "/" in requested else " "))
    if not (kind and name):
        return None, None, f'"{requested}" must be KIND/NAME, such as job/train' if requested else ""
    now = datetime.now(UTC)
    try:
        found = explain(api, kind, name, namespace, now)
        return found, ProposalReader(api, now).propose(kind, name, namespace), ""
    except (errors.ApiError, UnknownKindError, ConfigurationError) as error:
        return None, None, str(error)
