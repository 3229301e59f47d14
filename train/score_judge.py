"""The judge of `agentworld score`: what it will cost, how far it is, what it did."""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from agentworld.data.errors import ContentError
from agentworld.data.visible_text import visible
from agentworld.rewards.judge import CACHE_FILE, Panel
from agentworld.rewards.judge_checks import require_judge
from agentworld.rewards.judge_metrics import observations
from agentworld.rewards.judge_prompt import estimated_tokens
from agentworld.rewards.outcomes import Completion, Outcome
from agentworld.rewards.settings import JUDGED, RewardSettings

SECONDS_BETWEEN_LINES = 5.0


def cache_path(settings: RewardSettings, out: Path | None) -> Path:
    """Where verdicts are kept: as the reward says, else beside what is written, else in the working directory."""
    return Path(settings.judge.cache) if settings.judge.cache else (out.parent if out else Path()) / CACHE_FILE


def rewards(completions: Sequence[Completion], settings: RewardSettings, out: Path | None) -> list[Outcome]:
    """The reward of each completion, in order, by the judges or, where the reward asks none, offline.

    No rank waits for another here, so `reward.judge.deadline` does not apply; timeout and attempts do. There is no
    tokenizer here either: a token is four bytes of UTF-8 for the budget of the history and the pacing, while the tokens
    told at the end are those that the endpoint counted.

    Raises:
        RequestError: no endpoint, no model, or no key in the environment.
        ContentError: the cache cannot be used, or Reference-Reward lacks an answer to compare with.
    """
    if settings.rubric not in JUDGED:
        return [Outcome(item.reward(settings, None)) for item in completions]
    require_judge(settings)
    settings = replace(settings, judge=replace(settings.judge, deadline=math.inf))
    panel = Panel(settings, cache_path(settings, out), estimated_tokens, progress=_Progress())
    needed = panel.needed(completions)
    cost = f", which cost {needed.prompt_cost:.4g}" if needed.prompt_cost else ""
    names = ", ".join(client.model for client in (*panel.judges, *panel.watchers))
    _say(
        f"{names}: {needed.judgements:,} judgements to ask for, {needed.cached:,} in {cache_path(settings, out)}; "
        f"about {needed.prompt_tokens:,} prompt tokens{cost}, replies not counted"
    )
    outcomes = panel.rewards(completions)
    for line in summary(panel, outcomes):
        print(visible(line))
    return outcomes


def summary(panel: Panel, outcomes: Sequence[Outcome]) -> list[str]:
    """What each judge did, and how the judges compare."""
    found = observations(outcomes)
    lines = []
    for client in (*panel.judges, *panel.watchers):
        counts = client.counts
        level = [
            f"; mean {name} {fmean(values):.2f}"
            for name in ("rubric", "win", "first")
            if (values := found.get(f"judge/{name}/{client.model}"))
        ]
        lines.append(
            f"{client.model}: {counts.judged:,} judged, {counts.cached:,} cached, {counts.failed:,} failed; "
            f"{counts.requests:,} requests, {counts.retries:,} of them repeated; {counts.prompt_tokens:,} + "
            f"{counts.completion_tokens:,} tokens, cost {counts.cost:.4g}{''.join(level)}"
        )
    rest = ("judge/windowed_share", "judge/agreement", "judge/watchers_gap")
    told = [f"{name.partition('/')[2]} {fmean(found[name]):.3g}" for name in rest if name in found]
    return [*lines, "judges: " + ", ".join(told)] if told else lines


def require_judgements(settings: RewardSettings, outcomes: Sequence[Outcome], written: str) -> None:
    """Fail where the judge failed too often.

    Args:
        written: what has been written all the same, for the message.

    Raises:
        ContentError: above `reward.judge.failed_limit`.
    """
    verdicts = [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
    failed = sum(verdict.scores is None for verdict in verdicts)
    if failed > settings.judge.failed_limit * len(verdicts):
        raise ContentError(
            f"the judge failed on {failed} of {len(verdicts)} predictions, more than reward.judge.failed_limit="
            f"{settings.judge.failed_limit:g}; the first reason stands above; {written}; the same command again asks "
            "for these only"
        )


@dataclass
class _Progress:
    """Called after each judgement; says on stderr how far it is, now and then."""

    told: float = field(default_factory=time.monotonic)

    def __call__(self, answered: int, asked: int) -> None:
        if answered == asked or time.monotonic() - self.told < SECONDS_BETWEEN_LINES:
            return
        self.told = time.monotonic()
        _say(f"{answered:,} of {asked:,} judgements")


def _say(line: str) -> None:
    print(visible(line), file=sys.stderr, flush=True)
