"""Stage 0: the untrained start. A model with random weights is built and handed over like any other stage's."""

from dataclasses import asdict
from pathlib import Path

from agentworld.data.tokenizer import load_tokenizer
from agentworld.train import checkpoint, engine, export, model
from agentworld.train.config import Config
from agentworld.train.stage import data_sha256


def run(config: Config, run_dir: Path) -> None:
    """Write `base/export`; with `model.path` the start is that directory and there is nothing to build."""
    if config.model.path or engine.rank() != 0:
        return
    tokenizer_dir = run_dir / "data" / "tokenizer"
    built = model.build(config.model, load_tokenizer(tokenizer_dir), config.seed)
    checkpoint.write_handoff(
        run_dir / "base" / "export",
        stage="base",
        step=0,
        parent=None,
        recipe_sha256=checkpoint.sha256_json(asdict(config)),
        data_sha256=data_sha256(run_dir / "data"),
        tokenizer=tokenizer_dir,
        write_weights=lambda directory: export.write_safetensors(built, built.config, directory),
    )
