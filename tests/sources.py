"""Sources of documents on disk, and a mixture of them."""

import json
import random
from pathlib import Path

from agentworld.data.documents_settings import DocumentSource
from agentworld.data.mixing import Mixture, mix
from agentworld.data.render import Renderer

SEED = 3
WORDS = ("alpha", "beta", "notes", "中文", "\n", "<|im_end|>", "7")


def texts_of(name: str, count: int, longest: int = 60) -> list[str]:
    rng = random.Random(name)
    return [f"{name}{i} " + " ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for i in range(count)]


def write(folder: Path, texts: list[str], files: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(files):
        rows = (json.dumps({"text": text}) + "\n" for text in texts[number::files])
        (folder / f"{number}.jsonl").write_text("".join(rows))
    return folder


def mixed(sources: list[DocumentSource], tokens: int, renderer: Renderer, scratch: Path, seed: int = SEED) -> Mixture:
    return mix(sources, tokens, tokens // 4, renderer, seed, "fail", scratch)


def ids_of(mixture: Mixture) -> list[list[int]]:
    return [document.input_ids for document in mixture.documents()]
