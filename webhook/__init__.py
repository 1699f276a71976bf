"""Everything that talks to the API server, the disk, the clock or a terminal."""
