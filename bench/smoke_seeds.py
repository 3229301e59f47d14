"""Run smoke for several seeds and write the README's table of what each stage brings: mean and range over the seeds.

    python -m bench.smoke_seeds [--seeds 1 2 3] [--root runs] [--readme README.md] [key=value ...]

The settings of smoke were chosen on seed 0 only, so the table is made of other seeds: each has other recorded sessions,
other held-out prompts, other initial weights and other samples. None of them may be used to change a setting; after
such a change take new ones. Seed 0 itself is refused.

The runs are `<root>/seed-<S>`, one after the other; what is finished is not done again. `<root>/seeds.json` holds
everything, and with --readme the text between `<!-- smoke seeds -->` and `<!-- /smoke seeds -->` is replaced. Exit code
1 when a claim does not hold for a seed: CPT predicts more turns exactly than the base model and than both baselines,
and RL's sampled reward is above SFT's (paired by prompt). About 7 minutes a seed on two free cores.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

CHOSEN_ON = 0  # the seed that smoke's settings were chosen on (recipes/recipe/smoke.yaml)
STAGES = ("base", "cpt", "sft", "rl")
BEGIN, END = "<!-- smoke seeds -->", "<!-- /smoke seeds -->"
COLUMNS = ("exact_match", "edit_similarity", "sampled_reward", "greedy_reward")
HEADINGS = ("exact match", "edit similarity", "RL reward, sampled", "RL reward, greedy")
DIGITS = (3, 3, 2, 2)
Report = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """What must hold for a seed, and the numbers that say whether it does."""

    text: str
    holds: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--root", type=Path, default=Path("runs"), help="where the runs and seeds.json go")
    parser.add_argument("--readme", type=Path, help="the file whose text between the markers is replaced")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="passed on to the runs")
    options = parser.parse_intermixed_args()
    if CHOSEN_ON in options.seeds:
        parser.error(f"smoke's settings were chosen on seed {CHOSEN_ON}; report others")
    if options.readme and not _has_markers(options.readme.read_text(encoding="utf-8")):
        parser.error(f"{options.readme} does not hold the lines {BEGIN} and {END}")
    for seed in options.seeds:
        code = run(seed, options.root, options.overrides)
        if code != 0:
            print(f"seed {seed} exits with {code}; the same command goes on", file=sys.stderr)
            return code
    reports = {seed: json.loads((options.root / f"seed-{seed}" / "report.json").read_text()) for seed in options.seeds}
    checked = {seed: claims(report) for seed, report in reports.items()}
    facts = _facts(options.root, options.seeds, options.overrides)
    text = markdown(reports, checked, facts)
    print(text)
    _write_json(options.root, reports, checked, facts)
    if options.readme:
        options.readme.write_text(with_block(options.readme.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0 if all(claim.holds for found in checked.values() for claim in found) else 1


def command(seed: int, root: Path, overrides: Sequence[str]) -> list[str]:
    """The arguments of one run, after the name of the command."""
    fixed = ["train", "recipe=smoke", f"seed={seed}", f"run.root={root}", f"run.name=seed-{seed}", "resume=true"]
    return [*fixed, *overrides]


def run(seed: int, root: Path, overrides: Sequence[str]) -> int:
    """Run or finish one seed and return the exit code. The wall time of all starts that did work is added up in
    `<root>/seed-<S>.wall_s`."""
    root.mkdir(parents=True, exist_ok=True)
    clock, started = root / f"seed-{seed}.wall_s", time.monotonic()
    finished_before = (root / f"seed-{seed}" / "report.json").exists()
    agentworld = Path(sys.executable).with_name("agentworld")
    try:
        return subprocess.run([str(agentworld), *command(seed, root, overrides)]).returncode
    finally:
        if not finished_before:
            clock.write_text(f"{_wall_seconds(clock) + time.monotonic() - started:.1f}\n")


def values(report: Report) -> dict[str, dict[str, float | None]]:
    """The four measures (`COLUMNS`) of each stage and each baseline; None where one is not measured."""
    rows = {}
    for entry in report["stages"]:
        reward = entry["reward"] or {"mean": None, "greedy_mean": None}
        fidelity = entry["fidelity"]
        measures = (fidelity["exact_match"], fidelity["edit_similarity"], reward["mean"], reward["greedy_mean"])
        rows[entry["stage"]] = dict(zip(COLUMNS, measures, strict=True))
    for name, fidelity in report["baselines"].items():
        label = name.removesuffix("_observation").replace("_", " ")
        rows[label] = dict(
            zip(COLUMNS, (fidelity["exact_match"], fidelity["edit_similarity"], None, None), strict=True)
        )
    return rows


def claims(report: Report) -> list[Claim]:
    """What the table is to show, checked for one seed."""
    rows = values(report)
    exact = {name: row["exact_match"] for name, row in rows.items()}
    others = {name: value for name, value in exact.items() if name not in ("cpt", "sft", "rl")}
    compared = ", ".join(f"{name} {value:.3f}" for name, value in others.items())
    above = Claim(f"exact match of CPT {exact['cpt']:.3f} above {compared}", exact["cpt"] > max(others.values()))
    pair = next(pair for pair in report["paired"] if (pair["after"], pair["before"]) == ("rl", "sft"))
    difference = f"{pair['mean']:+.2f} ± {pair['standard_error']:.2f}"
    return [above, Claim(f"RL - SFT {difference} sampled reward ({pair['n']} prompts)", pair["mean"] > 0)]


def table(reports: Mapping[int, Report]) -> list[list[str]]:
    """Rows of the table: a name, then `mean [min, max]` over the seeds for each of `COLUMNS`."""
    found = [values(report) for report in reports.values()]
    names = [*STAGES, *(name for name in found[0] if name not in STAGES)]
    return [
        [name, *(spread([row[name][column] for row in found], d) for column, d in zip(COLUMNS, DIGITS, strict=True))]
        for name in names
    ]


def spread(numbers: Sequence[float | None], digits: int) -> str:
    """`mean [min, max]`; `-` where nothing is measured."""
    measured = [number for number in numbers if number is not None]
    if not measured:
        return "-"
    assert len(measured) == len(numbers), f"measured in some runs only: {numbers}"
    return f"{mean(measured):.{digits}f} [{min(measured):.{digits}f}, {max(measured):.{digits}f}]"


def markdown(reports: Mapping[int, Report], checked: Mapping[int, Sequence[Claim]], facts: Mapping[str, Any]) -> str:
    """The block for the README: caption, table, and what holds for each seed."""
    listed = ", ".join(map(str, reports))
    turns = _range([entry["fidelity"]["n"] for report in reports.values() for entry in report["stages"]])
    rewards = [entry["reward"] for report in reports.values() for entry in report["stages"] if entry["reward"]]
    prompts, draws = _range([reward["n"] for reward in rewards]), _range([reward["draws"] for reward in rewards])
    lines = [
        f"Seeds {listed}: mean [smallest, largest]. The settings were chosen on seed {CHOSEN_ON}, which is not among "
        "them; each seed",
        f"has its own sessions, prompts and weights. Exact match and edit similarity: greedy, {turns} held-out turns a "
        "seed; RL",
        f"reward (0 to 25): {prompts} held-out prompts a seed, {draws} samples each, and greedy.",
        "",
        f"| | {' | '.join(HEADINGS)} |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in table(reports)),
        "",
    ]
    for seed, found in checked.items():
        parts = "; ".join(f"{claim.text}: {'holds' if claim.holds else 'DOES NOT HOLD'}" for claim in found)
        lines.append(f"- seed {seed} ({facts['wall_s'][seed]:.0f} s): {parts}")
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    lines += ["", f"{facts['date']}, {facts['cores']} cores, commit {facts['commit']}, {versions}.", ""]
    lines += ["```", facts["command"], "```"]
    return "\n".join(lines)


def with_block(text: str, block: str) -> str:
    """`text` with what stands between the markers replaced by `block`."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def _has_markers(text: str) -> bool:
    return text.count(BEGIN) == text.count(END) == 1 and text.index(BEGIN) < text.index(END)


