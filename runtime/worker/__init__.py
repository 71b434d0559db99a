"""Processes and loops: from an entry to its settled outcome."""
