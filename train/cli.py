"""The `agentworld` command: one verb, one function; every error becomes one line and an exit code here.

    0   done
    1   content that cannot be used, or work that failed
    2   a wrong request: arguments, keys, a missing or unwritable path, an existing run
    3   stopped by a signal; `resume=true` continues (`train` only)
    130 interrupted where there is nothing to continue (`record`, `report`)

A traceback is printed only with AGENTWORLD_DEBUG=1. Heavy modules are imported inside the verb that needs them, so that
`--help` and a mistyped key answer at once and torch is not loaded in the parent process.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.visible_text import visible
from agentworld.train import score_arguments, verifiers_arguments
from agentworld.train.arguments import positive, share
from agentworld.train.import_arguments import IMPORT_HELP, add_import_arguments

DONE, FAILED, WRONG_REQUEST, STOPPED, INTERRUPTED = 0, 1, 2, 3, 130

TRAIN_HELP = """\
Runs a recipe from its data to its report: record or read trajectories, CPT, SFT, GSPO RL, an evaluation after each.
Without recipe= the error lists the recipes; every key of train/config.py can be set with key=value.

example:
  agentworld train recipe=smoke run.name=first
  agentworld train recipe=smoke run.name=first resume=true       continue a stopped run
  agentworld train recipe=smoke stage=cpt 'data.trajectories=[my.jsonl]' 'data.split={cpt:0.94,sft:0,rl:0,eval:0.06}'
"""
TRAIN_EPILOG = """\
keys of every recipe:
  stage=all|data|cpt|sft|rl|eval    one stage needs the hand-off before it, or model.path
  run.name=NAME  run.root=runs      an existing run is refused without resume=true or overwrite=true
  seed=0  nproc=0                   processes of this node; 0 = one a visible GPU, one on a CPU
  model.path=DIRECTORY              a Hugging Face directory to start from; empty = the recipe's random model
  cpt.* sft.* rl.*                  learning_rate, max_steps, save_steps, ...
  engine=zero1|zero2|zero3  engine.expert_parallel=1  wandb.mode=offline|online|disabled

exit codes: 0 done, 1 unusable content or failed work, 2 wrong request, 3 stopped by a signal (resume=true continues)
"""
PLAN_HELP = """\
Says what a run would take, before anything is spent: parameters, memory of a GPU by part, the fewest GPUs, tokens,
hours, disk, and every check that would fail later. Needs no GPU and no weights. Exit code 2 where a check fails.

example:
  agentworld plan recipe=agentworld-35b-a3b model.path=models/Qwen3.5-35B-A3B-Base
  agentworld plan recipe=agentworld-35b-a3b nproc=16 cluster.nodes=2 --json plan.json
"""
SUBMIT_HELP = """\
Runs a recipe on SLURM: makes the run directory and one sbatch script a stage in <run>/slurm, and submits them so that
each waits for the one before it. Takes the keys of train except nproc, and those of cluster, slurm/settings.py.

example:
  agentworld submit recipe=smoke run.name=first dry_run=true
  agentworld submit recipe=smoke run.name=first resume=true cluster.partition=batch cluster.time=8:00:00
"""
RECORD_HELP = """\
Runs real bash sessions from a seeded generator of commands and writes what the terminal answered, one trajectory a
line.

example:
  agentworld record terminal --count 200 --seed 1 --out terminal.jsonl
"""
SHOW_HELP = """\
Shows a trajectory: its turns, what the CPT mask makes of each, and as a page every token, trained or context.
Characters that a screen would obey or hide are named.

example:
  agentworld show mine.jsonl
  agentworld show runs/first/data/sft.jsonl --mask sft --html page.html
  agentworld show mine.jsonl --stats --tokenizer models/base
  agentworld show mine.jsonl --mask rl --prompt-set domains
"""
REPORT_HELP = """\
Prints the table of a run (fidelity and reward after each stage, beside the baselines) and writes its report.json.

