"""Benchmarks: ratios of things measured side by side and interleaved in one run. `python -m tests.bench --help`.

Seconds differ between machines and between moments of one; so nothing here fails for being slow, and every figure comes with
the one that it is to be compared with.
"""
