"""The smallest number of GPUs on which a run fits, for each engine and card; no torch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from transformers import Qwen3_5MoeTextConfig

from agentworld.train.architecture import Parameters
from agentworld.train.config import Config
from agentworld.train.memory import CARDS, HEADROOM, Engine, estimate, stages_of
from agentworld.train.vllm_memory import reason_against

ENGINES = {
    "zero1": Engine(1),
    "zero2": Engine(2),
    "zero3": Engine(3),
    "zero3, optimizer on the CPU": Engine(3, offload_optimizer=True),
}
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Fit:
    """`gpus` cards with the experts over `expert_parallel` of them; the stage with the largest peak, in bytes."""

    gpus: int
    expert_parallel: int
    stage: str
    moment: str
    peak: int


def usable(card: str) -> int:
    """Bytes of a card without its headroom."""
    return int(CARDS[card] * (1 - HEADROOM))


def smallest(
    config: Config, architecture: Qwen3_5MoeTextConfig, parameters: Parameters, engine: Engine, card: str
) -> Fit | None:
    """The fewest GPUs, and of the degrees of expert parallelism that fit there the one with the lowest peak; None where
    the batches of RL do not divide over as many as would be needed, or 1,024 are too few."""
    for gpus in COUNTS:
        if not _divides(config, gpus):
            continue
        fits = [
            fit
            for degree in _degrees(architecture.num_experts, gpus)
            if (fit := on(config, architecture, parameters, replace(engine, expert_parallel=degree), gpus, card))
        ]
        if fits:
            return min(fits, key=lambda fit: fit.peak)
    return None


def on(
    config: Config, architecture: Qwen3_5MoeTextConfig, parameters: Parameters, engine: Engine, gpus: int, card: str
) -> Fit | None:
    """The peak of a run on so many GPUs and where it stands; None where it does not fit."""
    stages = estimate(config, architecture, parameters, engine, gpus)
    stage = max(stages, key=lambda name: stages[name].peak)
    if stages[stage].peak > usable(card):
        return None
    colocated = "rl" in stages and config.rl.rollout.engine == "vllm_colocate"
    if colocated and reason_against(config, architecture, parameters, stages["rl"], card):
        return None
    return Fit(gpus, engine.expert_parallel, stage, stages[stage].moment, stages[stage].peak)


def _divides(config: Config, gpus: int) -> bool:
    rl = config.rl
    mini_batch = rl.prompts_per_rollout * rl.num_generations // rl.mini_batches
    return "rl" not in stages_of(config) or mini_batch % (rl.completions_per_device * gpus) == 0


def _degrees(experts: int, gpus: int) -> Iterator[int]:
    """Powers of two that divide the experts and the GPUs."""
    degree = 1
    while experts % degree == 0 and gpus % degree == 0:
        yield degree
        degree *= 2
