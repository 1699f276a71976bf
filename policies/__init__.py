"""Decisions: what a GPU pod should look like, what it costs, and what is wrong with it.

Pure: the standard library and msgspec only; no I/O, no clock, no framework (`make check` enforces it).
"""
