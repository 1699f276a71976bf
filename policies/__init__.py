"""Decisions about GPU pods, as findings, changes and demands.

Pure: the standard library and msgspec only; no I/O, no clock, no framework (`make check` enforces it).
"""
