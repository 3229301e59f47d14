"""Rollouts in batches of similar length, each of which can be judged while the next is sampled."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol


class Judging(Protocol):
    """Whoever judges completions early (`agentworld.train.rl_reward.EarlyJudging`)."""

    def begin(self, rows: Sequence[dict[str, Any]], completion_ids: Sequence[list[int]]) -> None:
        """Take finished completions and their rows of the data set; returns at once."""

    def abandon(self) -> None:
        """The rollout failed: leave no thread behind."""


class BatchedRollouts:
    """Mixed in front of `trl.GRPOTrainer`. Attributes: `rollout_batch_size`, prompts at once, 0 = all of this rank;
    `judging`, None where nothing is judged early."""

    rollout_batch_size = 0
    judging: Judging | None = None

    def _generate_single_turn(self, prompt_ids: list[list[int]], *arguments: Any, **options: Any) -> tuple:
        """TRL pads all prompts of a rank to the longest and samples until the last completion ends. Here short prompts
        stand with short ones, and what is finished goes to the judge. Every rank has as many prompts, so as many calls.

        A completion stops at the end of the turn only, not at the closing tag: the policy has to learn to end there.
        """
        completions: list[list[int]] = [[] for _ in prompt_ids]
        for batch in self._batches(prompt_ids):
            # vLLM's log-probabilities come for all prompts at once: `rl.gspo_trainer` sets no batches there.
            sampled, logprobs = super()._generate_single_turn([prompt_ids[i] for i in batch], *arguments, **options)
            for place, ids in zip(batch, sampled, strict=True):
                completions[place] = ids
            if self.judging is not None:
                self.judging.begin([self._rows[place] for place in batch], sampled)
        return completions, logprobs

    def _batches(self, prompt_ids: Sequence[list[int]]) -> Iterator[list[int]]:
        """Places of the prompts: all in their order, or where there are too many sorted by length."""
        count, size = len(prompt_ids), self.rollout_batch_size
        if not 0 < size < count:
            yield list(range(count))
            return
        order = sorted(range(count), key=lambda i: (len(prompt_ids[i]), i))
        yield from (order[start : start + size] for start in range(0, count, size))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Remember what the prompts belong to, and let no judge run on when sampling or scoring fails."""
        self._rows = inputs
        try:
            return super()._generate_and_score_completions(inputs)
        except BaseException:
            if self.judging is not None:
                self.judging.abandon()
            raise
