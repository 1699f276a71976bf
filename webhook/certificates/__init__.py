"""The certificate Secret and the caBundles of a cluster. `certs` decides what they hold; this package reads and writes them."""
