"""`agentworld plan`: what a run would take, before anything is spent. No GPU, no weights, nothing written but `--json`.

Everything is an estimate from the composed configuration, except the parameters (counted) and the checks (looked up).
torch is imported for the meta device only.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import Qwen3_5MoeTextConfig

from agentworld.data.errors import RequestError
from agentworld.data.outputs import replacing, require_outputs
from agentworld.train import compute, fitting, memory, vllm_memory
from agentworld.train.architecture import Parameters, count, text_config
from agentworld.train.compose import compose
from agentworld.train.config import Config
from agentworld.train.plan_checks import Check, checks, files_read

DONE = 0
SIZES = ("num_hidden_layers", "hidden_size", "num_experts", "num_experts_per_tok", "vocab_size")


@dataclass(frozen=True)
class Plan:
    """All that a plan says. Bytes are of one GPU unless named otherwise."""

    config: Config
    ranks: int
    source: str  # where the architecture was read
    architecture: Qwen3_5MoeTextConfig
    parameters: Parameters
    mfu: float
    stages: dict[str, memory.Memory]
    evaluation: memory.Memory
    work: dict[str, compute.Work]
    evaluation_hours: float  # at most, of decoding
    fits: dict[str, dict[str, fitting.Fit | None]]  # engine, card
    disk: dict[str, int]
    host: int  # CPU memory of a node while its ranks load the model
    files: list[dict[str, str | int | None]]
    checks: list[Check]

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]


def run(overrides: Sequence[str], json_file: Path | None, mfu: float) -> int:
    """Print the plan of a recipe.

    Raises:
        RequestError: after printing, naming the checks that fail; before, where the recipe does not compose.
    """
    from agentworld.train.plan_table import render
    from agentworld.train.screen import screen

    if json_file is not None:
        require_outputs({"--json": json_file}, [])
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # which kernels this machine lacks is not the point here
    made = make(compose(overrides), mfu)
    screen().print(render(made))
    if json_file is not None:
        with replacing(json_file) as file:
            file.write_text(json.dumps(as_json(made), indent=1) + "\n")
    if made.failed:
        raise RequestError(_summary(made.failed))
    return DONE


def _summary(failed: Sequence[Check]) -> str:
    first = f"{failed[0].name}: {failed[0].detail}"
    others = ", ".join(check.name for check in failed[1:])
    return f"{first}; also fails, with its reason above: {others}" if others else first


def make(config: Config, mfu: float = compute.MFU) -> Plan:
    """The plan of a checked configuration."""
    ranks = config.nproc or config.cluster.nodes * config.cluster.tasks_per_node
    architecture, source = text_config(config)
    parameters = count(architecture)
    names = memory.stages_of(config)
    engine = memory.Engine.of(config.engine)
    stages = memory.estimate(config, architecture, parameters, engine, ranks)
    evaluation = memory.evaluation(config, architecture, parameters, ranks)
    files = files_read(config)
    trajectories = sum(int(file["bytes"] or 0) for file in files if file["key"] != "model.path")
    disk = compute.disk(config, parameters, names, trajectories)
    found = checks(config, ranks, sum(disk.values()))
    return Plan(
        config,
        ranks,
        source,
        architecture,
        parameters,
        mfu,
        stages,
        evaluation,
        {name: compute.work(config, name, architecture, parameters, ranks, mfu) for name in names},
        compute.evaluation_hours(config, architecture, names, ranks),
        _fits(config, architecture, parameters),
        disk,
        _host_bytes(config, parameters, engine, ranks),
        files,
        [*found, *_memory_checks(config, architecture, parameters, stages, evaluation, ranks)],
    )


def _fits(
    config: Config, architecture: Qwen3_5MoeTextConfig, parameters: Parameters
) -> dict[str, dict[str, fitting.Fit | None]]:
    return {
        name: {card: fitting.smallest(config, architecture, parameters, engine, card) for card in memory.CARDS}
        for name, engine in fitting.ENGINES.items()
    }


def _host_bytes(config: Config, parameters: Parameters, engine: memory.Engine, ranks: int) -> int:
    """In stages 1 and 2 each rank first holds the whole model, in stage 3 its part; the offload stays there. An
    evaluation loads straight to the GPU."""
    element = 2 if config.model.dtype == "bfloat16" else 4
    local = parameters.total if engine.zero_stage < 3 else parameters.total // ranks
    kept = memory.ADAM_BYTES * parameters.total // ranks if engine.offload_optimizer else 0
    kept += element * parameters.total // ranks if engine.offload_parameters else 0
    return min(ranks, config.cluster.tasks_per_node) * (element * local + kept)


def _memory_checks(
    config: Config,
    architecture: Qwen3_5MoeTextConfig,
    parameters: Parameters,
    stages: dict[str, memory.Memory],
    evaluation: memory.Memory,
    ranks: int,
) -> list[Check]:
    """Against the largest card, with its headroom; a run on a CPU has no such limit."""
    if config.engine.device == "cpu":
        return [Check("memory", True, "the run computes on a CPU; compare the peaks with its memory")]
    card = max(memory.CARDS, key=memory.CARDS.__getitem__)
    found = []
    for name, used in [*stages.items(), ("evaluation", evaluation)]:
        if name == "rl" and config.rl.rollout.engine == "vllm_colocate":
            found.append(_vllm_check(config, architecture, parameters, used))
            continue
        smallest = next((card for card in memory.CARDS if used.peak <= fitting.usable(card)), None)
        peak = f"{used.peak / 2**30:.1f} GiB a GPU ({used.moment})"
        if smallest:
            found.append(Check(f"memory {name}", True, f"{peak} fit a card of {smallest}"))
        else:
            way = _way_out(name, config.model.recompute)
            found.append(Check(f"memory {name}", False, f"{peak} do not fit a card of {card} on {ranks} GPUs; {way}"))
    return found


def _vllm_check(
    config: Config, architecture: Qwen3_5MoeTextConfig, parameters: Parameters, used: memory.Memory
) -> Check:
    against = {card: vllm_memory.reason_against(config, architecture, parameters, used, card) for card in memory.CARDS}
    fitting_card = next((card for card, reason in against.items() if not reason), None)
    share = config.rl.rollout.gpu_memory_utilization
    if fitting_card:
        peak = f"{used.peak / 2**30:.1f} GiB a GPU ({used.moment})"
        return Check("memory rl", True, f"{peak} and vLLM's {share:.0%} fit a card of {fitting_card}")
    card, reason = list(against.items())[-1]
    return Check("memory rl", False, f"on a card of {card} {reason}")


def _way_out(stage: str, recompute: str) -> str:
    if stage == "evaluation":
        return "set eval.divided=true, or lower eval.batch_size or eval.prompt_tokens"
    if stage == "rl":
        return "lower data.rl_prompt_tokens, rl.completions_per_device or rl.rollout.batch_size (0 = all of a rollout)"
    shorter = f"lower data.{stage}_row_tokens or {stage}.rows_per_device"
    return shorter if recompute == "layers" else f"{shorter}, or set model.recompute=layers"


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan for programs: bytes, tokens, hours; `estimate` names what is one."""
    return {
        "estimate": ["stages", "evaluation", "work", "evaluation_hours", "fits", "disk", "host_bytes_per_node"],
        "recipe": plan.config.recipe,
        "ranks": plan.ranks,
        "engine": asdict(memory.Engine.of(plan.config.engine)),
        "architecture": {"source": plan.source, **{key: getattr(plan.architecture, key) for key in SIZES}},
        "parameters": {"total": plan.parameters.total, "active": plan.parameters.active, **plan.parameters.parts},
        "assumptions": {
            "mfu": plan.mfu,
            "peak_flops": compute.PEAK_FLOPS,
            "decoding_seconds_per_token": compute.decoding_seconds(
                plan.architecture, plan.config.engine.expert_parallel
            ),
            "headroom": memory.HEADROOM,
            "cards": memory.CARDS,
        },
        "stages": {
            name: {**asdict(used), "peak": used.peak, "moment": used.moment} for name, used in plan.stages.items()
        },
        "evaluation": {**asdict(plan.evaluation), "peak": plan.evaluation.peak},
        "work": {name: asdict(work) for name, work in plan.work.items()},
        "evaluation_hours": plan.evaluation_hours,
        "fits": {
            engine: {card: fit and asdict(fit) for card, fit in cards.items()} for engine, cards in plan.fits.items()
        },
        "disk": plan.disk,
        "host_bytes_per_node": plan.host,
        "files": plan.files,
        "checks": [asdict(check) for check in plan.checks],
    }
