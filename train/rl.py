"""Stage 3, RL: GSPO on one turn a trajectory (arXiv:2606.24597 section 3.4; GSPO: arXiv:2507.18071).

The policy answers a held history and an action; the answer is scored against the real observation; advantages are
relative to the group of samples of the same prompt; ratio and clip act on whole sequences. A rollout is used in
`mini_batches` optimizer steps, so that the ratio leaves 1 and the clip can act.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from datasets import Dataset
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig

from agentworld.data.errors import ContentError
from agentworld.data.render import Renderer
from agentworld.rewards import hybrid
from agentworld.rewards.judge import CACHE_FILE, NO_REFERENCE_ANSWER, Completion, Outcome, Panel, reward_all
from agentworld.rewards.judge_metrics import Watch, observations
from agentworld.rewards.settings import JUDGED, RewardSettings
from agentworld.rewards.turn_verifiers import TurnVerifiers, load, shares
from agentworld.train import engine, model
from agentworld.train.config import Config, RlSettings
from agentworld.train.stage import Stage, common_arguments, finish, open_stage, train
from agentworld.train.trainers import GspoTrainer


def run(config: Config, run_dir: Path) -> None:
    """Train RL and write its hand-off."""
    stage = open_stage("rl", config, run_dir)
    trainer = gspo_trainer(stage)
    train(stage, trainer)
    finish(stage, trainer, held_out=None)


def gspo_trainer(stage: Stage) -> GspoTrainer:
    """TRL's GRPOTrainer set to the GSPO objective, on the prompts that preparation rendered."""
    assert isinstance(stage.settings, RlSettings)
    arguments = gspo_arguments(stage, stage.settings)
    prompts = Dataset.from_parquet(str(stage.data / "prompts" / "rl.parquet"), cache_dir=str(stage.directory / "cache"))
    prompt_ids = dict(zip(prompts["prompt"], prompts["prompt_ids"], strict=True))
    settings = stage.config.reward
    panel = (
        Panel(settings, stage.run_dir / CACHE_FILE, Renderer(stage.tokenizer).count, engine.world_size())
        if settings.rubric in JUDGED
        else None
    )
    verifiers = load(settings.verifiers)
    if verifiers:
        covered = verifiers.coverage(zip(prompts["prompt"], prompts["observation"], strict=True))
        if engine.rank() == 0:
            print(f"rl  {covered}", flush=True)
    reward = reward_function(stage.tokenizer, settings, stage.directory / "completions", prompt_ids, panel, verifiers)
    return GspoTrainer(
        model=model.load(stage.parent, stage.config.model.dtype),
        reward_funcs=[reward],
        args=arguments,
        train_dataset=prompts.select_columns(reward_columns(prompts, settings)),
        processing_class=stage.tokenizer,
        prompt_ids=prompt_ids,
        judge_failed_limit=settings.judge.failed_limit,
    )


def reward_columns(prompts: Dataset, settings: RewardSettings) -> list[str]:
    """The columns of the prompts that the reward reads.

    Raises:
        ContentError: Reference-Reward, and a prompt lacks the answer of the policy before RL.
    """
    columns = ["prompt", "domain", "action", "observation", "deterministic"]
    if settings.rubric != "reference":
        return columns
    if "reference_answer" not in prompts.column_names or None in prompts["reference_answer"]:
        raise ContentError(f"rl: {NO_REFERENCE_ANSWER}")
    return [*columns, "reference_answer"]


def gspo_arguments(stage: Stage, settings: RlSettings) -> GRPOConfig:
    """`steps_per_generation` counts micro-steps: mini_batches optimizer steps a rollout are `mini_batches` times the
    accumulation steps. With fewer the ratio is exactly 1 and GSPO never clips, silently."""
    accumulation = accumulation_steps(settings, engine.world_size())
    return GRPOConfig(
        **common_arguments(stage),
        per_device_train_batch_size=settings.completions_per_device,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=settings.mini_batches * accumulation,
        num_generations=settings.num_generations,
        max_completion_length=settings.max_completion_tokens,
        mask_truncated_completions=settings.mask_truncated_completions,
        temperature=settings.temperature,
        top_p=1.0,
        top_k=0,
        generation_kwargs={"use_cache": True},  # the trainer turns it off in the model's config
        importance_sampling_level="sequence",
        loss_type="grpo",
        scale_rewards="group",
        epsilon=settings.epsilon,
        epsilon_high=settings.epsilon_high,
        beta=settings.beta,
        log_completions=False,  # reward_function writes them, with the reasons
    )


