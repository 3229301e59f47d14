"""The directory of a run: its name, its lock, its recipe, and files that are whole or absent.

    runs/<name>/  recipe.yaml  run.json  data/  base/ cpt/ sft/ rl/  baselines.json  report.json

One live process owns a run directory, through a lock that the system gives back when the process dies in any way.
Rules of naming, resuming and overwriting: `open_run`.
"""

import fcntl
import json
import os
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.manifest import MANIFEST
from agentworld.rewards.settings import JUDGED, RewardSettings
from agentworld.train.checkpoint import library_versions, sha256_file, sha256_json
from agentworld.train.compose import load_recipe, override_of, to_yaml
from agentworld.train.config import STAGES, Config
from agentworld.train.contradictions import leaves

LOCK = ".lock"
# How a batch falls into ranks and micro-batches may differ, too, where a run goes on; `resume` keeps it whole.
LAYOUT_KEYS = ("engine.expert_parallel", "cpt.rows_per_device", "sft.rows_per_device", "rl.completions_per_device")
LAYOUT_KEYS = (*LAYOUT_KEYS, "cpt.gradient_accumulation_steps", "sft.gradient_accumulation_steps")
# And so may what only bounds memory: where it is of sampling, the draws may become others of the same distribution.
LAYOUT_KEYS = (*LAYOUT_KEYS, "model.recompute", "eval.batch_size", "eval.divided", "rl.rollout.batch_size",
               "rl.rollout.gpu_memory_utilization", "rl.rollout.tensor_parallel_size",
               "rl.rollout.enable_sleep_mode")  # fmt: skip
# A judge may move and its limits may change between the starts of a run; its verdicts do not.
JUDGE_KEYS = ("base_url", "key_variable", "concurrency", "requests_per_minute", "tokens_per_minute", "price_",
              "timeout", "deadline", "attempts", "backoff", "failed_limit", "cache")  # fmt: skip
