"""A model of the run sampled outside a trainer, and the reward of what it says: for evaluation and for the pilot."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from agentworld.data.render import Renderer
from agentworld.data.tokenizer import load_tokenizer
from agentworld.rewards.judge import CACHE_FILE, Completion, Outcome, Panel, reward_all
from agentworld.rewards.settings import JUDGED, RewardSettings, reward_outside_rl
from agentworld.rewards.turn_verifiers import load
from agentworld.train import divided, engine, model, stop
from agentworld.train.config import Config

GREEDY = 0.0  # as a temperature


class Generator:
    """A model that answers prompts of token ids, in batches of similar length."""

    def __init__(self, config: Config, run_dir: Path, weights: Path) -> None:
        self.config, self.run_dir = config, run_dir
        self.renderer = Renderer(load_tokenizer(run_dir / "data" / "tokenizer"))
        self.device = engine.device(config.engine)
        self.divided = config.eval.divided
        if self.divided:
            self.model = divided.load(config, weights)
        else:
            self.model = model.load(weights, config.model.dtype, self.device).eval()

    def answer(self, prompts: Sequence[list[int]], max_new_tokens: int, temperature: float) -> list[list[int]]:
        """Token ids of one completion for each prompt, in order; collective.

        Args:
            temperature: GREEDY, or that of sampling from the whole distribution.

        Raises:
            StoppedError: a stop was asked for between two batches.
        """
        answers: list[list[int]] = [[] for _ in prompts]
        batches = list(self._batches(prompts))
        # Ranks agree before each batch, so that none waits for one that left.
        for number in range(engine.largest(len(batches))):
            leave_if_stopped(self.run_dir, "sampling")
            batch = batches[number] if number < len(batches) else []
            if batch:
                completions = self._generate([prompts[i] for i in batch], max_new_tokens, temperature)
                for place, ids in zip(batch, completions, strict=True):
                    answers[place] = ids
            elif self.divided:  # the others need this rank's part of the model
                self._generate([[self.renderer.end_id]], 1, GREEDY)
        return answers

    def _batches(self, prompts: Sequence[list[int]]) -> Iterator[list[int]]:
        order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))
        size = self.config.eval.batch_size
        return (order[start : start + size] for start in range(0, len(order), size))

    @torch.no_grad()
    def _generate(self, prompts: list[list[int]], max_new_tokens: int, temperature: float) -> list[list[int]]:
        """Left-padded [B, longest prompt] in, [B, new] out, padding cut off."""
        longest = max(map(len, prompts))
        pad = self.renderer.pad_id
        ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts], device=self.device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=self.device)
        sampling = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}
        out = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            eos_token_id=self.renderer.end_id,
            pad_token_id=pad,
            use_cache=True,
            synced_gpus=self.divided,  # a rank that is done goes on until all are
            **({"do_sample": False} if temperature == GREEDY else sampling),
        )
        rows = out[:, longest:].tolist()
        end = self.renderer.end_id
        return [row[: row.index(end) + 1] if end in row else row for row in rows]


def leave_if_stopped(run_dir: Path, what: str) -> None:
    """Raise StoppedError on all ranks when one of them was asked to stop; collective."""
    if engine.largest(int(stop.requested(run_dir))):
        raise stop.StoppedError(f"{what} stopped")


def judgements(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Failed judgements, and all that were asked for; also where `reward.judge.on_failure=zero` gave a reward."""
    verdicts = [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
    return sum(verdict.scores is None for verdict in verdicts), len(verdicts)


def panel_of(settings: RewardSettings, run_dir: Path, renderer: Renderer) -> Panel | None:
    """The judges of a reward; None where it asks none."""
    if settings.rubric not in JUDGED:
        return None
    return Panel(settings, run_dir / CACHE_FILE, renderer.count, engine.world_size())


class Rewarder:
    """The recipe's reward outside RL, with its judges and synthesised verifiers."""

    def __init__(self, generator: Generator, on_failure: str = "") -> None:
        """`on_failure`: in place of that of `reward.judge`."""
        self._generator, self._settings = generator, reward_outside_rl(generator.config.reward)
        if on_failure:
            self._settings = replace(self._settings, judge=replace(self._settings.judge, on_failure=on_failure))
        self._panel = panel_of(self._settings, generator.run_dir, generator.renderer)
        self._verifiers = load(self._settings.verifiers)

    def outcomes(self, keys: Sequence[str], items: Sequence[Completion]) -> list[Outcome]:
        """The outcome of each completion, in order; `keys`: of their prompts. Judged in rounds of the size of a
        rollout, for which the recipe's limits were checked; all ranks begin them together, so that none waits for
        another beyond the deadline."""
        rl = self._generator.config.rl
        at_once = max(1, rl.prompts_per_rollout * rl.num_generations // engine.world_size())
        if self._verifiers:
            items = self._verifiers.ruled(keys, items)
        found: list[Outcome] = []
        for first in range(0, engine.largest(len(items)), at_once):
            leave_if_stopped(self._generator.run_dir, "judging")
            found += reward_all(items[first : first + at_once], self._settings, self._panel)
        return found


def stored_row(
    key: str, item: Completion, found: Mapping[str, Any], text: str, tokens: int, step: int
) -> dict[str, Any]:
    """A completion as `rewards.completions` keeps it.

    Args:
        key: of the prompt; found: `Outcome.row`; text: what was sampled, decoded with its control tokens.
        tokens: that were sampled; step: optimizer steps taken before.
    """
    turn = {"prompt": key, "domain": item.domain, "action": item.action, "deterministic": item.deterministic}
    said = {"completion": text, "truth": item.truth, "sampled_tokens": tokens, "ended": item.prediction.ended}
    initial = {} if item.reference_answer is None else {"reference_answer": item.reference_answer}
    return {**turn, **found, **said, **initial, "step": step}
