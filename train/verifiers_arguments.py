"""The arguments of `agentworld verifiers`; imports nothing heavy, since every `--help` builds every parser."""

import argparse
from pathlib import Path
from typing import Any

from agentworld.train.arguments import not_negative, positive, share

HELP = """\
Lets a model write executable verifiers for single turns, and keeps those that prove themselves: the truth passes,
damaged truths fail, and the rubric agrees on rollouts where they are given. Needs the sandbox (Linux).

example:
  agentworld verifiers mine.jsonl --out verifiers.jsonl --base-url https://HOST/v1 --model NAME --key-variable KEY
  agentworld verifiers mine.jsonl --out verifiers.jsonl --base-url http://localhost:8000/v1 --model NAME \\
    --rollouts scored.jsonl --report verifiers.json
  agentworld train recipe=NAME 'data.trajectories=[mine.jsonl]' 'reward.verifiers=[verifiers.jsonl]'
"""
EPILOG = """\
Answers are kept in a cache beside --out: a second run asks nothing again. A rollout is a row of `agentworld score`, in
or out; one that was scored keeps its rubric (a judge's, too), others get the reference scorer's.
"""


def add(verbs: Any) -> None:
    """Add the verb to the parser's verbs."""
    layout = argparse.RawDescriptionHelpFormatter
    about = {"help": "let a model write verifiers of turns", "description": HELP, "epilog": EPILOG}
    verb = verbs.add_parser("verifiers", formatter_class=layout, **about)
    verb.add_argument("trajectories", type=Path, nargs="+", metavar="TRAJECTORIES.jsonl", help="or .parquet")
    verb.add_argument("--out", type=Path, required=True, metavar="VERIFIERS.jsonl", help="for reward.verifiers")
    verb.add_argument(
        "--report", type=Path, metavar="FILE.json", help="counts of all that was kept and dropped, and why"
    )
    verb.add_argument("--limit", type=positive, metavar="N", help="only the first N trajectories")
    seed = "only the turn of each trajectory that RL asks in a run with this seed (default: every turn)"
    verb.add_argument("--seed", type=not_negative, help=seed)
    verb.add_argument("--rollouts", type=Path, metavar="PREDICTIONS.jsonl", help="predictions of the same turns")
    form = "of the rollouts; plain: the whole text is the prediction (default tagged)"
    verb.add_argument("--form", choices=("tagged", "plain"), default="tagged", help=form)
    yes = "a rollout is right where the rubric's mean, 1 to 5, is at least this (default 4)"
    verb.add_argument("--rubric-yes", type=float, default=4.0, metavar="MEAN", help=yes)
    agreement = "least share of a turn's rollouts on which verifier and rubric agree (default 0.8)"
    verb.add_argument("--agreement", type=share, default=0.8, metavar="SHARE", help=agreement)
    _add_endpoint(verb)
    verb.set_defaults(verb=run)


def _add_endpoint(verb: argparse.ArgumentParser) -> None:
    """Defaults are those of rewards/settings.py, except where said."""
    verb.add_argument("--base-url", required=True, metavar="URL", help="of an OpenAI-compatible endpoint")
    verb.add_argument("--model", required=True, metavar="NAME", help="that the endpoint serves")
    key = "the environment variable that holds the key (default: none is sent)"
    verb.add_argument("--key-variable", default="", metavar="VAR", help=key)
    verb.add_argument("--cache", type=Path, metavar="FILE", help="of answers (default: OUT.cache.sqlite)")
    tokens = "of a question's material, estimated; long texts are shortened to fit (default 32768)"
    verb.add_argument("--prompt-tokens", type=positive, default=32768, help=tokens)
    verb.add_argument(
        "--max-tokens", type=positive, default=32768, help="of a reply, thoughts included (default 32768)"
    )
    fields = ("max_completion_tokens", "max_tokens")
    verb.add_argument("--max-tokens-field", choices=fields, default=fields[0], help=f"default {fields[0]}")
    verb.add_argument("--temperature", type=float, default=0.6, help="below 0 = not sent (default 0.6)")
    verb.add_argument("--concurrency", type=positive, default=16, help="requests at once (default 16)")
    verb.add_argument("--requests-per-minute", type=not_negative, default=0, help="0 = no limit (default)")
    verb.add_argument("--tokens-per-minute", type=not_negative, default=0, help="0 = no limit (default)")
    verb.add_argument("--timeout", type=positive, default=600, metavar="SECONDS", help="of a request (default 600)")
    verb.add_argument("--attempts", type=positive, default=6, help="requests for one answer (default 6)")


def run(options: argparse.Namespace) -> int:
    """Run the verb and return its exit code."""
    from agentworld.train.verifiers import run as verifiers

    return verifiers(options)
