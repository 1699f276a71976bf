"""The report of a scan as one HTML page that needs nothing else: no script, no request, light and dark."""

from importlib import resources

import jinja2

from policies.printable import printable_lines
from policies.quota.amounts import format_amount
from webhook.tools.scan.report import Effect, ScanReport, by_sentence


def page(report: ScanReport) -> str:
    """Return the page; texts from the cluster are escaped, and what is not printable is replaced: HTML has no way to write it."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["amount"] = format_amount
    text = (resources.files("webhook.tools.scan") / "page.html").read_text(encoding="utf-8")
    made = environment.from_string(text).render(
        report=report, Effect=Effect, effects=list(Effect), by_sentence=by_sentence
    )
    return printable_lines(made)
