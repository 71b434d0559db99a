"""The scripts of the protocol, one file a command."""
