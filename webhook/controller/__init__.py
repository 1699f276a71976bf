"""Keeps the quotas' rows true: counts what is stored, and takes out reservations that were kept or came to nothing."""