def _range(numbers: Sequence[int]) -> str:
    return str(min(numbers)) if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"


def _wall_seconds(clock: Path) -> float:
    return float(clock.read_text()) if clock.exists() else 0.0


def _facts(root: Path, seeds: Sequence[int], overrides: Sequence[str]) -> dict[str, Any]:
    """Where the numbers come from: of each run what its run.json says, of this machine the rest."""
    known = [json.loads((root / f"seed-{seed}" / "run.json").read_text()) for seed in seeds]
    commits = sorted({str(run["git_commit"]) for run in known})
    return {
        "date": max(run["created"] for run in known)[:10],
        "commit": " and ".join(commit[:12] + ("-dirty" if commit.endswith("-dirty") else "") for commit in commits),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "versions": {"Python": known[0]["python"], **known[0]["versions"]},
        "wall_s": {seed: _wall_seconds(root / f"seed-{seed}.wall_s") for seed in seeds},
        "command": " ".join(["python -m bench.smoke_seeds --seeds", *map(str, seeds), *overrides]),
    }


def _write_json(
    root: Path, reports: Mapping[int, Report], checked: Mapping[int, Sequence[Claim]], facts: Mapping[str, Any]
) -> None:
    seeds = {
        str(seed): {
            "values": values(report),
            "claims": [{"text": claim.text, "holds": claim.holds} for claim in checked[seed]],
            "report": report,
        }
        for seed, report in reports.items()
    }
    content = {**facts, "settings_chosen_on_seed": CHOSEN_ON, "table": table(reports), "seeds": seeds}
    (root / "seeds.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
