"""One file a group of checks; `webhook.doctor.registry` lists them all."""
