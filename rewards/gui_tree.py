"""An accessibility tree as text, taken apart into nodes: the three forms of our GUI domains.

android   [  3] | android.widget.Button | text="Save" res="..." | bounds=[0,0][9,9] | clickable, focused
web       <tabs>[a210] combobox 'Quantity' value='1', clickable, focused
os        a table with tabs between its cells; the first line names the columns
"""

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

_ANDROID = re.compile(r"\[ *\d+\] \| (.+)")
_WEB = re.compile(r"(\t*)(?:\[[^\]\n]+\]|RootWebArea|StaticText|\S+) .*")
_FOCUSED = re.compile(r"(?:, | \| )focused(?=,|\s|$)")
_TREE_STARTS = "Accessibility tree:\n"
MIN_PARSED = 0.9  # share of the lines that must be nodes


@dataclass(frozen=True)
class Tree:
    """`nodes`: each node's line without its number on the screen, in order. `focused`: the nodes with the focus, that
    of the whole page left out."""

    form: str
    nodes: tuple[str, ...]
    focused: frozenset[str]

    @property
    def counted(self) -> Counter[str]:
        return Counter(self.nodes)


@lru_cache(maxsize=512)
def tree(text: str) -> Tree | None:
    """The tree that a text is; None where it is none: fewer than 9 in 10 of its lines are nodes."""
    body = text.partition(_TREE_STARTS)[2] if _TREE_STARTS in text else text
    lines = [line.rstrip() for line in body.split("\n") if line.strip()]
    if not lines:
        return None
    if lines[0].startswith("tag\t"):
        return _table(lines)
    if found := [match[1] for line in lines if (match := _ANDROID.fullmatch(line.strip()))]:
        return _tree("android", found, len(lines))
    if _TREE_STARTS in text or lines[0].startswith("RootWebArea"):
        return _tree("web", [line for line in lines if _WEB.fullmatch(line)], len(lines))
    return None


def _table(lines: list[str]) -> Tree | None:
    cells = lines[0].count("\t")
    found = [line for line in lines[1:] if 1 <= line.count("\t") <= cells]
    return _tree("os", found, len(lines) - 1)


def _tree(form: str, nodes: list[str], lines: int) -> Tree | None:
    if not nodes or len(nodes) < MIN_PARSED * lines:
        return None
    focused = [node for node in nodes if _FOCUSED.search(node) and not node.startswith("RootWebArea")]
    return Tree(form, tuple(nodes), frozenset(_FOCUSED.sub("", node) for node in focused))
