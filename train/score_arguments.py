"""The arguments of `agentworld score`; imports nothing heavy, since every `--help` builds every parser."""

import argparse
from pathlib import Path
from typing import Any

from agentworld.data.errors import RequestError
from agentworld.train.arguments import not_negative, positive

HELP = """\
Scores predictions with a reward, and says why; shows the completions of an RL stage with the reward that they were
trained on; proves a reward on real trajectories. Offline, unless the reward asks a judge.

example:
  agentworld score predictions.jsonl --out scored.jsonl --html scored.html
  agentworld score runs/first/rl/completions --out all.jsonl --html all.html
  agentworld score mine.jsonl --out mine-scored.jsonl --reward runs/first   # the reward of that run
  agentworld score --validate trajectories.jsonl
  agentworld score predictions.jsonl --out scored.jsonl --reward judge reward.judge.base_url=https://HOST/v1 \\
    reward.judge.model=MODEL reward.judge.key_variable=JUDGE_API_KEY
"""
EPILOG = """\
A row: {"id", "domain", "turn", "action", "prediction", "truth", "history"?, "deterministic"?, "ended"?}; the output
adds reward, rubric, rule, scores, verdicts, guards and reason, and what each judge said. --validate: the truth scores
25, every corruption less, or exit code 1.

What a judge will cost is told before it is asked. Its verdicts are kept in judge_cache.sqlite beside --out (without
--out in the working directory; reward.judge.cache=FILE names another), so that a second start buys none twice. A row
that it failed on has the reward null; above reward.judge.failed_limit the exit code is 1, and everything is written.
"""


def add(verbs: Any) -> None:
    """Add the verb to the parser's verbs."""
    layout = argparse.RawDescriptionHelpFormatter
    about = {"help": "score predictions, and why", "description": HELP, "epilog": EPILOG}
    verb = verbs.add_parser("score", formatter_class=layout, **about)
    what = "rows, .jsonl or .parquet, or a folder of them"
    verb.add_argument("predictions", nargs="?", metavar="PREDICTIONS.jsonl", help=what)
    keys = "keys of the reward to change (rewards/settings.py)"
    verb.add_argument("overrides", nargs="*", metavar="reward.key=value", help=keys)
    verb.add_argument("--out", type=Path, metavar="SCORED.jsonl", help="the rows with reward, parts and reason")
    verb.add_argument(
        "--reward", metavar="NAME", help="a file of recipes/reward, or a run's directory (default offline)"
    )
    form = "plain: the whole text is the prediction, without tag (default tagged)"
    verb.add_argument("--form", choices=("tagged", "plain"), default="tagged", help=form)
    verb.add_argument("--html", type=Path, metavar="OUT.html", help="also write a page")
    verb.add_argument("--html-rows", type=positive, default=2000, help="rows on the page (default 2000)")
    verb.add_argument("--validate", type=Path, metavar="TRAJECTORIES.jsonl", help="prove the reward on them instead")
    turns = "turns of each domain, one a trajectory, for --validate; 0 = of all (default 200)"
    verb.add_argument("--turns", type=not_negative, default=200, help=turns)
    verb.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb and return its exit code."""
    from agentworld.train.score import run as score

    words = [options.predictions, *options.overrides] if options.predictions is not None else options.overrides
    options.overrides = [word for word in words if "=" in word and not Path(word).exists()]
    files = [word for word in words if word not in options.overrides]
    if len(files) > 1:
        raise RequestError(f"one file or folder of predictions, not {' and '.join(files)}")
    options.predictions = Path(files[0]) if files else None
    return score(options)
