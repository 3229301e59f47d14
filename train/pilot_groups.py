"""What the pilot of RL found: groups of completions of RL's start, and which prompts they leave. Imports no torch.

    rl/pilot/part_<n>.parquet   the completions of some prompts (`rewards.completions`), whole or absent
    rl/pilot/settings.json      what they were sampled from and with, and the prompts of a part; others' are deleted
    rl/pilot/report.json        counts by domain, and the prompts that are dropped; written last: the pilot is done

On the scale of its own turn (`hybrid.ends_of_scale`) a completion is at the *top* with the reward of the truth, at the
*bottom* with 0 or with the reward of an answer of right form of which nothing is right. A group is

    solved      every reward is at the top
    hopeless    every reward is at the bottom, and all are equal: of 0 and the other bottom the form is learnt
    mixed       anything else, also equal rewards between the two ends: the next policy may part them
    unjudged    fewer than 2 completions have a reward, or those have 0 alone, because the judge failed on others:
                nothing is known, the prompt is kept; `reward.judge.on_failure=zero` does not count here

DAPO (arXiv:2503.14476 section 3.2) drops groups of accuracy 0 and 1 while it trains; here it is done once, before.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from agentworld.data.errors import ContentError
from agentworld.train.checkpoint import HANDOFF, sha256_file
from agentworld.train.config import Config
from agentworld.train.run_directory import reward_sha256

TOLERANCE = 1e-6  # of equal rewards
KINDS = ("solved", "hopeless", "mixed", "unjudged")


def directory(run_dir: Path) -> Path:
    """Of the pilot's files."""
    return run_dir / "rl" / "pilot"


def settings_of(config: Config, run_dir: Path, parent: Path) -> dict[str, Any]:
    """What the completions and their rewards depend on, beside the code. Not what becomes of the groups, nor how many
    completions are sampled at once: with another number the draws differ, their distribution does not.

    Args:
        parent: the hand-off or Hugging Face directory that RL starts from.
    """
    handoff, rl = parent / HANDOFF, config.rl
    judge = replace(config.reward.judge, on_failure="leave_out")  # the pilot does, whatever RL does
    return {
        "handoff_sha256": sha256_file(handoff) if handoff.is_file() else None,
        "path": None if handoff.is_file() else str(parent),
        "data_sha256": json.loads((run_dir / "data" / "manifest.json").read_text())["sha256"],
        "reward_sha256": reward_sha256(replace(config.reward, judge=judge)),
        "seed": config.seed,
        "completions": rl.pilot_completions,
        "temperature": rl.temperature,
        "max_completion_tokens": rl.max_completion_tokens,
    }


def kinds_to_drop(config: Config) -> list[str]:
    """Of KINDS, those that the recipe drops."""
    return [kind for kind in ("solved", "hopeless") if getattr(config.rl, f"drop_{kind}")]


@dataclass(frozen=True)
class Group:
    """The pilot completions of a prompt. `rewards`: of those that have one."""

    key: str
    domain: str
    kind: str  # one of KINDS
    rewards: tuple[float, ...]


def group_of(rows: Sequence[Mapping[str, Any]], ends: Mapping[bool, tuple[float, float]]) -> Group:
    """The group that the completions of one prompt make.

    Args:
        rows: as `rewards.completions.read` gives them.
        ends: bottom and top of the scale of the prompt's domain, with a rule (True) and without.
    """
    rewards = tuple(row["reward"] for row in rows if row["reward"] is not None)
    return Group(rows[0]["prompt"], rows[0]["domain"], _kind(rows, ends), rewards)


def _kind(rows: Sequence[Mapping[str, Any]], ends: Mapping[bool, tuple[float, float]]) -> str:
    scored = [row for row in rows if row["reward"] is not None]
    # A judge is asked about answers of right form only: those that lack a verdict are not like the ones that have 0.
    if len(scored) < 2 or (len(scored) < len(rows) and all(row["reward"] <= TOLERANCE for row in scored)):
        return "unjudged"
    rewards = [row["reward"] for row in scored]
    scales = [ends[row["rule"] is not None] for row in scored]
    if all(reward >= top - TOLERANCE for reward, (_, top) in zip(rewards, scales, strict=True)):
        return "solved"
    at_bottom = all(reward <= bottom + TOLERANCE for reward, (bottom, _) in zip(rewards, scales, strict=True))
    return "hopeless" if at_bottom and max(rewards) - min(rewards) <= TOLERANCE else "mixed"


def summary(groups: Sequence[Group], settings: Mapping[str, Any], kinds: Sequence[str], parts: int) -> dict[str, Any]:
    """report.json: {"settings", "parts", "total", "domains": {name: counts}, "dropped": {kind: keys}}; `kinds`: those
    that are dropped."""
    dropped = {kind: [group.key for group in groups if group.kind == kind] for kind in kinds}
    domains = sorted({group.domain for group in groups})
    return {
        "settings": dict(settings),
        "parts": parts,
        "total": _counts(groups, dropped),
        "domains": {name: _counts([g for g in groups if g.domain == name], dropped) for name in domains},
        "dropped": dropped,
    }


def _counts(groups: Sequence[Group], dropped: Mapping[str, Any]) -> dict[str, Any]:
    rewards = [fmean(group.rewards) for group in groups if group.rewards]
    return {
        "given": len(groups),
        **{kind: sum(group.kind == kind for group in groups) for kind in KINDS},
        "kept": sum(group.kind not in dropped for group in groups),
        "mean_reward": fmean(rewards) if rewards else None,  # over prompts
    }


def is_done(config: Config, run_dir: Path, parent: Path) -> bool:
    """Whether the pilot was finished from this very start and with these settings, and drops what is to be dropped."""
    path = directory(run_dir) / "report.json"
    if not path.is_file():
        return False
    report = json.loads(path.read_text())
    same_kinds = list(report["dropped"]) == kinds_to_drop(config)
    return same_kinds and report["settings"] == settings_of(config, run_dir, parent)


def dropped_prompts(config: Config, run_dir: Path) -> set[str]:
    """Keys of the prompts that RL leaves out.

    Raises:
        ContentError: fewer are left than a rollout takes.
    """
    report = json.loads((directory(run_dir) / "report.json").read_text())
    total, least = report["total"], config.rl.prompts_per_rollout
    if total["kept"] < least:
        raise ContentError(
            f"rl: the pilot leaves {total['kept']} of {total['given']} prompts, and a rollout takes "
            f"rl.prompts_per_rollout={least}: {total['solved']} are solved (rl.drop_solved={config.rl.drop_solved}), "
            f"{total['hopeless']} hopeless (rl.drop_hopeless={config.rl.drop_hopeless}); {directory(run_dir)} holds "
            "what was sampled. Set one of the three with stage=rl overwrite=true, which keeps the pilot, or give more "
            "trajectories"
        )
    return {key for keys in report["dropped"].values() for key in keys}


def table(report: Mapping[str, Any]) -> list[str]:
    """A line for each domain: what the pilot found there."""
    rows = report["domains"] if len(report["domains"]) == 1 else {**report["domains"], "all": report["total"]}
    return [
        f"pilot  {name}: {row['kept']} of {row['given']} prompts kept; {row['solved']} solved, {row['hopeless']} "
        f"hopeless, {row['unjudged']} without verdicts; mean reward "
        + ("-" if row["mean_reward"] is None else f"{row['mean_reward']:.2f}")
        for name, row in rows.items()
    ]
