"""Hand-offs between stages and checkpoints within one: what is written, and what is refused.

A hand-off is a directory `export/`: Hugging Face safetensors, tokenizer and `handoff.json`, which says what made it,
from what, and the size and SHA-256 of every file. It is written to a temporary sibling and renamed, so it is whole or
absent. A checkpoint is written and renamed likewise, and is whole when its files are those that `COMPLETE` lists with
their sizes. Imports no torch: the command verifies hand-offs before any process starts.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agentworld.data.errors import ContentError
from agentworld.train.config import STAGES

FORMAT = "agentworld-handoff-1"
HANDOFF = "handoff.json"
COMPLETE = "COMPLETE"
PREFIX = "checkpoint-"
UNFINISHED = ".unfinished"  # the checkpoint that is being written
LIBRARIES = ("torch", "transformers", "trl", "accelerate", "deepspeed", "datasets", "tokenizers")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Hex SHA-256 of a JSON-able value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def tokenizer_sha256(directory: Path) -> str:
    """One hash over the tokenizer files of a directory, by name and content.

    Raises:
        ContentError: the directory holds no tokenizer.
    """
    present = [name for name in TOKENIZER_FILES if (directory / name).is_file()]
    if not present:
        raise ContentError(f"{directory}: no tokenizer files ({TOKENIZER_FILES[0]} ...)")
    return sha256_json({name: sha256_file(directory / name) for name in present})


def library_versions() -> dict[str, str]:
    """Versions of the libraries that decide what a run computes."""
    return {name: version(name) for name in LIBRARIES}


def write_handoff(
    export: Path,
    stage: str,
    step: int,
    parent: Path | None,
    recipe_sha256: str,
    data_sha256: str | None,
    tokenizer: Path,
    write_weights: Callable[[Path], Mapping[str, Any]],
) -> dict[str, Any]:
    """Write a complete hand-off at `export` and return its `handoff.json`. Called on the first rank.

    Args:
        parent: the hand-off or Hugging Face directory that the stage started from; None for a built model.
        tokenizer: directory whose tokenizer files are copied byte for byte, so that their hash never changes.
        write_weights: writes safetensors and config.json into the directory it is given, `unfinished(export)`, and
            returns {name: {"bytes", "sha256"}} of the files whose hash it knows; the others are read to be hashed.
    """
    temporary = unfinished(export)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    known = write_weights(temporary)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, temporary / name)
    handoff = {
        "format": FORMAT,
        "stage": stage,
        "parent": _parent(parent),
        "recipe_sha256": recipe_sha256,
        "data_sha256": data_sha256,
        "tokenizer_sha256": tokenizer_sha256(temporary),
        "step": step,
        "versions": library_versions(),
        "files": {
            path.name: known.get(path.name) or {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
            for path in sorted(temporary.iterdir())
        },
    }
    (temporary / HANDOFF).write_text(json.dumps(handoff, indent=1) + "\n")
    flush(temporary)
    shutil.rmtree(export, ignore_errors=True)
    temporary.rename(export)
    flush_directory(export.parent)
    return handoff


def unfinished(export: Path) -> Path:
    """Where a hand-off is written before it is whole; the ranks that write shards share it with the first."""
    return export.with_name(f".{export.name}.tmp")


def _parent(parent: Path | None) -> dict[str, str] | None:
    if parent is None:
        return None
    record = parent / HANDOFF
    return {"path": str(parent), "sha256": sha256_file(record) if record.is_file() else ""}


def verify_handoff(export: Path) -> dict[str, Any]:
    """Check that a hand-off is whole and unaltered, and return its `handoff.json`.

    Raises:
        ContentError: with the path and the reason: absent, unfinished, another format, a file missing, cut or altered.
    """
    path = export / HANDOFF
    if not path.is_file():
        raise ContentError(f"{export}: no {HANDOFF}: the stage before has not finished its export")
    try:
        handoff = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ContentError(f"{path}: not JSON ({error}); export the stage again") from None
    if not isinstance(handoff, dict) or handoff.get("format") != FORMAT or not isinstance(handoff.get("files"), dict):
        raise ContentError(f"{path}: not a hand-off of format {FORMAT}")
    paths = [export / name for name in handoff["files"]]
    with ThreadPoolExecutor() as pool:  # hashing leaves the interpreter lock: shards are read beside each other
        list(pool.map(_verify_file, paths, handoff["files"].values()))
    return handoff


def _verify_file(path: Path, expected: dict[str, Any]) -> None:
    if not path.is_file():
        raise ContentError(f"{path}: missing from the hand-off; export the stage again")
    found = path.stat().st_size
    if found != expected["bytes"]:
        raise ContentError(f"{path}: {found} bytes, the hand-off says {expected['bytes']}: cut or altered")
    if sha256_file(path) != expected["sha256"]:
        raise ContentError(f"{path}: its content is not what the hand-off says (SHA-256 differs)")


def accept_parent(parent: Path, stage: str | None, tokenizer: Path, architecture: dict[str, Any] | None) -> None:
    """Refuse a start directory that `stage` cannot continue from.

    Args:
        stage: the stage that would continue; None where any maker is welcome (`model.path`).
        parent: a hand-off, or any Hugging Face directory (only its files can then be checked).
        tokenizer: the run's tokenizer directory; architecture: the config.json fields that must agree, None = any.

    Raises:
        ContentError: incomplete or altered, another tokenizer or architecture, or a stage that does not come before.
    """
    if (parent / HANDOFF).is_file() or not (parent / "config.json").is_file():
        handoff = verify_handoff(parent)
        made_by = handoff.get("stage")
        if stage is not None and (made_by not in STAGES or STAGES.index(made_by) >= STAGES.index(stage)):
            raise ContentError(f"{parent}: made by stage {made_by}, which does not come before {stage}")
        if handoff["tokenizer_sha256"] != tokenizer_sha256(tokenizer):
            raise ContentError(f"{parent}: its tokenizer is not the run's tokenizer in {tokenizer}")
    config = json.loads((parent / "config.json").read_text())
    config = config.get("text_config", config)
    for key, value in (architecture or {}).items():
        if config.get(key) != value:
            raise ContentError(f"{parent}: {key} is {config.get(key)}, the recipe's model has {value}")


def begin(directory: Path, needed: int) -> None:
    """Make room for a checkpoint that the ranks write into `directory`/UNFINISHED.

    Raises:
        ContentError: fewer than `needed` bytes are free.
    """
    shutil.rmtree(directory / UNFINISHED, ignore_errors=True)  # what a killed save has left
    (directory / UNFINISHED).mkdir(parents=True)
    require_disk(directory, needed)


def complete(directory: Path, name: str) -> None:
    """Mark the checkpoint `name` in UNFINISHED whole, bring it to the disk and give it its place in `directory`."""
    unfinished = directory / UNFINISHED / name
    sizes = {str(path.relative_to(unfinished)): path.stat().st_size for path in _files(unfinished)}
    (unfinished / COMPLETE).write_text(json.dumps(sizes))
    flush(unfinished)
    shutil.rmtree(directory / name, ignore_errors=True)  # a damaged one that this start has skipped
    unfinished.rename(directory / name)
    flush_directory(directory)
    shutil.rmtree(directory / UNFINISHED)


def flush(directory: Path) -> None:
    """Bring every file of a directory to the disk: a rename may otherwise outlive a power cut that its content does
    not."""
    for path in _files(directory):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    for folder in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
        flush_directory(folder)


def flush_directory(directory: Path) -> None:
    """Bring the names in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def damage(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be resumed from, or None when it can."""
    marker = checkpoint / COMPLETE
    if not marker.is_file():
        return "its save did not finish"
    try:
        sizes = json.loads(marker.read_text())
    except json.JSONDecodeError:
        return f"{COMPLETE} is damaged"
    for name, size in sizes.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    return None


def step_of(checkpoint: Path) -> int:
    """The optimizer step in the name of a checkpoint directory."""
    return int(checkpoint.name.removeprefix(PREFIX))


def checkpoints(directory: Path) -> list[Path]:
    """All checkpoint directories, newest step first, whole or not."""
    found = [path for path in directory.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdigit()]
    return sorted(found, key=step_of, reverse=True)


def newest_checkpoint(directory: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint; damaged ones that are newer are named in a warning and skipped."""
    for checkpoint in checkpoints(directory):
        reason = damage(checkpoint)
        if reason is None:
            return checkpoint
        warn(f"{checkpoint}: skipped, {reason}")
    return None


def rotate(directory: Path, keep: int) -> None:
    """Delete all but the `keep` newest whole checkpoints, and damaged ones older than the newest whole one."""
    whole = [checkpoint for checkpoint in checkpoints(directory) if damage(checkpoint) is None]
    for checkpoint in checkpoints(directory):
        outdated = checkpoint in whole[keep:]
        unusable = checkpoint not in whole and bool(whole) and step_of(checkpoint) < step_of(whole[0])
        if outdated or unusable:
            shutil.rmtree(checkpoint)


def require_disk(directory: Path, needed: int, what: str = "a checkpoint") -> None:
    """Refuse a save that would not fit; `what` is to be saved.

    Raises:
        ContentError: fewer than `needed` bytes are free at `directory`.
    """
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise ContentError(
            f"{directory}: {free / 2**30:.2f} GiB free, {what} needs up to {needed / 2**30:.2f} GiB; free space, "
            "or lower the stage's save_total_limit (2 is the least), and start again with resume=true"
        )
