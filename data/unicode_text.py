"""Text that can be encoded: half of a surrogate pair is legal in JSON and in a Python string, but is no character."""

import re

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def without_lone_surrogates(text: str) -> tuple[str, int]:
    """The text with U+FFFD in place of each lone surrogate, and how many there were."""
    if text.isascii():
        return text, 0
    return _LONE_SURROGATE.subn("\ufffd", text)
