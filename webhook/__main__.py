"""`python -m webhook` is `gpu-admission`."""

from webhook.commands import run

run()
