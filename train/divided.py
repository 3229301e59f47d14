"""A model that answers while DeepSpeed divides it over the ranks: for evaluations of models larger than a GPU.

ZeRO-3 without an optimizer holds a part of each weight on each rank and gathers a layer where it is computed; experts
stay divided over the ranks of expert parallelism, as in training.
"""

from pathlib import Path

from transformers import Qwen3_5MoeForCausalLM

from agentworld.train import engine, model
from agentworld.train.config import Config


def load(config: Config, weights: Path) -> Qwen3_5MoeForCausalLM:
    """The model of a Hugging Face directory in evaluation mode, divided over all ranks; collective.

    Every rank must take part in every forward pass: `generate(synced_gpus=True)`, as often on each rank.
    """
    import deepspeed
    from transformers.integrations import HfDeepSpeedConfig

    rendered = engine.inference_config(config.engine, config.model)
    alive = HfDeepSpeedConfig(rendered)  # while it lives, `from_pretrained` loads into partitions
    loaded = model.load(weights, config.model.dtype)
    del alive
    started, *_ = deepspeed.initialize(model=loaded, config=rendered)
    engine.require_expert_parallel(started.module, config.engine.expert_parallel)
    return started.module.eval()
