"""Whole workers under a seeded schedule of faults, judged from outside. `python -m tests.chaos --help`."""
