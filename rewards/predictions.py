"""Rows of predictions to be scored, and stored completions of an RL stage, which have been scored already.

A row to be scored is a JSON object on a line (or a row of a Parquet file):

    id, domain, turn, action, truth     of the turn; `turn` counts from 0
    prediction                          what the model said, raw: thinking and tag included
    history                             optional: earlier turns, [[action, observation], ...] or objects of both
    deterministic, ended                optional booleans; `ended` false: cut at a token limit (default true)
    action_space,
    simulation_instruction              optional texts of the system prompt
    system                              optional: all of it, which a judge then reads in place of those two
    reference_answer                    the observation that the policy before RL predicted, for Reference-Reward

A stored completion has `prompt`, `completion`, `truth`, `reward` and `reason` (`completions.py`; older runs wrote JSON
Lines); it is shown with the reward that the policy was trained on. Other fields of a row are kept.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.render import OPEN_TAG, Prediction, parse_text, without_end
from agentworld.data.schema import DOMAINS, Turn
from agentworld.rewards import completions
from agentworld.rewards.judge_prompt import messages_of
from agentworld.rewards.outcomes import Completion, Outcome
from agentworld.rewards.verdicts import Context

FORMS = ("tagged", "plain")  # plain: the whole text is the prediction
STORED = ("prompt", "completion", "truth", "reward", "reason")
FILES = (".jsonl", ".parquet")  # of a folder
_TEXTS = ("action", "truth", "prediction")
_EXPLAINED = {"guards": {"name": str, "reason": str}, "verdicts": {"name": str, "reason": str, "passed": bool}}
_NEEDED = ("id", "domain", "turn", *_TEXTS)


@dataclass(frozen=True)
class Scored:
    """One row with its reward. `group`: the prompt that it answers; `text` and `thinking`: the prediction taken apart;
    `fields`: everything that is written, those of the input first."""

    group: str
    domain: str
    action: str
    truth: str
    text: str
    thinking: str | None
    fields: dict[str, Any]


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row of a file, or of all .jsonl and .parquet files of a folder, with its place for errors.

    Raises:
        RequestError: no such path, a folder without such files, or that of a stage, which holds others.
        ContentError: a line that is no JSON object, naming file and line.
    """
    if (path / "completions").is_dir():
        raise RequestError(f"{path} is the folder of a stage; its completions lie in {path / 'completions'}")
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in FILES and not p.name.startswith("."))
        if not files:
            raise RequestError(f"{path}: the folder holds no .jsonl or .parquet file")
    elif path.exists():
        files = [path]
    else:
        raise RequestError(f"{path}: no such file or folder")
    for file in files:
        yield from _parquet_rows(file) if file.suffix == ".parquet" else _json_rows(file)


def is_stored(row: dict[str, Any]) -> bool:
    """Whether a row is a stored completion of an RL stage."""
    return "prediction" not in row and all(name in row for name in STORED)


def stored(where: str, row: dict[str, Any]) -> Scored:
    """A stored completion as it was scored. Raises ContentError naming the field."""
    if row.keys() >= set(completions.SCHEMA.names):
        try:
            row = completions.from_columns(row)
        except (ValueError, TypeError, RecursionError) as error:
            raise ContentError(f"{where}: details: expected a JSON object: {error}") from None
    for name in ("prompt", "completion", "truth", "reason"):
        _require(isinstance(row[name], str), where, name, "a string", row[name])
    _require(row["reward"] is None or _is_number(row["reward"]), where, "reward", "a number or null", row["reward"])
    ended = row.get("ended", row["completion"] != without_end(row["completion"]))  # older runs did not store it
    prediction = _prediction(row["completion"], ended, "tagged")
    fields = {"rubric": None, "rule": None, "scores": None, "verdicts": [], "guards": []} | row
    _require_explained(where, fields)
    domain, action = str(row.get("domain") or "-"), str(row.get("action") or "")
    return Scored(row["prompt"], domain, action, row["truth"], prediction.text, prediction.thinking, fields)


def _require_explained(where: str, fields: dict[str, Any]) -> None:
    """What the table and the page read of a stored reward."""
    for name in ("rubric", "rule"):
        _require(fields[name] is None or _is_number(fields[name]), where, name, "a number or null", fields[name])
    scores = fields["scores"]
    right = scores is None or (isinstance(scores, dict) and all(map(_is_number, scores.values())))
    _require(right, where, "scores", "an object of numbers, or null", scores)
    for name, keys in _EXPLAINED.items():
        hits = fields[name] or []
        right = isinstance(hits, list) and all(
            isinstance(hit, dict) and all(isinstance(hit.get(key), kind) for key, kind in keys.items()) for hit in hits
        )
        _require(right, where, name, f"a list of objects with {', '.join(keys)}", hits)


