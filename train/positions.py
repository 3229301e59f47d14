"""Whether what a run reads fits the model's positions (`max_position_embeddings`). Imports no torch.

The rotary embedding would go on beyond them without an error, at angles that the model has never seen.
"""

import json
from pathlib import Path

from agentworld.data.errors import RequestError
from agentworld.train.config import Config


def require_positions(config: Config) -> str:
    """The longest document of a run against the positions, in words.

    Raises:
        RequestError: it is longer; names the key.
    """
    limit, lengths = _limit(config), _lengths(config)
    key = max(lengths, key=lengths.__getitem__)
    if lengths[key] > limit:
        way = "lower it" if config.model.path else "lower it, or raise model.architecture.max_position_embeddings"
        raise RequestError(f"{key} = {lengths[key]} is more than the model's {limit} positions; {way}")
    return f"longest document {lengths[key]} of {limit} positions"


def _lengths(config: Config) -> dict[str, int]:
    data = config.data
    if config.stage == "data":
        return {"no stage": 0}
    found = {f"data.{name}_row_tokens": getattr(data, f"{name}_row_tokens") for name in ("cpt", "sft")
             if config.stage in ("all", name)}  # fmt: skip
    if config.stage in ("all", "rl"):
        found["data.rl_prompt_tokens + rl.max_completion_tokens"] = (
            data.rl_prompt_tokens + config.rl.max_completion_tokens
        )
    prompt = "eval.prompt_tokens" if config.eval.prompt_tokens else "data.rl_prompt_tokens"
    longest = config.eval.prompt_tokens or data.rl_prompt_tokens
    return found | {f"{prompt} + eval.max_new_tokens": longest + config.eval.max_new_tokens}


def _limit(config: Config) -> int:
    """Of `model.path`, where its config.json can be read, else of the recipe's architecture."""
    path = Path(config.model.path) / "config.json"
    if config.model.path and path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
        return int(found.get("text_config", found).get("max_position_embeddings") or 1 << 62)
    return config.model.architecture.max_position_embeddings
