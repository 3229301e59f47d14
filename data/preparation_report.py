"""The report of a preparation as text: what a person should look at before training on it."""

import textwrap
from collections.abc import Iterator
from typing import Any


def format_report(report: dict[str, Any]) -> str:
    """At most about 25 lines from the report of `prepare`."""
    return "\n".join(_lines(report))


def _lines(report: dict[str, Any]) -> Iterator[str]:
    read, filters = report["read"], report["filters"]
    yield f"trajectories  {read['read']} read, {read['rejected']} rejected"
    yield (
        f"filters       {filters['too_short']} too short, {filters['without_target']} without a target, "
        f"{filters['evaluation']} of a benchmark, "
        f"{filters['empty_action_turns']} turns without action; {filters['kept']} kept"
    )
    same = report["duplicates"]
    yield (
        f"duplicates    {same['exact']} exact, {same['prefix']} beginnings of longer ones, {same['near']} near; "
        f"{same['held_out']} of held-out groups; {same['kept']} kept"
    )
    yield from (f"  rejected  {reason}" for reason in read["reasons"][:3])
    yield from _selection(report["selection"])
    pools = (f"{name} {pool['trajectories']} ({pool['turns']} turns)" for name, pool in report["pools"].items())
    yield "pools         " + ", ".join(pools)
    yield from _mask(report["mask"])
    yield from _instructions(report["instructions"])
    yield from _documents(report["documents"])
    yield from _teacher(report["teacher"]["sft"])
    yield f"rows          {'':12}  rows  fill  documents    tokens  trained  dropped documents, tokens  labels lost"
    for name, row in report["rows"].items():
        share = _percent(row["trained_tokens"], row["tokens"])
        dropped = f"{row['dropped_documents']}, {row['dropped_tokens']}"
        yield (
            f"              {name:12} {row['rows']:5} {row['fill']:5.0%} {row['documents']:10} {row['tokens']:9} "
            f"{share:>8} {dropped:>26} {row['labels_lost']:12}"
        )
    rl = report["rl"]
    yield (
        f"RL prompts    {rl['kept']} of {rl['given']} kept ({rl['too_long']} too long, {rl['unsayable']} hold the "
        f"answer's tag), {rl['deterministic']} deterministic"
    )
    origin = "trained here" if report["tokenizer"]["trained"] else "of the model"
    yield f"tokenizer     {report['tokenizer']['size']} tokens, {origin}"
    yield f"prepared in   {report['seconds']['total']:.1f} s, sha256 {report['sha256'][:16]}"


def _selection(selection: dict[str, Any]) -> Iterator[str]:
    """Only where weights or shares leave something out, or there is more than one domain."""
    label = "selection"
    for kind, name in (("domains", "domain"), ("sources", "source")):
        parts = selection[kind]
        whole = sum(part["used_characters"] for part in parts.values())
        if len(parts) == 1 and all(part["used"] == part["given"] for part in parts.values()):
            continue
        for value, part in sorted(parts.items()):
            used = f"{part['used']} of {part['given']} used"
            yield f"{label:13} {name} {value:24} {used:24} {_percent(part['used_characters'], whole):>6} of characters"
            label = ""


def _mask(mask: dict[str, Any]) -> Iterator[str]:
    categories = {name: c for name, c in mask["categories"].items() if c["turns"]}
    turns = sum(c["turns"] for c in categories.values())
    characters = sum(c["characters"] for c in categories.values())
    kept = sum(c["kept_turns"] for c in categories.values())
    kept_characters = sum(c["kept_characters"] for c in categories.values())
    effect = "" if mask["enabled"] else "off, every turn carries loss; on, it "
    yield (
        f"CPT loss mask {effect or 'on, '}keeps {_percent(kept, turns)} of {turns} turns, "
        f"{_percent(kept_characters, characters)} of characters"
    )
    if mask["context_only_turns"]:
        yield f"              {mask['context_only_turns']} more turns are history only: words of the harness"
    for name, c in categories.items():
        yield (
            f"              {name:12} {_percent(c['turns'], turns):>6} of turns, "
            f"{_percent(c['kept_turns'], c['turns'])} of them kept"
        )


def _instructions(told: dict[str, Any]) -> Iterator[str]:
    if not told["share"]:
        return
    for stage in ("cpt", "rl"):
        count = told[stage]
        yield (
            f"instructions  {stage}: {count['controlled']} controlled, {count['search']} search, {count['own']} of the "
            f"source; {count['no_rule']} drawn without a rule, {count['none']} without one"
        )


def _documents(documents: dict[str, Any]) -> Iterator[str]:
    """Only where there are any: what was asked for, what was got, and how much of the loss it is."""
    if not documents["sources"]:
        return
    rows = [*documents["sources"], {"name": "trajectories", "kind": "", **documents["trajectories"]}]
    yield "documents     source               kind         asked  share  of loss      tokens  documents"
    for row in rows:
        asked = f"{row['asked_share']:.1%}" if "asked_share" in row else ""
        got = f"{row['share']:6.1%} {row['trained_share']:8.1%} {row['tokens']:11} {row.get('documents', ''):>10}"
        yield f"              {row['name']:20} {row['kind']:10} {asked:>7} {got.rstrip()}"
        if "read" in row:
            yield from _source_notes(row)


def _source_notes(row: dict[str, Any]) -> Iterator[str]:
    read, indent = row["read"], " " * 16
    if row["exhausted"]:
        yield f"{indent}used up ({row['epochs']:g} times): too few tokens for the share; give more, or raise its epochs"
    left_out = (read["rejected"], "damaged"), (read["empty"], "empty"), (row["duplicates"], "copies")
    if any(count for count, _ in left_out):
        yield indent + "left out: " + ", ".join(f"{count} {what}" for count, what in left_out if count)
    yield from (f"{indent}rejected  {reason}" for reason in read["reasons"][:3])


def _teacher(teacher: dict[str, Any]) -> Iterator[str]:
    yield (
        f"SFT teacher   answered {_percent(teacher['answered'], teacher['turns'])} of {teacher['turns']} turns, "
        f"{_percent(teacher['correct'], teacher['answered'])} of them right; "
        f"{teacher['samples']} of {teacher['trajectories']} trajectories give a sample"
    )
    families = (f"{name} {f['correct']}/{f['answered']}" for name, f in teacher["families"].items())
    indent = " " * 14
    yield from textwrap.wrap(", ".join(families), 120, initial_indent=indent, subsequent_indent=indent)


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"
