"""RL's trainer: TRL's GRPOTrainer as GSPO (arXiv:2507.18071), with what this pipeline changes in it, and why.

Prompts are token ids, what has no reward leaves group and loss, rollouts survive a resume. Sampling stands in
`rollout_batches.py` and `vllm_rollouts.py`.
"""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from accelerate.utils import send_to_device
from torch.utils.data import Sampler
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from agentworld.data.errors import ContentError
from agentworld.train import vllm_rollouts
from agentworld.train.rollout_batches import BatchedRollouts
from agentworld.train.trainers import StageTrainer


class EpochSampler(RepeatSampler):
    """TRL's order of the prompts, also where a run goes on in a later pass over them. TRL's generator is seeded once,
    so in a new process its first pass is that of epoch 0 again, whatever epoch is resumed."""

    def __init__(self, epoch: Callable[[], int], stock: RepeatSampler) -> None:
        """`epoch`: the passes that are finished when an iteration begins."""
        names = ("data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "seed")
        super().__init__(**{name: getattr(stock, name) for name in names})
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            self.generator.manual_seed(self.seed)
            for _ in range(self._epoch()):
                torch.randperm(self.num_samples, generator=self.generator)
        return super().__iter__()


class GspoTrainer(StageTrainer, BatchedRollouts, GRPOTrainer):
    """`trl.GRPOTrainer` whose prompts are keys into a table of token ids, and whose rollouts survive a resume."""

    def __init__(
        self,
        *args,
        prompt_ids: dict[str, list[int]],
        judge_failed_limit: float = 1.0,
        vllm_directory: Path | None = None,
        **kwargs,
    ) -> None:
        """`judge_failed_limit`: above this share of failed judgements in a rollout the stage stops. `vllm_directory`:
        where a colocated vLLM starts from."""
        self._prompt_ids = prompt_ids
        self._judge_failed_limit = judge_failed_limit
        self._said_nothing_is_learnt = False
        with vllm_rollouts.started_from(vllm_directory):
            super().__init__(*args, **kwargs)
        if self.use_vllm:
            vllm_rollouts.check_server(self.vllm_generation, self.args.vllm_max_model_length)
            vllm_rollouts.send_exported_tensors(self.vllm_generation)
        # Ranks that generate different lengths would wait for each other in ZeRO's and AutoEP's collectives.
        if self.args.world_size > 1:
            self.model.generate = functools.partial(self.model.generate, synced_gpus=True)

    def _get_train_sampler(self, dataset=None) -> Sampler:
        return EpochSampler(lambda: int(self.state.epoch or 0), super()._get_train_sampler(dataset))

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict]:
        """Prompt keys to the ids of the one renderer: text is never tokenised again, so rollout = training history."""
        return [list(self._prompt_ids[key]) for key in prompts], None, {}

    def _row_names(self, inputs) -> list[str]:
        """Keys of the prompts in the micro-batch."""
        keys = {tuple(ids): key for key, ids in self._prompt_ids.items()}
        rows = zip(inputs["prompt_ids"], inputs["prompt_mask"], strict=True)
        return [keys.get(tuple(ids[mask.bool()].tolist()), "unknown") for ids, mask in rows]

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        """Shape (completions of all ranks, functions). A completion that one function could not score (None), or that
        was cut where `mask_truncated_completions` is set, has no reward: TRL would count the missing score as 0, and
        the cut completion in the mean of its group.

        In float64: in float32 the mean of eight rewards of 13.37 is another number, and TRL divides the difference by
        a deviation of nearly 0, so that a group of equal rewards would move the policy.
        """
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._lost = rewards.isnan().any(dim=1)
        if self.mask_truncated_completions:
            ends = {*self.eos_token_ids, self.processing_class.pad_token_id}
            cut = torch.tensor([ids[-1] not in ends for ids in completion_ids_list], device=rewards.device)
            self._lost |= self.accelerator.gather(cut)
        rewards[self._lost] = torch.nan
        return rewards.double()

    def _generate_and_score_completions(self, inputs) -> dict:
        """What has no reward leaves the loss (numerator here, denominator in `_prepare_inputs`) and the KL term."""
        output = super()._generate_and_score_completions(inputs)
        first = self.accelerator.process_index * len(inputs)
        output["advantages"] = output["advantages"].float()
        self._say_where_nothing_is_learnt()
        output["kept"] = ~self._lost[first : first + len(inputs)]
        output["completion_mask"] = output["completion_mask"] * output["kept"].unsqueeze(1)
        self._metrics["train"]["completions/kept_ratio"].append(1 - self._lost.float().mean().item())
        return output

    def _say_where_nothing_is_learnt(self) -> None:
        """Once, at the first rollout whose groups are all of equal rewards."""
        metrics = self._metrics["train"]
        if self._said_nothing_is_learnt or metrics["frac_reward_zero_std"][-1] < 1.0:
            return
        self._said_nothing_is_learnt = True
        if self.accelerator.is_main_process:
            print(
                f"rl  step {self.state.global_step + 1}: the completions of each prompt have equal rewards (mean "
                f"{metrics['reward'][-1]:.2f}), from which nothing is learnt; frac_reward_zero_std in metrics.jsonl "
                "follows it. Rewards of 0 are answers of broken form: a longer SFT teaches it",
                flush=True,
            )

    def _prepare_inputs(self, generation_batch) -> dict:
        """Give each micro-batch of a new rollout `rows_per_kept`: rows over kept rows of its optimizer step, over all
        its micro-batches and ranks."""
        random_state = None if self._rollout_is_open() else _random_state()
        tokens = self.state.num_input_tokens_seen
        inputs = super()._prepare_inputs(generation_batch)
        if "rows_per_kept" not in inputs:
            self._require_judgements(random_state, tokens)
            accumulation = self.args.gradient_accumulation_steps
            local = torch.stack([batch["kept"].sum() for batch in self._buffered_inputs]).view(-1, accumulation).sum(1)
            kept = self.accelerator.reduce(local, reduction="sum")
            rows = len(inputs["kept"]) * accumulation * self.args.world_size
            for number, batch in enumerate(self._buffered_inputs):
                batch["rows_per_kept"] = rows / kept[number // accumulation].clamp(min=1)
        return inputs

    def _require_judgements(
        self, random_state: tuple[torch.Tensor, torch.Tensor | None] | None, tokens: int | torch.Tensor
    ) -> None:
        """Stop before anything is learnt from a rollout that the judge mostly failed on. The checkpoint is that of the
        step before, with random state and count of tokens from before the rollout: a resume samples the same
        completions, whose verdicts the cache holds, and asks for the missing ones only. The share is the same on all
        ranks."""
        share = (self._metrics["train"].get("judge/failed_share") or [0.0])[-1]
        if share <= self._judge_failed_limit:
            return
        step = self.state.global_step
        assert random_state is not None, "a rollout that is half used was judged before"
        if step:
            cpu_state, cuda_state = random_state
            torch.set_rng_state(cpu_state)
            if cuda_state is not None:
                torch.cuda.set_rng_state(cuda_state)
            self.state.num_input_tokens_seen = tokens
            self._save_checkpoint(self.model, trial=None)
        kept = f"step {step} is saved" if step else "no step was taken"
        raise ContentError(
            f"rl stopped: {share:.0%} of the judgements of a rollout failed, more than reward.judge.failed_limit="
            f"{self._judge_failed_limit:g}; {kept}, nothing was learnt from the rollout; the first reason stands "
            "above; when the judge answers again, resume=true continues"
        )

    def _compute_loss(self, model, inputs) -> torch.Tensor:
        """Mean over the kept sequences of the optimizer step. TRL's `grpo` loss is the mean over all rows of a
        micro-batch, lost ones included (trl/trainer/grpo_trainer.py:3154); it is linear in advantages and beta."""
        beta, scale = self.beta, inputs["rows_per_kept"]
        self.beta = beta * scale
        try:
            loss = super()._compute_loss(model, inputs | {"advantages": inputs["advantages"] * scale})
        finally:
            self.beta = beta
        self._log_ratio(inputs)
        return loss

    def _get_per_token_logps_and_entropies(self, *args, **kwargs) -> tuple:
        """Keep the log-probabilities for `_log_ratio`: TRL logs how many ratios it clips, not how large they are."""
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._log_probs = found[0].detach()
        return found

    def _log_ratio(self, inputs) -> None:
        """ratio/mean and ratio/max of the step: GSPO's ratio (arXiv:2507.18071 equation 7) of the kept sequences. The
        mean is that of the micro-batches, the maximum is over all of them."""
        mask, old = inputs["completion_mask"], inputs.get("old_per_token_logps")
        difference = torch.zeros_like(self._log_probs) if old is None else self._log_probs - old
        ratios = ((difference * mask).sum(1) / mask.sum(1).clamp(min=1)).exp()
        ratios = self.accelerator.gather(torch.where(mask.any(1), ratios, torch.nan))
        ratios = ratios[~ratios.isnan()]
        if len(ratios):
            metrics = self._metrics["train"]
            metrics["ratio/mean"].append(ratios.mean().item())
            metrics["ratio/max"] = [max(*metrics["ratio/max"], ratios.max().item(), 0.0)]

    def _rollout_is_open(self) -> bool:
        return self._step % (self.args.steps_per_generation * self.num_iterations) != 0

    def _save_more(self, directory: Path) -> None:
        """Store the rollout that is half used: TRL keeps it in memory only and would generate it anew on resume."""
        if self._rollout_is_open():
            torch.save(self._buffered_inputs, directory / f"rollout_{self.args.process_index}.pt")

    def _load_optimizer_and_scheduler(self, checkpoint_dir: str | None) -> None:
        """Continue inside the rollout: `_step` places the next micro-batch in it (TRL restarts it at 0)."""
        super()._load_optimizer_and_scheduler(checkpoint_dir)
        if checkpoint_dir is None:
            return
        self._step = self.state.global_step * self.args.gradient_accumulation_steps
        path = Path(checkpoint_dir) / f"rollout_{self.args.process_index}.pt"
        if self._rollout_is_open():
            buffered = torch.load(path, map_location="cpu", weights_only=True)
            self._buffered_inputs = send_to_device(buffered, self.accelerator.device)


def _random_state() -> tuple[torch.Tensor, torch.Tensor | None]:
    """Of torch's generators of the CPU and, where there is one, of this rank's GPU: what sampling draws from."""
    return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None