example:
  agentworld report runs/first
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code; `arguments` defaults to the command line."""
    try:
        options = _parsed(arguments)
        return options.verb(options)
    except BrokenPipeError:  # the reader of a pipe (`| head`) has gone: a report is shown, a run is cut short
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        verb = (sys.argv[1:] if arguments is None else arguments)[:1]
        return DONE if verb in (["report"], ["show"], ["score"]) else FAILED
    except KeyboardInterrupt:
        return _report_error("interrupted", INTERRUPTED)
    except RequestError as error:
        return _report_error(str(error), WRONG_REQUEST)
    except ContentError as error:
        return _report_error(str(error), FAILED)
    except OSError as error:
        if error.filename is None and error.strerror is None:
            return _report_unexpected(error)
        where = f"{error.filename}: " if error.filename is not None else ""
        return _report_error(f"{where}{error.strerror}", WRONG_REQUEST)
    except Exception as error:
        return _report_unexpected(error)


def train(options: argparse.Namespace) -> int:
    from agentworld.train.compose import compose

    config = compose(options.overrides)
    from agentworld.train import pipeline

    return pipeline.run(config, options.overrides)


def plan(options: argparse.Namespace) -> int:
    from agentworld.train.plan import run

    return run(options.overrides, options.json, options.mfu)


def submit(options: argparse.Namespace) -> int:
    from agentworld.train.submission import submit

    return submit(options.overrides)


def record(options: argparse.Namespace) -> int:
    from agentworld.data.record import terminal
    from agentworld.data.settings import RecordSettings

    settings = RecordSettings(
        count=options.count,
        mix=options.mix,
        min_turns=options.min_turns,
        max_turns=options.max_turns,
        workers=options.workers,
    )
    if settings.min_turns > settings.max_turns:
        raise RequestError(f"--min-turns {settings.min_turns} is more than --max-turns {settings.max_turns}")
    counts = terminal.record(settings, options.seed, options.out, _say)
    _say(terminal.summary(counts, options.out))
    return DONE


def import_logs(options: argparse.Namespace) -> int:
    from agentworld.data import import_report, importing

    report = importing.import_files(
        options.paths, options.out, options.format, options.on_bad, options.shard, options.workers, _say,
        filters=options.filters == "on", redact=options.redact == "on",
        report_to=options.report, resume=options.resume,
    )  # fmt: skip
    _say(import_report.summary(report, options.out))
    return DONE


def show(options: argparse.Namespace) -> int:
    from agentworld.train.show import show as shown

    return shown(options)


def report(options: argparse.Namespace) -> int:
    from agentworld.train.report import render, write
    from agentworld.train.screen import screen

    screen().print(render(write(options.run_dir)))
    return DONE


class _Parser(argparse.ArgumentParser):
    """argparse whose errors take the one way of all errors, in one line."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{message}; see {self.prog} --help")


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """argparse takes words without a dash only in one place; key=value may stand before and after flags."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and ("overrides" not in options or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="agentworld",
        description="Trains language world models: CPT, SFT and GSPO RL from agent logs to a measured model.\n\n"
        "example:\n  agentworld train recipe=smoke",
        formatter_class=layout,
    )
    parser.add_argument("--version", action="version", version=f"agentworld {version('agentworld')}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    _add_run_verbs(verbs, layout)
    _add_data_verbs(verbs, layout)
    score_arguments.add(verbs)
    verifiers_arguments.add(verbs)
    verb = verbs.add_parser("report", help="print the table of a run", description=REPORT_HELP, formatter_class=layout)
    verb.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="for example runs/first")
    verb.set_defaults(verb=report)
    return parser


def _add_run_verbs(verbs: Any, layout: type[argparse.HelpFormatter]) -> None:
    """Verbs that take a recipe and Hydra overrides."""
    verb = verbs.add_parser(
        "train", help="run a recipe", description=TRAIN_HELP, epilog=TRAIN_EPILOG, formatter_class=layout
    )
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="recipe=NAME and the keys to change")
    verb.set_defaults(verb=train)

    verb = verbs.add_parser(
        "plan", help="what a run would take, and whether it can run", description=PLAN_HELP, formatter_class=layout
    )
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="recipe=NAME and the keys to change")
    verb.add_argument("--json", type=Path, metavar="FILE", help="write the plan for programs, too")
    verb.add_argument("--mfu", type=share, default=0.19, help="share of the peak that training reaches (default 0.19)")
    verb.set_defaults(verb=plan)

    verb = verbs.add_parser(
        "submit", help="run a recipe as a chain of SLURM jobs", description=SUBMIT_HELP, formatter_class=layout
    )
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="recipe=NAME, dry_run=true, keys to change")
    verb.set_defaults(verb=submit)


def _add_data_verbs(verbs: Any, layout: type[argparse.HelpFormatter]) -> None:
    """Verbs that make trajectories or show them; they take ordinary flags."""
    verb = verbs.add_parser(
        "record", help="record interactions with an environment", description=RECORD_HELP, formatter_class=layout
    )
    verb.add_argument("environment", choices=("terminal",), help="what to interact with")
    verb.add_argument("--count", type=positive, required=True, help="trajectories to record")
    verb.add_argument("--seed", type=int, default=0, help="same seed, same commands (default 0)")
    verb.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl", help="written when complete")
    verb.add_argument(
        "--mix", choices=("light", "full"), default="full", help="light: no Python, no git (default full)"
    )
    verb.add_argument("--workers", type=int, default=0, help="processes; 0 = two a core (default)")
    verb.add_argument("--min-turns", type=positive, default=4, help="of a trajectory (default 4)")
    verb.add_argument("--max-turns", type=positive, default=8, help="of a trajectory (default 8)")
    verb.set_defaults(verb=record)

    verb = verbs.add_parser(
        "import", help="turn agent logs into trajectories", description=IMPORT_HELP, formatter_class=layout
    )
    add_import_arguments(verb)
    verb.set_defaults(verb=import_logs)

    verb = verbs.add_parser(
        "show", help="look at trajectories and their masks", description=SHOW_HELP, formatter_class=layout
    )
    verb.add_argument("file", type=Path, metavar="FILE", help="trajectories, .jsonl or .parquet; also a pool of a run")
    verb.add_argument("--trajectory", metavar="ID", help="which one (default: the first)")
    verb.add_argument("--mask", choices=("cpt", "sft", "rl"), help="of a stage (default: the pool's, else cpt)")
    verb.add_argument(
        "--prompt-set", metavar="NAME", help="of the system prompt: brief or domains (default: the run's)"
    )
    verb.add_argument("--html", type=Path, metavar="OUT.html", help="write a page with every token instead")
    verb.add_argument("--stats", action="store_true", help="of the whole file: kept token shares and lengths")
    verb.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="of a model (default: the run's, else made of the file)"
    )
    verb.add_argument("--seed", type=int, help="of the draws (default: of the run, else 0)")
    verb.add_argument("--full", action="store_true", help="cut no long text")
    verb.set_defaults(verb=show)


def _say(line: str) -> None:
    print(visible(line), flush=True)


def _report_error(text: str, code: int) -> int:
    print(f"agentworld: error: {visible(' '.join(text.split()))}", file=sys.stderr)
    if os.environ.get("AGENTWORLD_DEBUG") == "1":
        traceback.print_exc()
    return code


def _report_unexpected(error: Exception) -> int:
    return _report_error(f"{type(error).__name__}: {error} (AGENTWORLD_DEBUG=1 prints the traceback)", FAILED)


if __name__ == "__main__":
    sys.exit(main())
