"""Decisions about GPU pods, as findings, changes and demand.

Pure: the standard library and msgspec only; no I/O, no clock, no framework (`make check` enforces it).
"""
