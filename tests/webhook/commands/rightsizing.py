"""A report of `gpu-admission rightsize`."""

from fractions import Fraction

from tests.webhook.tools.rightsize.peaks import ALL_SLICES, CLASSES, H100, whole
from webhook.tools.prices import Prices
from webhook.tools.rightsize.sizing import Peaks, Sizing
from webhook.tools.rightsize.workloads import SizedWorkload, SizeReport


def report(found: Peaks, prices: Prices | None = None, *, by_hour: bool = True) -> SizeReport:
    sizing = Sizing(classes=CLASSES, offers={H100: ALL_SLICES}, allows=lambda _: True, prices=prices)
    hours = Fraction(3 * 730)
    workload = SizedWorkload(
        namespace="ml-training",
        owner="Deployment/chat",
        pods=3,
        size=whole(H100),
        peaks=found,
        pod_hours=hours,
        suggestions=sizing.suggestions(whole(H100), found, hours),
    )
    return SizeReport(
        hours=336,
        by_hour=by_hour,
        workloads=(workload,),
        fitting=4,
        unjudged={"measured for less than 24 h": 2},
        omitted=(),
    )
