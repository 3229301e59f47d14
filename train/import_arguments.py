"""The arguments of `agentworld import`, without what reads them: a help text must not load the formats."""

import argparse
from pathlib import Path

from agentworld.train.arguments import not_negative, shard

IMPORT_HELP = """\
Turns agent logs of any known format into trajectories: JSON Lines, or Parquet where --out ends with .parquet. Files are
recognised by their content; what gives no trajectory is counted with its place and the reason.

example:
  agentworld import logs/ --out mine.jsonl --report import.json
  agentworld import logs/ --out mine.jsonl --report import.json --resume       go on after a kill or an interruption
  agentworld train recipe=smoke stage=cpt data.split.cpt=0.94 data.split.sft=0 data.split.rl=0 \\
    'data.trajectories=[mine.jsonl]'
"""


def add_import_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files, and folders to search")
    verb.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help=".jsonl or .parquet; written when complete"
    )
    formats = verb.add_argument(
        "--format", default="auto", metavar="NAME", help="auto: by content (default), or %(names)s"
    )
    formats.names = _FormatNames()  # type: ignore[attr-defined]  # argparse fills in help from the attributes
    verb.add_argument("--report", type=Path, metavar="FILE.json", help="what was kept and rejected, file by file")
    verb.add_argument("--on-bad", choices=("skip", "fail"), default="skip", help="a record that gives nothing")
    verb.add_argument("--shard", type=shard, default=(0, 1), metavar="I/N", help="the I-th of N parts, from 0")
    verb.add_argument("--workers", type=not_negative, default=0, help="processes; 0 = one a core (default)")
    verb.add_argument("--resume", action="store_true", help="go on with what a stopped import to --out finished")
    for name, what in (("filters", "the paper's filters"), ("redact", "personal data and secrets to placeholders")):
        verb.add_argument(f"--{name}", choices=("on", "off"), default="on", help=f"{what} (default on)")


class _FormatNames:
    """The names of the raw formats, loaded when a help text asks for them and not before."""

    def __str__(self) -> str:
        from agentworld.data.formats import FORMATS

        return ", ".join(known.name for known in FORMATS)
