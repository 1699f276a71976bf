"""One history for each rule of the protocol. Their docstrings are the rules."""
