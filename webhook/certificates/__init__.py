"""The certificate Secret and the caBundles of a cluster: `certs` decides, this room reads and writes them."""