# What may differ between the starts of one run.
FREE_KEYS = (
    "resume",
    "overwrite",
    "stage",
    "run.",
    "nproc",
    "cluster.",
    *(f"{stage}.save_total_limit" for stage in ("cpt", "sft", "rl")),  # a full disk asks for fewer checkpoints
    *(f"reward.judge.{key}" for key in JUDGE_KEYS),
    "rl.rollout.server_",  # and so may the server that samples
    "rl.rollout.group_port",
)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step: a reader sees the old file or the new one, also after a crash."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp gives 0600
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_json(path: Path, content: Any) -> None:
    """`write_text` of indented JSON. A float that is not finite is refused (ValueError): it is not JSON."""
    write_text(path, json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def update_run_json(run_dir: Path, **fields: Any) -> None:
    """Add or replace keys of run.json, in one step."""
    path = run_dir / "run.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    write_json(path, {**known, **fields})


def reward_sha256(reward: RewardSettings) -> str:
    """Of what a reward depends on: its settings, those of a judge where one is asked, and the text of its verifiers,
    not where they lie. Where the judge is served and how long it is waited for does not count."""
    values = asdict(reward)
    judge = {key: value for key, value in values["judge"].items() if not key.startswith(JUDGE_KEYS)}
    values["judge"] = judge if reward.rubric in JUDGED else None
    values["verifiers"] = [sha256_file(Path(path)) for path in reward.verifiers]
    return sha256_json(values)


def parent_of(name: str, config: Config, run_dir: Path) -> Path:
    """The directory a stage starts from: the export of the stage right before it in this run, else `model.path`."""
    before = run_dir / STAGES[STAGES.index(name) - 1] / "export"
    if before.exists():
        return before
    if config.model.path:
        return Path(config.model.path)
    raise ContentError(f"{before} is not there; run the stage before {name} first, or set model.path")


def new_name(recipe: str) -> str:
    """`<recipe>-<UTC time>-<4 hex>`: two starts within one second differ."""
    return f"{recipe}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"


@contextmanager
def open_run(config: Config, arguments: Sequence[str]) -> Iterator[Path]:
    """Make or enter the run directory of `config` and hold it while the block runs.

    `config.run.name` is filled in when it is empty. An existing name is refused, except with `resume=true` (continues
    it; makes it if absent) and `overwrite=true` (deletes the run; with `stage=X`, X and the later stages only, with
    `stage=rl` all of RL but its pilot).

    Args:
        arguments: the command line, recorded in run.json.

    Raises:
        RequestError: the run exists, is in use, is not a run, was made with another recipe, or cannot be written.
    """
    named = bool(config.run.name)
    config.run.name = config.run.name or new_name(config.recipe)
    root = Path(config.run.root)
    run_dir = root / config.run.name
    missing: list[Path] = []
    try:
        missing = [folder for folder in (run_dir, *run_dir.parents) if not folder.exists()]  # deepest first
        root.mkdir(parents=True, exist_ok=True)
        run_dir.mkdir(exist_ok=named and (config.resume or config.overwrite))
    except FileExistsError as error:
        if run_dir.exists():  # maybe made by another start since `missing` was read: it is not ours to remove
            raise RequestError(_exists(run_dir)) from None
        _remove_empty(missing)
        raise RequestError(f"{error.filename} is not a folder") from None
    except OSError as error:
        _remove_empty(missing)
        raise RequestError(f"cannot make the run directory {run_dir}: {error.strerror}; set run.root") from None
    with _locked(run_dir):
        try:
            _enter(config, run_dir, arguments)
        except BaseException:
            if not (run_dir / "run.json").exists() and missing:
                shutil.rmtree(run_dir, ignore_errors=True)
                _remove_empty(missing)
            raise
        yield run_dir


def _exists(run_dir: Path) -> str:
    return f"{run_dir} exists; continue it with resume=true, delete it with overwrite=true, or choose another run.name"


def _enter(config: Config, run_dir: Path, arguments: Sequence[str]) -> None:
    fresh = all(entry.name.startswith(".") for entry in run_dir.iterdir())  # the lock, and what a kill has left
    if not fresh:
        stored = load_recipe(run_dir)  # refuses a folder that is not a run before anything in it is touched
        prepared = (run_dir / "data" / MANIFEST).is_file()
        if config.resume and prepared:  # before that nothing depends on the recipe: a refused input can be corrected
            _require_same(
                stored, config, (*FREE_KEYS, *LAYOUT_KEYS), "use another run.name, or overwrite=true to start again"
            )
        elif not config.resume:
            _overwrite(stored, config, run_dir)
    write_text(run_dir / "recipe.yaml", to_yaml(config))
    if not (run_dir / "run.json").exists():
        write_json(run_dir / "run.json", _identity(config, arguments))


def _overwrite(stored: Config, config: Config, run_dir: Path) -> None:
    """Delete what `stage` asks for; the recipe of what is kept must be the one it was made with."""
    if config.stage in ("all", "data") or not (run_dir / "data" / MANIFEST).is_file():  # nothing worth keeping
        entries = [entry for entry in run_dir.iterdir() if entry.name != LOCK]
        _remove(sorted(entries, key=lambda entry: entry.name == "recipe.yaml"))  # last: it marks the folder as a run
        return
    evaluations = [run_dir / stage / "evaluation.json" for stage in STAGES]
    if config.stage == "eval":
        later, doomed = [], [*evaluations, run_dir / "baselines.json"]
    else:
        later = list(STAGES[STAGES.index(config.stage) :])
        doomed = [run_dir / stage for stage in later]
        if config.stage == "rl" and (run_dir / "rl").is_dir():  # the pilot is kept: it knows what it was sampled with
            doomed = [entry for entry in (run_dir / "rl").iterdir() if entry.name != "pilot"]
    free = (*FREE_KEYS, "wandb.", *(f"{stage}." for stage in later), *(("reward.",) if "rl" in later else ()))
    free = (*free, *(("eval.", "reward.") if config.stage == "eval" else ()))
    _require_same(stored, config, free, "use another run.name, or overwrite=true with stage=all")
    _remove([*doomed, run_dir / "report.json"])


def _require_same(stored: Config, new: Config, free: Sequence[str], way_out: str) -> None:
    """Refuse values that differ from those of the run, but for the free keys; the error says what to give again."""
    old_values, new_values = dict(leaves(stored)), dict(leaves(new))
    differing = [
        key
        for key in dict.fromkeys((*old_values, *new_values))
        if old_values.get(key) != new_values.get(key) and not any(key == name or key.startswith(name) for name in free)
    ]
    if differing:
        again = " ".join(override_of(key, old_values[key]) for key in differing if key in old_values)
        raise RequestError(
            f"the run {new.run.name} was made with other values of {', '.join(differing)}; give {again} again, or "
            f"{way_out}"
        )


def _remove(paths: Any) -> None:
    for path in list(paths):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:  # absent, or another run has moved in
            continue


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Hold the lock of a run directory. The descriptor is not inherited by the ranks, and a killed process frees it."""
    with open(run_dir / LOCK, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise RequestError(f"{run_dir} is in use by {owner}; wait for it, or choose another run.name") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def _identity(config: Config, arguments: Sequence[str]) -> dict[str, Any]:
    return {
        "id": f"{config.run.name}-{secrets.token_hex(4)}",
        "name": config.run.name,
        "recipe": config.recipe,
        "seed": config.seed,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "argv": list(arguments),
        "versions": {"agentworld": version("agentworld"), **library_versions()},
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "executable": sys.executable,
    }


def _git_commit() -> str | None:
    """The commit of the checkout that this module lies in; `-dirty` when files differ; None outside a checkout."""
    folder = Path(__file__).resolve().parent
    try:
        commit = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
            capture_output=True,
            text=True,
            timeout=10,
        )
        tracked = subprocess.run(
            ["git", "-C", str(folder), "ls-files", "--error-unmatch", __file__], capture_output=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return commit.stdout.strip() if commit.returncode == 0 and tracked.returncode == 0 else None
