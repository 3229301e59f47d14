"""Whether a directory holds a model that a run can start from. Imports no torch."""

import json
from pathlib import Path

from agentworld.data.errors import RequestError
from agentworld.train.checkpoint import HANDOFF, TOKENIZER_FILES, verify_handoff

WEIGHTS = ("model.safetensors.index.json", "model.safetensors")


def require_directory(path: Path) -> None:
    """Refuse what is no Hugging Face directory, and a damaged hand-off."""
    if not (path / "config.json").is_file():
        raise RequestError(f"model.path={path} is not a Hugging Face directory: it holds no config.json")
    if (path / HANDOFF).is_file():
        verify_handoff(path)


def require_weights(path: Path) -> str:
    """What the directory holds, in words; the first stage would miss it after the preparation of the data only.

    Raises:
        RequestError: weights, shards that the index names, or the tokenizer are not there.
    """
    if not any((path / name).is_file() for name in WEIGHTS):
        raise RequestError(f"model.path={path} holds neither {WEIGHTS[0]} nor {WEIGHTS[1]}; download the weights")
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise RequestError(f"model.path={path} holds no tokenizer ({TOKENIZER_FILES[0]}); copy it there")
    index = path / WEIGHTS[0]
    if not index.is_file():
        return f"{path / WEIGHTS[1]} is there"
    shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    missing = [name for name in shards if not (path / name).is_file()]
    if missing:
        raise RequestError(f"model.path={path}: {len(missing)} of {len(shards)} shards are missing, first {missing[0]}")
    return f"{len(shards)} shards of weights are there"
