"""The quota protocol on one row: reserve, reconcile, initialise. Pure; what a clock has to say comes in as an argument."""
