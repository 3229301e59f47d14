"""Types of the command line's flags: a text to a checked value, or an error that names the text."""

import argparse


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive integer")
    return number


positive.__name__ = "positive integer"  # argparse: "invalid positive integer value: 'x'"


def share(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share over 0 and up to 1")
    return number


share.__name__ = "number"


def not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


not_negative.__name__ = "integer"


def shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text} is not I/N with I from 0 to N-1, for example 0/8")
    return int(index), int(count)
