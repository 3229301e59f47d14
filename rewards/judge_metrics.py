"""What is logged of the judges: how often they fail, whether they agree, what they cost."""

import time
from collections.abc import Sequence
from dataclasses import asdict

from agentworld.rewards.judge import Outcome, Panel, mean_scores
from agentworld.rewards.judge_questions import Scores
from agentworld.rewards.preference import DRAW, TIE, A, B, Preference

AGREEMENT = 0.5  # judges agree on a completion where their means lie at most this far apart, on the scale 1 to 5


class Watch:
    """Measures one call of a panel: what its counters gained, and the seconds."""

    def __init__(self, panel: Panel) -> None:
        self._panel, self._before, self._started = panel, _totals(panel), time.monotonic()

    def totals(self) -> dict[str, float]:
        """Sums of this rank: requests, retries, cached, tokens and cost of judges and watchers together."""
        return {name: value - self._before[name] for name, value in _totals(self._panel).items()}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started


def _totals(panel: Panel) -> dict[str, float]:
    rows = [asdict(client.counts) for client in (*panel.judges, *panel.watchers)]
    return {name: sum(row[name] for row in rows) for name in rows[0]}


def observations(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Metrics as lists with one value for each completion that they apply to; their means are what is logged.

    judge/failed_share        of the completions that were to be judged
    judge/windowed_share      of them, those whose history did not fit the budget
    judge/rubric/<model>      a judge's or watcher's own mean, 1 to 5
    judge/win/<model>         of pairs instead: its own win, 0 to 1
    judge/first/<model>       of pairs: share of its choices that were A; far from 0.5 it looks at the place
    judge/agreement           share of completions on which all judges lie within AGREEMENT of each other (of pairs:
                              say the same)
    judge/watchers_gap        the judges' mean minus the watchers', on the scale 1 to 5, or 0 to 1 of pairs: it grows
                              when the policy learns to please the judge
    """
    verdicts = [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
    found: dict[str, list[float]] = {
        "judge/failed_share": [float(verdict.scores is None) for verdict in verdicts],
        "judge/windowed_share": [float(verdict.dropped_turns > 0) for verdict in verdicts],
    }
    for verdict in verdicts:
        for model, opinion in (verdict.by_judge | verdict.watched).items():
            paired = isinstance(opinion.scores, Preference)
            found.setdefault(f"judge/{'win' if paired else 'rubric'}/{model}", []).append(level(opinion.scores))
            if paired:
                first = [{A: 1.0, B: 0.0, TIE: DRAW}[judged.scores] for _, judged in opinion.replies]
                found.setdefault(f"judge/first/{model}", []).extend(first)
        levels = [level(opinion.scores) for opinion in verdict.by_judge.values()]
        if verdict.scores is not None and len(levels) > 1:
            allowed = 0.0 if isinstance(verdict.scores, Preference) else AGREEMENT
            found.setdefault("judge/agreement", []).append(float(max(levels) - min(levels) <= allowed))
        if verdict.scores is not None and verdict.watched:
            watched = mean_scores([opinion.scores for opinion in verdict.watched.values()])
            found.setdefault("judge/watchers_gap", []).append(level(verdict.scores) - level(watched))
    return {name: values for name, values in found.items() if values}


def level(scores: Scores) -> float:
    """Scores as one number: the mean of the dimensions, 1 to 5, or the win of a pair, 0 to 1."""
    return scores.win if isinstance(scores, Preference) else scores.mean
