"""What findings tell people to do, done literally in random worlds."""
