"""Completions of an RL stage and of its pilot on disk: Parquet with one row a completion, its reward, and why.

What one filters by has a column of its own: `pandas.read_parquet("runs/x/rl/completions")` reads a whole stage. All
else of a reward's explanation (`hybrid.to_row`, `judge.Outcome.row`) stands in `details`, a JSON object:

    prompt, domain, action, deterministic     of the turn; prompt is its key
    completion, truth                         what was sampled, raw with its end of turn, and what was observed
    reward, rubric, rule                      null: no judgement, nothing scored, no verifier
    format ... quality                        the five dimensions, 1 to 5; null where none were scored
    win                                       0 to 1, where a judge compared a pair; else null
    guards                                    names of those that fired; their reasons stand in `details`
    reason                                    the reward in words
    step                                      optimizer steps taken when it was sampled
    sampled_tokens, ended                     of the completion; ended: by the end of turn, not by the limit
    details                                   JSON: verdicts, guards, judges, watchers, whatever the reward adds
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agentworld.data.outputs import replacing
from agentworld.rewards.rubric import RubricScores

DIMENSIONS = tuple(field.name for field in fields(RubricScores))
SCORES = (*DIMENSIONS, "win")  # those of a rubric, or that of a pair
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("prompt", "domain", "action")),
        ("deterministic", pa.bool_()),
        *((name, pa.string()) for name in ("completion", "truth")),
        *((name, pa.float64()) for name in ("reward", "rubric", "rule", *SCORES)),
        ("guards", pa.list_(pa.string())),
        ("reason", pa.string()),
        ("step", pa.int64()),
        ("sampled_tokens", pa.int32()),
        ("ended", pa.bool_()),
        ("details", pa.string()),
    ]
)
DERIVED = ("scores", "guards", *SCORES, "details")  # of a row, not written or read as they are


def to_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """A completion with the fields of its reward as SCHEMA has it."""
    direct = {name: row.get(name) for name in SCHEMA.names if name not in DERIVED}
    scores = row["scores"] or {}
    rest = {name: value for name, value in row.items() if name not in direct and name != "scores"}
    return {
        **direct,
        **{name: scores.get(name) for name in SCORES},
        "guards": [hit["name"] for hit in row["guards"]],
        "details": json.dumps(rest, ensure_ascii=False, allow_nan=False),
    }


def from_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The row that `to_columns` was given."""
    direct = {name: value for name, value in columns.items() if name not in DERIVED}
    scores = {name: columns[name] for name in SCORES if columns[name] is not None}
    return {**direct, "scores": scores or None, **json.loads(columns["details"])}


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """A reader finds the file whole or not at all."""
    table = pa.Table.from_pylist([to_columns(row) for row in rows], SCHEMA)
    with replacing(path) as temporary:
        pq.write_table(table, temporary)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, as they were written."""
    return [from_columns(columns) for columns in pq.ParquetFile(path).read().to_pylist()]


def observations(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """For a step's metrics, by domain: reward, its parts and the five dimensions, as lists with one value for each
    completion that has one; their means are what is logged.

    domain/<domain>/reward, rubric        of the completions that have a reward; a broken form has 0
    domain/<domain>/rule                  0 or 25, of those to which a verifier applied
    domain/<domain>/format ... quality    1 to 5, of those that were scored: not of broken forms; of pairs `win`
    """
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, value in ({part: row[part] for part in ("reward", "rubric", "rule")} | (row["scores"] or {})).items():
            if value is not None:
                found.setdefault(f"domain/{row['domain']}/{name}", []).append(value)
    return found
