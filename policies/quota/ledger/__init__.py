"""The quota protocol on one row: reserve, settle, initialise. Pure; what a clock has to say comes in as an argument."""
