"""Verifiers of a GUI: the tree parses, nodes that stay, nodes that change, focus, the value of a field.

Whole new pages are not decided by the session, so what changes is asked only where it is little.
"""

import re
from collections.abc import Sequence

from agentworld.rewards.gui_tree import Tree, tree
from agentworld.rewards.json_shape import parsed
from agentworld.rewards.verdicts import Item, Verdict, compared, without

FEW = 6  # nodes, gone and new together, up to which a change is small enough to follow from the action
_CODE_TEXT = re.compile(
    r"(?:fill|type|write|typewrite|press|select_option|keyboard_type)\([^)]*?(['\"])([^'\"]{2,})\1\s*[,)]"
)


def parses(item: Item) -> Verdict | None:
    """A tree of the truth's form, where the truth is a tree."""
    truth = tree(item.reference)
    if truth is None:
        return None
    found = tree(item.prediction)
    return compared("tree", "tree", found.form if found else None, truth.form)


def untouched(item: Item) -> Verdict | None:
    """What the last screen and the truth have in common is there, where few nodes lie between the two."""
    trees = _small_change(item)
    if trees is None:
        return None
    last, truth = trees
    found = tree(item.prediction)
    stays = last.counted & truth.counted
    lost = stays - found.counted if found else stays
    return without("untouched", lost.elements(), f"{stays.total()} nodes that stay")


def changed(item: Item) -> Verdict | None:
    """Exactly the true nodes are new and exactly the true nodes are gone, where the truth is the same screen with few
    changes, or with none."""
    trees = _small_change(item)
    if trees is None:
        return None
    last, truth = trees
    found = tree(item.prediction)
    if found is None:
        return Verdict("changed", False, "no tree, so no node of it is new or gone")
    new, said = truth.counted - last.counted, found.counted - last.counted
    left = (last.counted - truth.counted) & found.counted
    wrong = (new - said) + (said - new) + left
    return without("changed", wrong.elements(), f"{new.total()} nodes that are new")


def focus(item: Item) -> Verdict | None:
    """The node with the focus, where the truth shows one on a screen with few changes."""
    trees = _small_change(item)
    if trees is None or not trees[1].focused:
        return None
    found = tree(item.prediction)
    return compared("focus", "focus", sorted(found.focused) if found else None, sorted(trees[1].focused))


def field_value(item: Item) -> Verdict | None:
    """A node that holds what was typed, as in truth, where the truth shows it on the same screen as before."""
    typed = _typed(item.action)
    truth, last = tree(item.reference), tree(item.context.last or "")
    if not typed or truth is None or last is None or _distance(last, truth) > FEW:
        return None
    holding = [node for node in truth.nodes if typed in node and node not in last.counted]
    if not holding:
        return None
    found = tree(item.prediction)
    nodes = found.counted if found else {}
    return without("field_value", [node for node in holding if node not in nodes], f"field with {typed!r}")


def _small_change(item: Item) -> tuple[Tree, Tree] | None:
    last, truth = tree(item.context.last or ""), tree(item.reference)
    if last is None or truth is None or last.form != truth.form or _distance(last, truth) > FEW:
        return None
    return last, truth


def _distance(one: Tree, other: Tree) -> int:
    return (one.counted - other.counted).total() + (other.counted - one.counted).total()


def _typed(action: str) -> str:
    """What an action types: the text of a JSON action, or the last quoted argument of a call that types."""
    call = parsed(action)
    if isinstance(call, dict):
        text = call.get("text")
        return text if isinstance(text, str) else ""
    quoted: Sequence[tuple[str, str]] = _CODE_TEXT.findall(action)
    return quoted[-1][1] if quoted else ""


VERIFIERS = (parses, untouched, changed, focus, field_value)
