"""The quota protocol on one ledger: reserve, reconcile, initialise. Pure; the clock is an argument."""
