"""The API server as seen from here: a raw JSON client, list and watch, leader election. Knows nothing of quotas."""
