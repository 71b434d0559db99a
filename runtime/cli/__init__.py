"""The command `headrace`: the composition root."""
