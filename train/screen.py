"""Where the command prints its tables."""

from rich.console import Console

UNKNOWN_WIDTH = 120  # columns, where standard output is a file or a pipe: rich would take 80 and cut the report's table


def screen() -> Console:
    """A console on standard output: the terminal's width on a terminal, else `UNKNOWN_WIDTH`."""
    console = Console()
    return console if console.is_terminal else Console(width=UNKNOWN_WIDTH)
