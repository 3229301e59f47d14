"""The reward of RL as TRL calls it: on sampled ids, judged while others are sampled, stored with its explanation."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from agentworld.data.render import Renderer
from agentworld.rewards import completions, hybrid
from agentworld.rewards.judge import Completion, Outcome, Panel, reward_all
from agentworld.rewards.judge_metrics import Watch, observations
from agentworld.rewards.settings import RewardSettings
from agentworld.rewards.turn_verifiers import TurnVerifiers, shares
from agentworld.train import engine
from agentworld.train.generation import stored_row

# Observation, action, deterministic, domain and reference answer (None: there is none).
Turn = tuple[str, str, bool | None, str, str | None]


def reward_function(
    tokenizer: PreTrainedTokenizerFast,
    settings: RewardSettings,
    directory: Path,
    prompt_ids: Mapping[str, Sequence[int]],
    panel: Panel | None,
    judging: "EarlyJudging | None" = None,
    verifiers: TurnVerifiers | None = None,
) -> Callable[..., list[float | None]]:
    """The reward as TRL calls it: on the sampled ids, since TRL's text has lost `<think>` and the end of turn.

    None where the judge failed: the trainer takes such a completion out of group and loss. Every completion is written
    with its reward and the reason to `completions/step_<n>_rank_<r>.parquet`, which `agentworld score` shows.

    Args:
        prompt_ids: what the model reads, by the prompt's key: judge, verifiers and guards get the model's own history.
        panel: the judges, None for the offline scorer.
        judging: whoever gave completions to the panel while others were sampled.
        verifiers: the synthesised ones of `reward.verifiers`.
    """
    renderer = Renderer(tokenizer)
    directory.mkdir(parents=True, exist_ok=True)

    def hybrid_reward(
        prompts, completion_ids, domain, action, observation, deterministic, trainer_state, log_metric,
        reference_answer=None, **_,
    ):  # fmt: skip
        initials = reference_answer or [None] * len(prompts)
        turns = list(zip(observation, action, deterministic, domain, initials, strict=True))
        items = completions_of(renderer, prompt_ids, prompts, completion_ids, turns)
        if verifiers:
            items = verifiers.ruled(prompts, items)
            for name, share in shares([item.ruling for item in items]).items():
                log_metric(name, share)
        watch = judging.watch() if judging else Watch(panel) if panel else None
        outcomes = reward_all(items, settings, panel)
        if watch:
            log_judgements(outcomes, watch, log_metric)
        step = trainer_state.global_step
        rows = [
            stored_row(key, item, outcome.row(), tokenizer.decode(ids), len(ids), step)
            for key, item, outcome, ids in zip(prompts, items, outcomes, completion_ids, strict=True)
        ]
        for name, share in hybrid.guard_shares(rows).items():
            log_metric(name, share)
        for name, values in completions.observations(rows).items():
            for value in values:
                log_metric(name, value)
        path = directory / f"step_{step:05d}_rank_{engine.rank()}.parquet"
        completions.write(path, rows)
        path.with_suffix(".jsonl").unlink(missing_ok=True)  # the same rollout, of a start before Parquet
        return [outcome.total for outcome in outcomes]

    return hybrid_reward


def delete_abandoned(directory: Path, step: int) -> None:
    """Delete completions that are about to be sampled again, and what a killed write has left. A rollout that is half
    used was sampled before `step`, and stays. They must go: other ranks may write other files than those they replace.

    Args:
        step: optimizer steps taken before.
    """
    for path in directory.glob("step_*_rank_*"):
        if int(path.name.split("_")[1]) >= step:
            path.unlink()
    for path in directory.glob(".step_*.tmp-*"):
        path.unlink()


def completions_of(
    renderer: Renderer,
    prompt_ids: Mapping[str, Sequence[int]],
    prompts: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    turns: Sequence[Turn],
) -> list[Completion]:
    """What was sampled, as the reward takes it."""
    # The samples of a group share their prompt, which may be long: it is taken apart once.
    read = {key: tuple(renderer.messages(prompt_ids[key])) for key in set(prompts)}
    return [
        Completion(renderer.parse(ids, tagged=True), *turn, read[key], initial)
        for key, ids, (*turn, initial) in zip(prompts, completion_ids, turns, strict=True)
    ]


def turn_of(row: Mapping[str, Any]) -> Turn:
    """The turn of a prompt, from its row of the data set."""
    return row["observation"], row["action"], row["deterministic"], row["domain"], row.get("reference_answer")


class EarlyJudging:
    """Gives completions to the judges as soon as they are sampled; the reward takes their verdicts up."""

    def __init__(self, panel: Panel, renderer: Renderer, prompt_ids: Mapping[str, Sequence[int]]) -> None:
        self._panel, self._renderer, self._prompt_ids = panel, renderer, prompt_ids
        self._watch: Watch | None = None

    def begin(self, rows: Sequence[Mapping[str, Any]], completion_ids: Sequence[Sequence[int]]) -> None:
        """Submit completions with their rows of the data set; returns at once."""
        self._watch = self._watch or Watch(self._panel)
        turns, prompts = [turn_of(row) for row in rows], [row["prompt"] for row in rows]
        self._panel.submit(completions_of(self._renderer, self._prompt_ids, prompts, completion_ids, turns))

    def watch(self) -> Watch:
        """Counts from the first submission of this rollout on, seconds from now on."""
        watch, self._watch = self._watch or Watch(self._panel), None
        watch.waits()
        return watch

    def abandon(self) -> None:
        """Give up what was submitted."""
        self._watch = None
        self._panel.abandon()


def log_judgements(outcomes: Sequence[Outcome], watch: Watch, log_metric: Callable[[str, float], None]) -> None:
    """The judge's metrics of a rollout. TRL averages the values of all ranks, so shares get one value a completion, and
    sums this rank's part times the number of ranks."""
    for name, values in observations(outcomes).items():
        for value in values:
            log_metric(name, value)
    for name, value in watch.totals().items():
        log_metric(f"judge/{name}", value * engine.world_size())
    log_metric("judge/seconds", watch.seconds)
