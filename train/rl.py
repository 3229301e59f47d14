"""Stage 3, RL: GSPO on one turn a trajectory (arXiv:2606.24597 section 3.4; GSPO: arXiv:2507.18071).

The policy answers a held history and an action; the answer is scored against the real observation; advantages are
relative to the group of samples of the same prompt; ratio and clip act on whole sequences. A rollout is used in
`mini_batches` optimizer steps, so that the ratio leaves 1 and the clip can act.
"""

from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig

from agentworld.data.errors import ContentError
from agentworld.data.render import Renderer
from agentworld.rewards.judge_checks import NO_REFERENCE_ANSWER
from agentworld.rewards.settings import RewardSettings
from agentworld.rewards.turn_verifiers import TurnVerifiers, load
from agentworld.train import engine, pilot, pilot_groups, prompt_stream, run_directory, vllm_rollouts
from agentworld.train.config import Config, RlSettings
from agentworld.train.generation import panel_of
from agentworld.train.gspo import GspoTrainer
from agentworld.train.rl_reward import EarlyJudging, delete_abandoned, reward_function
from agentworld.train.rollout_limits import uses_vllm
from agentworld.train.stage import Stage, common_arguments, finish, load_model, on_first_rank, open_stage, train

COLUMNS = ("prompt", "domain", "action", "observation", "deterministic")  # of a prompt, beside its ids


def run(config: Config, run_dir: Path) -> None:
    """Train RL and write its hand-off."""
    stage = open_stage("rl", config, run_dir)
    on_first_rank(delete_abandoned, stage.directory / "completions", stage.resumption.step)
    trainer = gspo_trainer(stage)
    train(stage, trainer)
    finish(stage, trainer, held_out=None)


def gspo_trainer(stage: Stage) -> GspoTrainer:
    """TRL's GRPOTrainer set to the GSPO objective, on the prompts that preparation rendered."""
    assert isinstance(stage.settings, RlSettings)
    arguments = gspo_arguments(stage, stage.settings)
    settings = stage.config.reward
    every = Dataset.from_parquet(str(stage.data / "prompts" / "rl.parquet"), cache_dir=str(stage.directory / "cache"))
    prompt_ids = dict(zip(every["prompt"], every["prompt_ids"], strict=True))
    prompts = training_prompts(stage, stage.settings, every.select_columns(list(COLUMNS)))
    require_reference_answers(prompts, settings)
    panel = panel_of(settings, stage.run_dir, Renderer(stage.tokenizer))
    judging = EarlyJudging(panel, Renderer(stage.tokenizer), prompt_ids) if panel else None
    verifiers = load(settings.verifiers)
    if verifiers:
        covered = coverage(verifiers, prompts)
        if engine.rank() == 0:
            print(f"rl  {covered}", flush=True)
    folder = stage.directory / "completions"
    reward = reward_function(stage.tokenizer, settings, folder, prompt_ids, panel, judging, verifiers)
    trainer = GspoTrainer(
        model=load_model(stage),
        reward_funcs=[reward],
        args=arguments,
        train_dataset=prompts,
        processing_class=stage.tokenizer,
        prompt_ids=prompt_ids,
        judge_failed_limit=settings.judge.failed_limit,
        vllm_directory=vllm_rollouts.directory(stage.config, stage.parent, stage.directory, stage.data / "tokenizer"),
    )
    if not uses_vllm(stage.settings.rollout):  # which batches by itself, and answers all prompts in one call
        trainer.rollout_batch_size = stage.settings.rollout.batch_size
    trainer.judging = judging
    return trainer


def training_prompts(stage: Stage, settings: RlSettings, prompts: Dataset) -> Dataset:
    """The prompts that the pilot has left; for Reference-Reward with its answers as `reference_answer`, with
    `rl.domain_weights` in the order of the whole run. Writes `rl/prompts.json`.

    Raises:
        ContentError: the pilot is not done, its answers are wanted and lack, or too few prompts are left, in all or of
            a domain.
    """
    if settings.pilot_completions:
        if not pilot_groups.is_done(stage.config, stage.run_dir, stage.parent):
            raise ContentError(f"{pilot_groups.directory(stage.run_dir)} is no pilot of {stage.parent}; resume=true")
        dropped = pilot_groups.dropped_prompts(stage.config, stage.run_dir)
        kept = [row for row in prompts if row["prompt"] not in dropped]
        if stage.config.reward.rubric == "reference":
            answers = pilot.reference_answers(stage.run_dir)
            kept = [row | {"reference_answer": answers[row["prompt"]]} for row in kept]
        prompts = Dataset.from_list(kept)
    domains, size = prompts["domain"][:], settings.prompts_per_rollout
    prompt_stream.require_domains(settings.domain_weights, domains, size)
    order = None
    if settings.domain_weights:
        rollouts = -(-settings.max_steps // settings.mini_batches)
        order = prompt_stream.draw(domains, settings.domain_weights, rollouts, size, stage.config.seed)
    if engine.rank() == 0:
        facts = {"prompts": len(prompts), "domains": prompt_stream.stream_facts(domains, order)}
        run_directory.write_json(stage.directory / "prompts.json", facts)
    return prompts if order is None else prompts.select(order)


def coverage(verifiers: TurnVerifiers, prompts: Dataset) -> str:
    """`TurnVerifiers.coverage` of the different prompts; a stream that the weights drew holds some repeatedly."""
    return verifiers.coverage(dict(zip(prompts["prompt"], prompts["observation"], strict=True)).items())


def require_reference_answers(prompts: Dataset, settings: RewardSettings) -> None:
    """Refuse Reference-Reward where a prompt lacks the answer of the policy before RL.

    Raises:
        ContentError: saying what to set.
    """
    if settings.rubric != "reference":
        return
    if "reference_answer" not in prompts.column_names or None in prompts["reference_answer"]:
        raise ContentError(f"rl: {NO_REFERENCE_ANSWER}")


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
        **vllm_rollouts.arguments(stage.config, Renderer(stage.tokenizer).end_id),
        importance_sampling_level="sequence",
        loss_type="grpo",
        scale_rewards="group",
        epsilon=settings.epsilon,
        epsilon_high=settings.epsilon_high,
        beta=settings.beta,
        shuffle_dataset=not settings.domain_weights,  # they have drawn the order of the whole run
        log_completions=False,  # reward_function writes them, with the reasons
    )


def accumulation_steps(settings: RlSettings, world_size: int) -> int:
    """Micro-batches of one optimizer step on each rank; `contradictions.validate_processes` has refused remainders."""
    mini_batch = settings.prompts_per_rollout * settings.num_generations // settings.mini_batches
    micro_batch = settings.completions_per_device * world_size
    assert mini_batch % micro_batch == 0, f"{mini_batch} completions do not divide into micro-batches of {micro_batch}"
    return mini_batch // micro_batch
