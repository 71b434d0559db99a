"""The registry: files on disk become an immutable snapshot of routes. Knows neither Redis nor Langflow."""
