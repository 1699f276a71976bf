"""The rules, one file each. `policies.registry` puts them in order."""
