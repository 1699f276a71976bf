"""The version of gpu-admission."""

from importlib.metadata import version

VERSION = version("gpu-admission")
