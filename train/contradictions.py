"""What a recipe must not say: values out of range and pairs of keys that contradict. Imports no torch.

Every refusal is a `RequestError` that names the key, the value and the fix; all run in the parent process, before a run
directory is made.
"""

import difflib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from agentworld.data.documents_settings import check_sources
from agentworld.data.errors import RequestError
from agentworld.data.selection import check_selection
from agentworld.data.settings import DataSettings
from agentworld.data.system_prompts import prompt_sets
from agentworld.rewards.judge_checks import check_judge, check_load
from agentworld.rewards.settings import GUARD_POLICIES, RUBRICS, RULES, check_weights, reward_outside_rl
from agentworld.slurm.settings import ClusterSettings, seconds
from agentworld.train.config import STAGES, Config, EvalSettings, StageSettings
from agentworld.train.engine_limits import validate_engine
from agentworld.train.rl_limits import check_rl
from agentworld.train.rollout_limits import CORRECTIONS, ENGINES, validate_ranks, validate_rollout

CHOICES = {
    "stage": ("all", "data", "cpt", "sft", "rl", "eval"),
    "model.dtype": ("float32", "bfloat16"),
    "model.recompute": ("none", "mixers", "layers"),
    "model.export_layout": ("text", "release"),
    "engine.zero_stage": (1, 2, 3),
    "engine.device": ("auto", "cpu"),
    "engine.communication_data_type": ("auto", "float32", "bfloat16"),
    "engine.grad_accum_dtype": ("auto", "float32"),
    "engine.offload_optimizer": ("none", "cpu"),
    "engine.offload_param": ("none", "cpu"),
    "engine.gate_up_impl": ("separate", "fused"),
    "engine.combine_impl": ("weighted_sum", "fused_weighted_sum"),
    "data.on_bad": ("fail", "skip"),
    "data.record.mix": ("full", "light"),
    "reward.rubric": RUBRICS,
    "reward.rule": RULES,
    "reward.guards": GUARD_POLICIES,
    "cpt.lr_scheduler": ("cosine", "constant"),
    "sft.lr_scheduler": ("cosine", "constant"),
    "rl.lr_scheduler": ("cosine", "constant"),
    "rl.rollout.engine": ENGINES,
    "rl.rollout.importance_sampling_mode": CORRECTIONS,
    "eval.prompt": ("stage", "rl"),
    "wandb.mode": ("online", "offline", "disabled"),
}
POSITIVE = (
    *(f"{stage}.{key}" for stage in ("cpt", "sft", "rl") for key in ("learning_rate", "max_steps", "save_steps")),
    *(f"{stage}.max_grad_norm" for stage in ("cpt", "sft", "rl")),
    *(f"{stage}.{key}" for stage in ("cpt", "sft") for key in ("rows_per_device", "gradient_accumulation_steps")),
    *(f"rl.{key}" for key in ("prompts_per_rollout", "mini_batches", "completions_per_device")),
    *(f"rl.{key}" for key in ("epsilon", "temperature", "max_completion_tokens")),
    *(f"rl.rollout.{key}" for key in ("server_port", "server_timeout", "group_port", "tensor_parallel_size")),
    *(f"eval.{key}" for key in ("examples", "batch_size", "max_new_tokens", "reward_examples")),
    *(f"data.{key}" for key in ("min_turns", "cpt_row_tokens", "sft_row_tokens", "rl_prompt_tokens")),
    *(f"data.record.{key}" for key in ("count", "min_turns", "command_timeout", "max_output_chars")),
    "data.split.eval",
    "data.duplicates.shingle_words",
    *(f"engine.{key}" for key in ("expert_parallel", "reduce_bucket_size", "allgather_bucket_size", "sub_group_size")),
    *(f"engine.stage3_{key}" for key in ("prefetch_bucket_size", "max_live_parameters", "max_reuse_distance")),
    *("cluster.nodes", "cluster.tasks_per_node"),
)
NOT_NEGATIVE = (
    *(f"{stage}.{key}" for stage in ("cpt", "sft", "rl") for key in ("warmup_steps", "weight_decay")),
    *(f"{stage}.router_aux_loss_coef" for stage in ("cpt", "sft", "rl")),
    *(f"data.split.{pool}" for pool in ("cpt", "sft", "rl")),
    *("rl.beta", "seed", "nproc", "data.record.workers", "reward.rubric_weight", "reward.rule_weight"),
    *(f"rl.rollout.{key}" for key in ("batch_size", "max_model_length")),
    *(f"rl.rollout.importance_sampling_clip_{key}" for key in ("max", "min")),
    "eval.prompt_tokens",
    "engine.stage3_param_persistence_threshold",
    *(f"cluster.{key}" for key in ("gpus_per_node", "cpus_per_task", "signal_seconds")),
)
SMALLEST_VOCABULARY = 264  # 256 bytes, the control tokens, and a few merges


