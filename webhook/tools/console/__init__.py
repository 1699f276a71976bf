"""The console: what `status` and `why` say as local web pages, read with the caller's own credentials."""
