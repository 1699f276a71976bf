"""Access to the API server: credentials, a raw JSON client, informers, leader election."""
