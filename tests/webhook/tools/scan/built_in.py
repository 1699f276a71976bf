"""The configuration that is built in."""

from webhook.configuration.loader import load_directory

BUILT_IN = load_directory(None)
