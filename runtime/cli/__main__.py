"""``python -m runtime.cli``: the command, where the script is not on the path."""

from runtime.cli.main import main

main()
