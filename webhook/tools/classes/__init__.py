"""The catalogue of GPU classes as one namespace sees it: what may be used there, and what is free."""
