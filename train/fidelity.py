"""Fidelity without a judge: predicted observations against real ones, and the arithmetic of the sampled RL reward.

Every metric compares the extracted prediction with the real observation as they are; nothing is stripped. A metric over
zero turns is None, never 0.

    exact_match                 share of turns predicted character for character
    exact_match_deterministic   the same over the turns marked deterministic
    edit_similarity             mean of 1 - Levenshtein distance / longer length, in characters; two empty texts give 1
    token_f1                    mean F1 of two multisets of tokens; a token is a run of word characters or one other
                                visible sign (`\\w+|[^\\w\\s]`), case kept; two texts without tokens give 1, one gives 0
    json_match                  share that parse and are equal, over turns whose truth is a JSON object or array
    format_valid                share with exactly one closed tag and nothing after it, over turns that ask for a tag
    empty_rate                  share of predictions that are the empty string
    n                           number of turns
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import stdev
from typing import Any

from rapidfuzz.distance import Levenshtein

from agentworld.data.examples import Example

METRICS = (
    "exact_match",
    "exact_match_deterministic",
    "edit_similarity",
    "token_f1",
    "json_match",
    "format_valid",
    "empty_rate",
)

_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Scored:
    """One prediction beside its truth. `deterministic` is None where unknown, `tag_valid` where no tag was asked."""

    prediction: str
    reference: str
    deterministic: bool | None
    domain: str
    tag_valid: bool | None


def fidelity(items: Sequence[Scored]) -> dict[str, Any]:
    """The metrics of this module's heading over all items, and the same a domain under `domains` (sorted by name)."""
    domains = sorted({item.domain for item in items})
    by_domain = {name: _metrics([item for item in items if item.domain == name]) for name in domains}
    return {**_metrics(items), "domains": by_domain}


def baselines(examples: Sequence[Example], train_observations: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Fidelity of two predictors that know nothing of the world.

    `copy_last_observation` answers with the observation before; at the first turn of a session, where there is none,
    with the empty string. `most_frequent_observation` answers always with the most frequent observation of the training
    pools; of several equally frequent ones the first in code point order; with the empty string if there are none.
    """
    counts = Counter(train_observations)
    frequent = min(counts, key=lambda text: (-counts[text], text), default="")
    copied = [example.history[-1].observation if example.history else "" for example in examples]
    return {
        "copy_last_observation": fidelity([_untagged(e, text) for e, text in zip(examples, copied, strict=True)]),
        "most_frequent_observation": fidelity([_untagged(e, frequent) for e in examples]),
    }


def reward_summary(rewards: Sequence[Sequence[float | None]], greedy: Sequence[float | None]) -> dict[str, Any]:
    """Sum up the RL reward on held-out prompts.

    Args:
        rewards: one list a prompt, with the reward of each of its draws; all of one length. None where a judge failed:
            such a draw counts nowhere.
        greedy: the reward of the greedy answer, one a prompt.

    Returns:
        `mean` of the per-prompt means, its `standard_error` = standard deviation of the per-prompt means (ddof 1) /
        sqrt(n), `n` prompts with a reward, `draws` a prompt, `greedy_mean`, and `per_prompt`, the per-prompt means in
        the order given (None: no draw has a reward), from which stages are compared prompt by prompt. What needs more
        prompts than there are is None. `failed` counts the draws and greedy answers without a reward.
    """
    draws = {len(row) for row in rewards}
    assert len(draws) <= 1 and 0 not in draws, f"prompts with different numbers of draws: {sorted(draws)}"
    assert len(greedy) == len(rewards), f"{len(greedy)} greedy answers for {len(rewards)} prompts"
    per_prompt = [_mean(_present(row)) for row in rewards]
    scored = _present(per_prompt)
    return {
        "mean": _mean(scored),
        "standard_error": _standard_error(scored),
        "n": len(scored),
        "draws": draws.pop() if draws else 0,
        "greedy_mean": _mean(_present(greedy)),
        "per_prompt": per_prompt,
        "failed": sum(value is None for row in (*rewards, greedy) for value in row),
    }


def paired_difference(after: Sequence[float | None], before: Sequence[float | None]) -> dict[str, Any]:
    """Mean of after - before over the same prompts in the same order, its standard error, and n; a prompt without a
    reward on one side is left out.

    The spread between prompts, which both sides share, falls out; so this is a sharper comparison than two means.
    """
    assert len(after) == len(before), f"{len(after)} prompts against {len(before)}: not the same prompts"
    pairs = zip(after, before, strict=True)
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    return {"mean": _mean(differences), "standard_error": _standard_error(differences), "n": len(differences)}


def _metrics(items: Sequence[Scored]) -> dict[str, Any]:
    json_items = [(item, truth) for item in items if isinstance(truth := _parse_json(item.reference), dict | list)]
    return {
        "exact_match": _mean([item.prediction == item.reference for item in items]),
        "exact_match_deterministic": _mean([i.prediction == i.reference for i in items if i.deterministic]),
        "edit_similarity": _mean([edit_similarity(item.prediction, item.reference) for item in items]),
        "token_f1": _mean([token_f1(item.prediction, item.reference) for item in items]),
        "json_match": _mean([_parse_json(item.prediction) == truth for item, truth in json_items]),
        "format_valid": _mean([item.tag_valid for item in items if item.tag_valid is not None]),
        "empty_rate": _mean([item.prediction == "" for item in items]),
        "n": len(items),
    }


def edit_similarity(prediction: str, reference: str) -> float:
    """1 - Levenshtein distance / longer length, in characters; 1 for two empty texts."""
    return Levenshtein.normalized_similarity(prediction, reference)


def token_f1(prediction: str, reference: str) -> float:
    """F1 of the two multisets of tokens; 1 if neither text has a token."""
    answer, truth = Counter(_TOKEN.findall(prediction)), Counter(_TOKEN.findall(reference))
    total = answer.total() + truth.total()
    return 2 * (answer & truth).total() / total if total else 1.0


def _parse_json(text: str) -> Any:
    """The JSON value, with numbers as ("number", Decimal) so that 1 equals 1.0 but not true; None if it does not parse.

    (A text that is the JSON null gives None too; only objects and arrays are ever compared.)
    """
    if not text.lstrip(" \t\r\n").startswith(("{", "[")):
        return None
    try:
        return json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_refuse_constant)
    except (ValueError, RecursionError, ArithmeticError):  # ArithmeticError: an exponent beyond any Decimal
        return None


def _number(digits: str) -> tuple[str, Decimal]:
    return ("number", Decimal(digits))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _untagged(example: Example, prediction: str) -> Scored:
    return Scored(prediction, example.observation, example.deterministic, example.domain, tag_valid=None)


def _present(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float | bool]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _standard_error(values: Sequence[float]) -> float | None:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
