"""Scored predictions as one HTML page without any script: each with its reward, what it is made of, and why.

Text cannot become markup: it is escaped, hidden characters are named (`visible_text`), and the page's own policy
forbids scripts and the network.
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from agentworld.data.visible_text import visible
from agentworld.rewards.predictions import Scored

SHOWN_CHARACTERS = 6000  # of one text; its middle is left out above
MAXIMUM = 25.0

_TEMPLATE = Path(__file__).parent / "score.html"


def page(title: str, summary: Sequence[Sequence[str]], rows: Sequence[Scored], left_out: int) -> str:
    """The whole page.

    Args:
        summary: the table of the screen, the first line its headings.
        rows: those to be shown, in their order.
        left_out: how many more there are.
    """
    head, *body = summary
    note = f"{left_out:,} more rows are in the scored file and not on this page (--html-rows)." if left_out else ""
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=_text(title),
        head="".join(f"<th>{_text(cell)}</th>" for cell in head),
        summary="\n".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in line) + "</tr>" for line in body),
        note=_text(note),
        rows="\n".join(_row(row) for row in rows),
    )


def _row(row: Scored) -> str:
    fields = row.fields
    total = fields["reward"]
    share = max(0.0, min(1.0, (total or 0.0) / MAXIMUM))
    shown = "failed" if total is None else f"{total:.2f}"
    guards = "".join(f'<b class="guard">{_text(hit["name"])}</b>' for hit in fields["guards"] or [])
    rule = fields["rule"]
    verdict = "" if rule is None else f'<b class="{"yes" if rule else "no"}">rule {"yes" if rule else "no"}</b>'
    return "\n".join(
        [
            "<details>",
            f'<summary><span class="bar"><i style="width:{share * 100:.0f}%"></i></span> <strong>{shown}</strong> '
            f"{_text(row.group)} <small>{_text(row.domain)}</small> {verdict}{guards}</summary>",
            f'<p class="reason">{_text(str(fields["reason"]))}</p>',
            _parts(fields),
            f"<h3>action</h3><pre>{_long(row.action)}</pre>" if row.action else "",
            '<div class="pair">',
            f"<div><h3>prediction</h3><pre>{_marked(row.text, row.truth)}</pre></div>",
            f"<div><h3>truth</h3><pre>{_marked(row.truth, row.text)}</pre></div>",
            "</div>",
            f"<h3>thinking</h3><pre>{_long(row.thinking)}</pre>" if row.thinking else "",
            "</details>",
        ]
    )


def _parts(fields: dict[str, Any]) -> str:
    """The dimensions, the verdict of each verifier and each guard that fired, as one list."""
    scores = fields["scores"] or {}
    items = [f"<li>{_text(name)} <strong>{float(value):.2f}</strong></li>" for name, value in scores.items()]
    for verdict in fields["verdicts"] or []:
        passed = "yes" if verdict["passed"] else "no"
        items.append(f'<li class="{passed}">{_text(verdict["name"])}: {passed}, {_text(verdict["reason"])}</li>')
    items += [f'<li class="no">{_text(hit["name"])}: {_text(hit["reason"])}</li>' for hit in fields["guards"] or []]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _marked(text: str, other: str) -> str:
    """A text whose lines that the other lacks are marked."""
    known = set(other.split("\n"))
    return "\n".join(
        _text(line) if line in known else f"<mark>{_text(line) or '&nbsp;'}</mark>" for line in _cut(text).split("\n")
    )


def _long(text: str) -> str:
    return _text(_cut(text), keep_newlines=True)


def _cut(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def _text(text: str, keep_newlines: bool = False) -> str:
    return escape(visible(text, keep_newlines))


def shown_first(rows: Iterable[Scored], count: int) -> list[Scored]:
    """The rows of a page: in their order, those that a guard caught before the others where not all have room."""
    every = list(rows)
    if len(every) <= count:
        return every
    caught = [row for row in every if row.fields["guards"]]
    rest = [row for row in every if not row.fields["guards"]]
    return (caught + rest)[:count]