def validate(config: Config) -> None:
    """Refuse a configuration that cannot be run.

    Raises:
        RequestError: the first fault found; the text names the keys and the way out.
    """
    values = dict(leaves(config))
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise RequestError(f"{key} must be a finite number, found {value}")
    for key, known in CHOICES.items():
        _require_choice(key, values[key], known)
    for key in POSITIVE:
        if values[key] <= 0:
            raise RequestError(f"{key} must be greater than 0, found {values[key]}")
    for key in NOT_NEGATIVE:
        if values[key] < 0:
            raise RequestError(f"{key} must not be negative, found {values[key]}")
    _validate_run(config)
    for name in ("cpt", "sft", "rl"):
        _validate_stage(name, getattr(config, name))
    check_rl(config)
    check_weights(config.reward)
    check_judge(config.reward)
    _validate_data(config.data, config.stage)
    _validate_evaluation(config.eval)
    validate_engine(config)
    validate_rollout(config)
    _validate_experts(config)
    _validate_cluster(config.cluster, config.engine.device)


def validate_processes(config: Config, nproc: int) -> None:
    """Refuse a number of processes that the batches or the experts do not divide into.

    Args:
        nproc: processes of the run, resolved (`nproc=0` asks for one a visible GPU).
    """
    degree = config.engine.expert_parallel
    if nproc % degree:
        raise RequestError(
            f"engine.expert_parallel={degree} needs a multiple of {degree} processes, and this run has {nproc}; "
            f"set nproc={degree} or engine.expert_parallel=1"
        )
    rl = config.rl
    completions = rl.prompts_per_rollout * rl.num_generations
    if config.stage not in ("data", "cpt"):
        reward = config.reward if config.stage in ("all", "rl") else reward_outside_rl(config.reward)
        check_load(reward, nproc, completions, rl.max_completion_tokens)
    mini_batch = completions // rl.mini_batches
    if config.stage in ("all", "rl"):
        validate_ranks(rl.rollout, nproc)
    if config.stage in ("all", "rl") and mini_batch % (rl.completions_per_device * nproc):
        raise RequestError(
            f"rl: a mini-batch of {mini_batch} completions (prompts_per_rollout x num_generations / mini_batches) does "
            f"not divide by rl.completions_per_device={rl.completions_per_device} x {nproc} processes; "
            f"set rl.completions_per_device={_largest_share(mini_batch, nproc, rl.completions_per_device)}"
        )


