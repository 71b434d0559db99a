"""The contract between producers, workers and operators. Imports pydantic and the standard library, nothing else."""
