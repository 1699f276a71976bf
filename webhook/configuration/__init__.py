"""Configuration: documents read strictly, the snapshot that they make, and the sources that keep one up to date.

In the order of reading: `yaml_documents` (text to plain data with line numbers), `decoding` (plain data to structs, all errors
at once), `documents` (what one document means), `loader` (documents to a `Configuration`), `source` (what every source has, and
the directory), `cluster_source` (the API server's objects), `advice` (warnings about valid policies).
"""