def completion(where: str, row: dict[str, Any], form: str) -> Completion:
    """What a row asks to be rewarded.

    Args:
        form: one of FORMS: whether the prediction stands in the tag, or is the whole text.

    Raises:
        ContentError: a field is missing or of the wrong kind; names place and field.
    """
    missing = [name for name in _NEEDED if name not in row]
    if missing:
        raise ContentError(
            f"{where}: the row has no {', '.join(missing)}; a row to score needs {', '.join(_NEEDED)}; a completion of "
            f"an RL stage has {', '.join(STORED)}"
        )
    for name in _TEXTS:
        _require(isinstance(row[name], str), where, name, "a string", row[name])
    _require(isinstance(row["id"], str) or _is_integer(row["id"]), where, "id", "a string or a number", row["id"])
    _require(_is_integer(row["turn"]), where, "turn", "an integer", row["turn"])
    _require(row["domain"] in DOMAINS, where, "domain", "one of " + ", ".join(DOMAINS), row["domain"])
    deterministic, ended = row.get("deterministic"), row.get("ended", True)
    _require(
        deterministic is None or isinstance(deterministic, bool), where, "deterministic", "a boolean", deterministic
    )
    _require(isinstance(ended, bool), where, "ended", "a boolean", ended)
    prediction = _prediction(row["prediction"], ended, form)
    context = Context(
        row["domain"],
        _history(where, row.get("history")),
        _text(where, row, "action_space"),
        _text(where, row, "simulation_instruction"),
    )
    initial = row.get("reference_answer")
    _require(initial is None or isinstance(initial, str), where, "reference_answer", "a string", initial)
    world = _text(where, row, "system") or "\n\n".join(
        filter(None, (context.action_space, context.simulation_instruction))
    )
    messages = messages_of(world, context.history, row["action"])
    truth, action = row["truth"], row["action"]
    return Completion(prediction, truth, action, deterministic, row["domain"], messages, initial, context)


def scored(row: dict[str, Any], item: Completion, outcome: Outcome) -> Scored:
    """A row with what became of it."""
    prediction, group = item.prediction, f"{row['id']}#{row['turn']}"
    fields = {**row, **outcome.row()}
    return Scored(group, item.domain, item.action, item.truth, prediction.text, prediction.thinking, fields)


def has_tag(row: dict[str, Any]) -> bool:
    """Whether the raw prediction of a row holds the answer's tag at all."""
    return OPEN_TAG in str(row.get("prediction", ""))


def _prediction(raw: str, ended: bool, form: str) -> Prediction:
    text = without_end(raw)
    if form == "plain":
        return Prediction(text, None, ended, tag_valid=True, answer=text)
    return parse_text(text, ended)


def _history(where: str, value: Any) -> tuple[Turn, ...]:
    if value is None:
        return ()
    _require(isinstance(value, list), where, "history", "a list of turns", value)
    turns = []
    for number, turn in enumerate(value):
        pair = [turn.get("action"), turn.get("observation")] if isinstance(turn, dict) else turn
        right = isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
        _require(right, where, f"history[{number}]", "[action, observation], both strings", turn)
        turns.append(Turn(*pair))
    return tuple(turns)


def _text(where: str, row: dict[str, Any], name: str) -> str:
    value = row.get(name) or ""
    _require(isinstance(value, str), where, name, "a string", value)
    return value


def _json_rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with open(file, "rb") as lines:
        for number, raw in enumerate(lines, start=1):
            where = f"{file}:{number}"
            try:
                row = json.loads(raw, parse_constant=_no_number)
            except (ValueError, RecursionError) as error:
                why = f"not JSON: {error} (a truncated line?)" if raw.strip() else "a blank line; take it out"
                raise ContentError(f"{where}: {why}") from None
            _require(isinstance(row, dict), where, "the line", "a JSON object", row)
            yield where, row


def _parquet_rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(file).iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                where, number = f"{file}: row {number}", number + 1
                _require_json(where, row)
                yield where, row
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # a corrupt page is an OSError
        raise ContentError(f"{file}: no Parquet file that can be read: {error}") from None


def _require_json(where: str, row: dict[str, Any]) -> None:
    """A row is written as JSON, which has no dates, bytes, decimals and no NaN: told now, not after the judging."""
    for name, value in row.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            _require(False, where, name, "what JSON can hold (or leave the column out)", value)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require(holds: bool, where: str, name: str, expected: str, found: Any) -> None:
    if not holds:
        shown = repr(found)
        raise ContentError(
            f"{where}: {name}: expected {expected}, found {shown if len(shown) <= 80 else shown[:77] + '...'}"
        )


def groups_of(rows: Sequence[Scored]) -> dict[str, list[Scored]]:
    """The rows by domain, those of DOMAINS first and in their order."""
    order = {domain: place for place, domain in enumerate(DOMAINS)}
    found: dict[str, list[Scored]] = {}
    for row in sorted(rows, key=lambda row: order.get(row.domain, len(order))):
        found.setdefault(row.domain, []).append(row)
    return found
