"""What is logged of the judges: how often they fail, whether they agree, what they cost."""

import time
from collections.abc import Sequence
from dataclasses import asdict

from agentworld.rewards.judge import Outcome, Panel, mean_scores

AGREEMENT = 0.5  # judges agree on a completion where their means lie at most this far apart, on the scale 1 to 5


class Watch:
    """Measures the judgements of a rollout: what the counters of a panel gained, and the seconds that were waited."""

    def __init__(self, panel: Panel) -> None:
        self._panel, self._before, self._started = panel, _totals(panel), time.monotonic()

    def totals(self) -> dict[str, float]:
        """Sums of this rank: requests, retries, cached, tokens and cost of judges and watchers together."""
        return {name: value - self._before[name] for name, value in _totals(self._panel).items()}

    def waits(self) -> None:
        """The clock starts here: what was asked before ran beside other work."""
        self._started = time.monotonic()

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
    judge/agreement           share of completions on which all judges lie within AGREEMENT of each other
    judge/watchers_gap        the judges' mean minus the watchers', on the scale 1 to 5: it grows when the policy
                              learns to please the judge
    """
    verdicts = [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
    found: dict[str, list[float]] = {
        "judge/failed_share": [float(verdict.scores is None) for verdict in verdicts],
        "judge/windowed_share": [float(verdict.dropped_turns > 0) for verdict in verdicts],
    }
    for verdict in verdicts:
        for model, judged in (verdict.by_judge | verdict.watched).items():
            found.setdefault(f"judge/rubric/{model}", []).append(judged.scores.mean)
        means = [judged.scores.mean for judged in verdict.by_judge.values()]
        if verdict.scores is not None and len(means) > 1:
            found.setdefault("judge/agreement", []).append(float(max(means) - min(means) <= AGREEMENT))
        if verdict.scores is not None and verdict.watched:
            watched = mean_scores([judged.scores for judged in verdict.watched.values()])
            found.setdefault("judge/watchers_gap", []).append(verdict.scores.mean - watched.mean)
    return {name: values for name, values in found.items() if values}
