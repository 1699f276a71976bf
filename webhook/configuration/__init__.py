"""Configuration: `yaml_documents` → `decoding` → `documents` → `loader` → `source` and `cluster_source`."""
