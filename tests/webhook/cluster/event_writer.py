"""A writer of Events that keeps them."""

import threading

from webhook.cluster.events import EventRecord


class Writer:
    """Takes Events once it `answers`, but none with the reason `Refused`."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.requested: list[EventRecord] = []

    def write(self, event_record: EventRecord) -> bool:
        self.answers.wait()
        self.requested.append(event_record)
        return event_record.reason != "Refused"