def accumulation_steps(settings: RlSettings, world_size: int) -> int:
    """Micro-batches of one optimizer step on each rank; `contradictions.validate_processes` has refused remainders."""
    mini_batch = settings.prompts_per_rollout * settings.num_generations // settings.mini_batches
    micro_batch = settings.completions_per_device * world_size
    assert mini_batch % micro_batch == 0, f"{mini_batch} completions do not divide into micro-batches of {micro_batch}"
    return mini_batch // micro_batch


def reward_function(
    tokenizer: PreTrainedTokenizerFast,
    settings: RewardSettings,
    directory: Path,
    prompt_ids: Mapping[str, Sequence[int]],
    panel: Panel | None,
    verifiers: TurnVerifiers | None = None,
) -> Callable[..., list[float | None]]:
    """The reward as TRL calls it: on the sampled ids, since TRL's text has lost `<think>` and the end of turn.

    None where the judge failed: the trainer takes such a completion out of group and loss. Every completion is written
    with its reward and the reason to `completions/step_<n>_rank_<r>.jsonl`, which `agentworld score` shows.

    Args:
        prompt_ids: what the model reads, by the prompt's key: judge, verifiers and guards get the model's own history.
        panel: the judges, None for the offline scorer.
        verifiers: the synthesised ones of `reward.verifiers`.
    """
    renderer = Renderer(tokenizer)
    directory.mkdir(parents=True, exist_ok=True)

    def hybrid_reward(
        prompts, completion_ids, domain, action, observation, deterministic, trainer_state, log_metric,
        reference_answer=None, **_,
    ):  # fmt: skip
        # The samples of a group share their prompt, which may be long: it is taken apart once.
        read = {key: tuple(renderer.messages(prompt_ids[key])) for key in set(prompts)}
        turns = list(zip(observation, action, deterministic, domain, strict=True))
        initials = reference_answer or [None] * len(prompts)
        items = [
            Completion(renderer.parse(ids, tagged=True), *turn, read[key], initial)
            for key, ids, turn, initial in zip(prompts, completion_ids, turns, initials, strict=True)
        ]
        if verifiers:
            items = verifiers.ruled(prompts, items)
            for name, share in shares([item.ruling for item in items]).items():
                log_metric(name, share)
        watch = Watch(panel) if panel else None
        outcomes = reward_all(items, settings, panel)
        if watch:
            log_judgements(outcomes, watch, log_metric)
        rows = [outcome.row() for outcome in outcomes]
        for name, share in hybrid.guard_shares(rows).items():
            log_metric(name, share)
        lines = [
            {"prompt": key, "domain": item.domain, "action": item.action, "deterministic": item.deterministic, **row}
            | {"completion": tokenizer.decode(ids), "truth": item.truth}
            | ({} if item.reference_answer is None else {"reference_answer": item.reference_answer})
            for key, item, row, ids in zip(prompts, items, rows, completion_ids, strict=True)
        ]
        path = directory / f"step_{trainer_state.global_step:05d}_rank_{engine.rank()}.jsonl"
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        return [outcome.total for outcome in outcomes]

    return hybrid_reward


def log_judgements(outcomes: Sequence[Outcome], watch: Watch, log_metric: Callable[[str, float], None]) -> None:
    """The judge's metrics of a rollout. TRL averages the values of all ranks, so shares get one value a completion, and
    sums this rank's part times the number of ranks."""
    for name, values in observations(outcomes).items():
        for value in values:
            log_metric(name, value)
    for name, value in watch.totals().items():
        log_metric(f"judge/{name}", value * engine.world_size())
    log_metric("judge/seconds", watch.seconds)
