"""The broker: the only package that knows Redis. Commands only; no loops, no sleeps, no tasks."""
