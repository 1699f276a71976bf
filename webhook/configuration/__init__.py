"""What is configured: documents, the strict decoder for them, and the snapshot that is in force."""
