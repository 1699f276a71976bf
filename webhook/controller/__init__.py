"""Keeps the quotas' rows true: counts what is stored, takes out reservations that were kept or came to nothing, says how it stands."""
