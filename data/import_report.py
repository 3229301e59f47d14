"""What became of every record of an import: counted file by file, written as JSON, and told on the screen."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentworld.data import cleaning, redaction
from agentworld.data.unicode_text import without_lone_surrogates

REASONS_KEPT = 1000  # of a file, in the report; all are counted
SKIPPED_KEPT = 1000  # entries of folders that are no files, in the report; all are counted
SHOWN_REASONS, SHOWN_FILES = 10, 3  # on the screen

NUMBERS = ("read", "kept", "rejected", "turns", "turns_read", "replaced_surrogates")
COUNTERS = {  # of a file, with the names that each may hold
    "turns_removed": (*cleaning.TURN_FILTERS, cleaning.OF_REJECTED),
    "filtered": cleaning.TRAJECTORY_FILTERS,
    "redacted": redaction.KINDS,
}


@dataclass
class FileCount:
    """One file of the report; read = kept + rejected, turns_read = turns + all of turns_removed."""

    path: str
    format: str | None
    read: int = 0
    kept: int = 0
    rejected: int = 0
    turns: int = 0
    turns_read: int = 0
    replaced_surrogates: int = 0
    turns_removed: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)
    redacted: Counter[str] = field(default_factory=Counter)
    reasons: list[dict[str, str]] = field(default_factory=list)
    begins_with: str = ""  # of a file of no known format
    first_bad: dict[str, str] | None = None  # of what no filter rejected: damage, records that give nothing

    def reject(self, where: str, reason: str, dropped_by: str | None = None) -> None:
        self.read += 1
        self.rejected += 1
        entry = {"where": where, "reason": reason}
        if dropped_by is not None:
            self.filtered[dropped_by] += 1
        elif self.first_bad is None:
            self.first_bad = entry
        if len(self.reasons) < REASONS_KEPT:
            self.reasons.append(entry)

    def add(self, other: "FileCount") -> None:
        """Take in the count of a later unit of the same file."""
        for name in NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in COUNTERS:
            getattr(self, name).update(getattr(other, name))
        self.reasons += other.reasons[: REASONS_KEPT - len(self.reasons)]
        self.first_bad = self.first_bad or other.first_bad

    @property
    def is_unrecognised(self) -> bool:
        return self.format is None and self.read == 0


def make_report(
    counts: Sequence[FileCount],
    skipped: list[dict[str, str]],
    output: dict[str, Any] | None = None,
    stopped: str | None = None,
) -> dict[str, Any]:
    """The report.

    Args:
        skipped: entries of folders that are not read.
        output: what was written, with its hash; None where nothing was.
        stopped: why the import came to no output; the counts are then those of what was read before.
    """
    files = [
        {
            "path": count.path,
            "format": count.format,
            "read": count.read,
            "kept": count.kept,
            "turns_read": count.turns_read,
            "turns_kept": count.turns,
            "rejected_count": count.rejected,
            **{name: _named(getattr(count, name), names) for name, names in COUNTERS.items()},
            "rejected": count.reasons,
        }
        for count in counts
    ]
    totals: dict[str, Any] = {name: sum(getattr(count, name) for count in counts) for name in NUMBERS}
    totals["turns_kept"] = totals["turns"]
    for name, names in COUNTERS.items():
        totals[name] = _named(sum((getattr(count, name) for count in counts), Counter()), names)
    unrecognised = [{"path": count.path, "begins_with": count.begins_with} for count in counts if count.is_unrecognised]
    totals["unrecognised_files"] = len(unrecognised)
    totals["skipped"] = len(skipped)
    if output is not None:
        output = output | {"trajectories": totals["kept"], "turns": totals["turns"]}
    return {
        "output": output,
        "stopped": stopped,
        "totals": totals,
        "unrecognised": unrecognised,
        "skipped": skipped[:SKIPPED_KEPT],
        "files": files,
    }


def _named(counter: Counter[str], names: Sequence[str]) -> dict[str, int]:
    """Every name with its count, zeros included, in a fixed order."""
    assert counter.keys() <= set(names), f"{set(counter) - set(names)} is in no report"
    return {name: counter[name] for name in names}


def write_report(report: dict[str, Any], path: Path) -> None:
    """The report as JSON, whole or not at all."""
    text, _ = without_lone_surrogates(json.dumps(report, indent=1, ensure_ascii=False))
    temporary = path.parent / f".agentworld-report-{os.getpid()}"
    try:
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def summary(report: dict[str, Any], out: Path) -> str:
    """The totals, and a line for each format and each frequent reason, for the screen."""
    totals = report["totals"]
    rows = [f"{out}: {totals['kept']} trajectories, {totals['turns']} turns; {totals['rejected']} of {totals['read']} "
            f"records rejected, {totals['unrecognised_files']} files of no known format"]  # fmt: skip
    if report["output"] is not None:
        rows.append(f"  {report['output']['bytes']:,} bytes, sha256 {report['output']['sha256']}")
    if unrecognised := report["unrecognised"]:
        more = len(unrecognised) - SHOWN_FILES
        named = ", ".join(file["path"] for file in unrecognised[:SHOWN_FILES])
        rows.append(f"  of no known format: {named}" + (f" and {more} more (--report lists all)" if more > 0 else ""))
    if totals["skipped"]:
        first = report["skipped"][0]
        rows.append(f"  {totals['skipped']} entries of folders skipped, the first {first['path']}: {first['reason']}")
    by_format: dict[str, list[int]] = {}
    for file in report["files"]:
        if file["format"] is not None or file["read"]:
            entry = by_format.setdefault(file["format"] or "(damaged)", [0, 0, 0])
            for place, value in enumerate((1, file["kept"], file["rejected_count"])):
                entry[place] += value
    for name, (files, kept, rejected) in sorted(by_format.items()):
        rows.append(f"  {name:20} {files:6} files {kept:8} kept {rejected:8} rejected")
    removed = {f"{name} turns": n for name, n in totals["turns_removed"].items() if name != cleaning.OF_REJECTED}
    for title, counts in (("filters", {**totals["filtered"], **removed}), ("redacted", totals["redacted"])):
        rows.append(f"  {title}: " + (", ".join(f"{n} {name}" for name, n in counts.items() if n) or "nothing"))
    reasons = Counter(entry["reason"] for file in report["files"] for entry in file["rejected"])
    rows += [f"  {count:6} x {reason}" for reason, count in reasons.most_common(SHOWN_REASONS)]
    if len(reasons) > SHOWN_REASONS:
        rows.append(f"  and {len(reasons) - SHOWN_REASONS} more reasons, in --report")
    return "\n".join(rows)


def nothing_kept(report: dict[str, Any]) -> str:
    reasons = [entry for file in report["files"] for entry in file["rejected"]]
    seen = f"{len(report['files'])} files, {report['totals']['read']} records"
    if not reasons:
        return f"no trajectory in {seen}: {report['totals']['unrecognised_files']} files are of no known format"
    return f"no trajectory in {seen}; the first reason: {reasons[0]['where']}: {reasons[0]['reason']}"
