"""What CPT, SFT and RL share around their trainers: where they start, their arguments, their end.

Reading order of a stage: `cpt.py`, `sft.py` or `rl.py`, which call `open_stage`, build their trainer and call `finish`.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from datasets import Dataset
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen3_5MoeForCausalLM

from agentworld.data.errors import ContentError
from agentworld.data.tokenizer import load_tokenizer
from agentworld.train import checkpoint, engine, export, kernels, model, recompute, release, resume, run_directory
from agentworld.train.config import Config, StageSettings
from agentworld.train.progress import ProgressCallback
from agentworld.train.resume import Resumption
from agentworld.train.router_load import RouterLoadCallback
from agentworld.train.shards import Digest
from agentworld.train.stop import StoppedError
from agentworld.train.trainers import PackedTrainer, StageTrainer, StopCallback, scheduler_arguments


@dataclass(frozen=True)
class Stage:
    """One stage of a run, on one rank: its recipe, its directories and its start."""

    name: str
    config: Config
    run_dir: Path
    settings: StageSettings
    parent: Path  # hand-off or Hugging Face directory with the weights to start from
    tokenizer: PreTrainedTokenizerFast
    resumption: Resumption

    @property
    def directory(self) -> Path:
        return self.run_dir / self.name

    @property
    def data(self) -> Path:
        return self.run_dir / "data"

    @property
    def recipe(self) -> dict[str, Any]:
        return asdict(self.config)

    def rows(self, name: str) -> Dataset:
        """Packed rows that preparation wrote: columns input_ids, labels, seq_lengths."""
        path = self.data / "rows" / f"{name}.parquet"
        rows = Dataset.from_parquet(str(path), cache_dir=str(self.directory / "cache"))
        missing = {"input_ids", "labels", "seq_lengths"} - set(rows.column_names)
        if missing:  # without seq_lengths the trainer takes a packed row for one document, silently
            raise ContentError(f"{path}: column {sorted(missing)[0]} is missing; prepare the data again")
        return rows


def open_stage(name: str, config: Config, run_dir: Path) -> Stage:
    """Verify the start of a stage and make its directory.

    Raises:
        ContentError: the hand-off before it is incomplete, altered or foreign.
        RequestError: the checkpoint to resume from cannot be read by this start.
    """
    parent = accepted_parent(name, config, run_dir)
    (run_dir / name).mkdir(exist_ok=True)
    active = kernels.install()
    if engine.rank() == 0:
        run_directory.update_run_json(run_dir, kernels=active)
        if slow := kernels.slow_parts(active):
            _warn(f"no fast kernel for {', '.join(slow)}: training is several times slower; "
                  "pip install flash-linear-attention (and tilelang on Hopper with Triton below 3.7.1)")  # fmt: skip
    ranks = engine.world_size()
    resumption = resume.plan(run_dir / name / "checkpoints", config.engine, ranks, _warn)
    settings = resume.keep_batch(name, getattr(config, name), resumption, ranks, _warn)
    if resumption.elastic:
        resume.convert(resumption.checkpoint, engine.rank())
    tokenizer = load_tokenizer(run_dir / "data" / "tokenizer")
    return Stage(name, config, run_dir, settings, parent, tokenizer, resumption)


def accepted_parent(name: str, config: Config, run_dir: Path) -> Path:
    """The directory that a stage starts from, verified; collective.

    Raises:
        ContentError: it is not there, incomplete, altered or foreign.
    """
    parent = run_directory.parent_of(name, config, run_dir)
    follows = None if parent == Path(config.model.path or "") else name
    tokenizer = run_dir / "data" / "tokenizer"
    on_first_rank(checkpoint.accept_parent, parent, follows, tokenizer, architecture_to_check(config))
    return parent


def on_first_rank(check: Callable[..., None], *arguments: Any) -> None:
    """Run what reads or deletes whole files once and not on every rank; what it refuses, all ranks refuse. The others
    wait for it; collective."""
    refusal: list[ContentError | None] = [None]
    if engine.rank() == 0:
        try:
            check(*arguments)
        except ContentError as error:
            refusal = [error]
    if dist.is_initialized():
        dist.broadcast_object_list(refusal)
    if refusal[0] is not None:
        raise refusal[0]


def architecture_to_check(config: Config) -> dict[str, Any] | None:
    """config.json fields that a hand-off must share with the recipe; None when the model comes from `model.path`."""
    if config.model.path:
        return None
    fields = vars(config.model.architecture).copy()
    every = fields.pop("full_attention_interval")  # config.json spells it out, layer by layer
    kinds = ("linear_attention", "full_attention")
    fields["layer_types"] = [kinds[(layer + 1) % every == 0] for layer in range(fields["num_hidden_layers"])]
    return fields


def common_arguments(stage: Stage) -> dict[str, Any]:
    """`TrainingArguments` of every stage."""
    settings, weights = stage.settings, stage.config.model
    return {
        "output_dir": str(stage.directory / "checkpoints"),
        "max_steps": settings.max_steps,
        "learning_rate": settings.learning_rate,
        "warmup_steps": settings.warmup_steps,
        "weight_decay": settings.weight_decay,
        "adam_beta1": settings.adam_beta1,
        "adam_beta2": settings.adam_beta2,
        "max_grad_norm": settings.max_grad_norm,
        "router_aux_loss_coef": settings.router_aux_loss_coef,
        "save_strategy": "steps",
        "save_steps": settings.save_steps,
        "save_total_limit": None,  # StageTrainer rotates, after the new checkpoint is known to be whole
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # the default shows the running mean in place of a NaN
        "report_to": [],
        "disable_tqdm": True,
        "seed": stage.config.seed,
        "data_seed": stage.config.seed,
        "use_cpu": engine.uses_cpu(stage.config.engine),
        "bf16": weights.dtype == "bfloat16",
        "gradient_checkpointing": weights.recompute == "layers",
        "dataloader_pin_memory": not engine.uses_cpu(stage.config.engine),
        "deepspeed": stage.resumption.engine(
            stage.config.engine, lambda settings: engine.deepspeed_config(settings, weights)
        ),
        **scheduler_arguments(settings.lr_scheduler, settings.min_lr_ratio),
    }


def load_model(stage: Stage) -> Qwen3_5MoeForCausalLM:
    """What a stage trains, with the weights of its start. After `common_arguments`: under ZeRO-3 they decide how the
    weights are loaded, and with `model.recompute=layers` the trainer sees to it by them."""
    loaded = model.load(stage.parent, stage.config.model.dtype)
    if stage.config.model.recompute == "mixers":
        recompute.recompute_mixers(loaded)
    return loaded


def train(stage: Stage, trainer: StageTrainer) -> None:
    """Train to the last step, from the newest whole checkpoint if there is one.

    Raises:
        StoppedError: a stop was asked for; a checkpoint of the last step is written.
    """
    trainer.save_total_checkpoints = stage.settings.save_total_limit
    trainer.remove_callback(PrinterCallback)
    stopping = StopCallback(stage.run_dir)
    lineage = {"parent": str(stage.parent), "data_sha256": data_sha256(stage.data)}
    trainer.add_callback(stopping)
    trainer.add_callback(RouterLoadCallback(stage.directory, stage.config.engine.expert_parallel))  # before the next
    trainer.add_callback(
        ProgressCallback(
            stage=stage.name,
            stage_dir=stage.directory,
            total_steps=stage.settings.max_steps,
            wandb=stage.config.wandb,
            run_name=stage.run_dir.name,
            config=stage.recipe,
            lineage=lineage,
        )
    )
    newest = stage.resumption.checkpoint
    started = time.monotonic()
    trainer.train(resume_from_checkpoint=str(newest) if newest else None)
    _add_seconds(stage, time.monotonic() - started)
    if stopping.stopped:
        raise StoppedError(f"{stage.name} stopped at step {trainer.state.global_step}")
    if trainer.state.global_step < stage.settings.max_steps:
        raise ContentError(
            f"{stage.name} ended at step {trainer.state.global_step} of {stage.settings.max_steps}: there is less data "
            "than one step needs"
        )


def finish(stage: Stage, trainer: StageTrainer, held_out: str | None) -> None:
    """Held-out loss, training.json, and the hand-off: collective, written by the first rank.

    Args:
        held_out: name of the held-out rows, None for a stage without a held-out loss.
    """
    loss = None
    if held_out is not None:
        assert isinstance(trainer, PackedTrainer)
        rows = stage.rows(held_out)
        _say(f"{stage.name}  held-out loss over {len(rows)} rows")
        loss = trainer.held_out_loss(rows)
        _say(f"{stage.name}  held-out loss {'-' if loss is None else format(loss, '.3f')}")
    trained = trainer.model_wrapped.module
    config = model.load_config(stage.parent, stage.config.model.dtype)
    layout = stage.config.model.export_layout
    base = Path(stage.config.model.path) if stage.config.model.path else None
    source = release.source_of(stage.parent, base) if layout == "release" else None

    def write_weights(directory: Path) -> dict[str, Digest]:
        return export.write_safetensors(trained, config, directory, layout, source)

    if not trainer.args.should_save:
        write_weights(checkpoint.unfinished(stage.directory / "export"))
        return
    facts = {"steps": trainer.state.global_step, "tokens": _tokens(stage), "heldout_loss": loss}
    run_directory.write_json(stage.directory / "training.json", {**_seconds(stage), **facts})
    checkpoint.write_handoff(
        stage.directory / "export",
        stage=stage.name,
        step=trainer.state.global_step,
        parent=stage.parent,
        recipe_sha256=checkpoint.sha256_json(stage.recipe),
        data_sha256=data_sha256(stage.data),
        tokenizer=stage.data / "tokenizer",
        write_weights=write_weights,
    )


def data_sha256(data: Path) -> str:
    """The hash over everything preparation wrote."""
    return json.loads((data / "manifest.json").read_text())["sha256"]


def _tokens(stage: Stage) -> int:
    """Tokens of all starts of the stage; the trainer's own counter may start again at a resume, and RL logs it only at
    the first step of a rollout."""
    rows = map(json.loads, (stage.directory / "metrics.jsonl").read_text().splitlines())
    return int(max(row.get("tokens", 0) for row in rows))


def _seconds(stage: Stage) -> dict[str, float]:
    path = stage.directory / "seconds.json"
    return json.loads(path.read_text()) if path.is_file() else {"seconds": 0.0}


def _add_seconds(stage: Stage, seconds: float) -> None:
    """Training time over all starts of the stage, so that a resumed run reports the whole."""
    if engine.rank() == 0:
        total = _seconds(stage)["seconds"] + seconds
        run_directory.write_json(stage.directory / "seconds.json", {"seconds": total})


def _say(text: str) -> None:
    if engine.rank() == 0:
        print(text, flush=True)


def _warn(text: str) -> None:
    if engine.rank() == 0:
        print(f"agentworld: WARNING: {text}", file=sys.stderr)
