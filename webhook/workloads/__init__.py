"""Where the pods of an object are."""