def _largest_share(mini_batch: int, nproc: int, limit: int) -> str:
    fitting = [n for n in range(1, min(limit, mini_batch // nproc) + 1) if mini_batch % (n * nproc) == 0]
    return str(fitting[-1]) if fitting else f"N so that N x {nproc} divides {mini_batch} (raise prompts_per_rollout)"


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every key that can be set, the entries of mappings one by one."""
    for name in type(node).__dataclass_fields__:
        value = getattr(node, name)
        if hasattr(value, "__dataclass_fields__"):
            yield from leaves(value, f"{prefix}{name}.")
        elif isinstance(value, dict):
            yield from ((f"{prefix}{name}.{key}", entry) for key, entry in value.items())
        else:
            yield f"{prefix}{name}", value


def _require_choice(key: str, value: Any, known: Sequence[Any]) -> None:
    if value not in known:
        close = difflib.get_close_matches(str(value), [str(option) for option in known], n=1)
        hint = f"; did you mean {key}={close[0]}?" if close else ""
        raise RequestError(f"{key}={value} is not one of {', '.join(map(str, known))}{hint}")


def _validate_run(config: Config) -> None:
    if config.seed >= 2**32:
        raise RequestError(f"seed={config.seed} must be below 2**32, the limit of numpy's generator")
    if config.resume and config.overwrite:
        raise RequestError("resume=true and overwrite=true contradict: continue the run, or delete it; choose one")
    name = config.run.name
    if config.resume and not name:
        raise RequestError("resume=true needs the name of the run to continue: add run.name=NAME")
    if name and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        raise RequestError(
            f"run.name={name!r} must be letters, digits, '.', '_' and '-', at most 128; a folder goes in run.root"
        )
    if not config.run.root:
        raise RequestError("run.root is empty; name the folder that holds the runs, for example run.root=runs")
    if config.stage == "eval" and not name:
        raise RequestError("stage=eval evaluates an existing run: add run.name=NAME resume=true")
    if config.stage in ("sft", "rl") and not name and not config.model.path:
        previous = STAGES[STAGES.index(config.stage) - 1]
        raise RequestError(
            f"stage={config.stage} needs the hand-off of {previous}: add run.name=NAME resume=true of a run that has "
            "it, or model.path=DIRECTORY"
        )


def _validate_stage(name: str, stage: StageSettings) -> None:
    if stage.warmup_steps > stage.max_steps:
        raise RequestError(
            f"{name}.warmup_steps={stage.warmup_steps} is more than {name}.max_steps={stage.max_steps}; lower it"
        )
    if stage.save_total_limit < 2:
        raise RequestError(
            f"{name}.save_total_limit={stage.save_total_limit} must be at least 2: with 1, the last good checkpoint "
            "may be deleted while the next one is incomplete"
        )
    for key in ("adam_beta1", "adam_beta2"):
        if not 0 <= getattr(stage, key) < 1:
            raise RequestError(f"{name}.{key} must be in [0, 1), found {getattr(stage, key)}")
    if not 0 <= stage.min_lr_ratio <= 1:
        raise RequestError(f"{name}.min_lr_ratio is a share of the learning rate in [0, 1], found {stage.min_lr_ratio}")


def _validate_data(data: DataSettings, stage: str) -> None:
    split, record = data.split, data.record
    total = split.cpt + split.sft + split.rl + split.eval
    if abs(total - 1) > 1e-6:
        raise RequestError(f"data.split.cpt + sft + rl + eval must be 1, found {total:g}; change one of the four")
    for pool in ("cpt", "sft", "rl"):
        if getattr(split, pool) == 0 and stage in ("all", pool):
            raise RequestError(
                f"stage={stage} trains {pool}, but data.split.{pool}=0 leaves it no data; choose another stage"
            )
    check_selection(data.domain_weights, data.source_shares)
    check_sources(data.documents)
    if record.min_turns > record.max_turns:
        raise RequestError(
            f"data.record.min_turns={record.min_turns} is more than data.record.max_turns={record.max_turns}"
        )
    if not data.trajectories and data.min_turns > record.max_turns:
        raise RequestError(
            f"data.min_turns={data.min_turns} drops every recorded trajectory (data.record.max_turns="
            f"{record.max_turns}); lower it"
        )
    if data.tokenizer_vocab_size < SMALLEST_VOCABULARY:
        raise RequestError(
            f"data.tokenizer_vocab_size={data.tokenizer_vocab_size} must be at least {SMALLEST_VOCABULARY}: every byte "
            "and control token has an entry"
        )
    if not 0 < data.duplicates.threshold <= 1:
        raise RequestError(
            f"data.duplicates.threshold={data.duplicates.threshold} is a similarity over 0 and up to 1, for example 0.8"
        )
    if not 0 <= data.simulation_share <= 1:
        raise RequestError(f"data.simulation_share is a share in [0, 1], found {data.simulation_share}")
    for category, share in data.mask.keep.items():
        if not 0 <= share <= 1:
            raise RequestError(f"data.mask.keep.{category} is a share in [0, 1], found {share}")
    _require_choice("data.prompt_set", data.prompt_set, prompt_sets())


def _validate_evaluation(evaluation: EvalSettings) -> None:
    if evaluation.reward_draws < 4:
        raise RequestError(f"eval.reward_draws={evaluation.reward_draws} must be at least 4: report.json promises that")


def _validate_experts(config: Config) -> None:
    degree = config.engine.expert_parallel
    if degree > 1 and config.nproc and config.nproc % degree:
        validate_processes(config, config.nproc)
    architecture = config.model.architecture
    if not config.model.path and architecture.num_experts_per_tok > architecture.num_experts:
        raise RequestError(
            f"model.architecture.num_experts_per_tok={architecture.num_experts_per_tok} is more than "
            f"model.architecture.num_experts={architecture.num_experts}"
        )


def _validate_cluster(cluster: ClusterSettings, device: str) -> None:
    """What `agentworld submit` writes into its scripts."""
    for key in ("partition", "account", "qos", "memory"):
        if re.search(r"\s", getattr(cluster, key)):
            raise RequestError(f"cluster.{key}={getattr(cluster, key)!r} holds white space; name one {key}")
    for option in cluster.extra:
        if not option.startswith("-") or "\n" in option:
            raise RequestError(
                f"cluster.extra: {option!r} is no sbatch option; for example "
                """'cluster.extra=["--constraint=h200","--exclusive"]'"""
            )
    if cluster.time:
        try:
            limit = seconds(cluster.time)
        except ValueError as error:
            raise RequestError(f"cluster.time={error}") from None
        if 0 < limit <= cluster.signal_seconds:  # 0: no limit
            raise RequestError(
                f"cluster.signal_seconds={cluster.signal_seconds} is not shorter than cluster.time={cluster.time} "
                f"({limit} s): the job would be told to stop as soon as it starts; lower the one or raise the other"
            )
    if device != "cpu" and 0 < cluster.gpus_per_node < cluster.tasks_per_node:
        raise RequestError(
            f"cluster.tasks_per_node={cluster.tasks_per_node} ranks share cluster.gpus_per_node="
            f"{cluster.gpus_per_node} GPUs; each needs its own: lower the one or raise the other"
        )
