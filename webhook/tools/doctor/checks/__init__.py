"""One file a group of checks; `webhook.tools.doctor.registry` lists them all."""
