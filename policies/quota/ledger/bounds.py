"""The three bounds in time on which the protocol rests. Serve and controller must agree on them."""

CREATION_SECONDS = 34.0
"""The API server stores nothing later than this after the request began (its cap on a request of 60 s is 34 s for writes)."""

EXPIRY_SECONDS = CREATION_SECONDS + 6.0
"""How long a controller must have seen an entry before a list that shows no trace of it may drop it; 6 s are margin."""

NO_QUOTA_SECONDS = 5.0
"""D: how old "this namespace has no quota" may be where it is believed, and how long a controller waits, from when it first
saw a quota, before it initialises it. So nobody is let in uncharged by an answer from before a quota that already counts."""
