"""The HTTP gateway: events in, runs and results out. Stateless; it knows neither Redis' commands nor Langflow."""
