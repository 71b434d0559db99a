"""The archive: payloads and files that are too large for a stream, by their content."""
