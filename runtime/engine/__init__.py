"""The engine adapter: the only package that knows Langflow."""
