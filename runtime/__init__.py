"""Headrace's runtime: the registry, the Langflow engine adapter, the Redis broker, the worker and the command."""
