"""`agentworld show` from its arguments to the screen or a page; `data.show` holds what is shown."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from agentworld.data.errors import RequestError
from agentworld.data.outputs import require_outputs
from agentworld.data.show import Source, View, find, look, terminal_lines
from agentworld.data.system_prompts import prompt_sets
from agentworld.data.visible_text import counted
from agentworld.train.compose import load_recipe
from agentworld.train.screen import screen

DONE = 0


def show(options: argparse.Namespace) -> int:
    """Show one trajectory, or with `--stats` the whole file.

    Raises:
        RequestError: arguments that contradict each other, an id or a folder that is not there.
        ContentError: a damaged file, run or tokenizer.
    """
    _check(options)
    source = source_of(options.file, options.seed, options.prompt_set)
    sys.stdout.reconfigure(errors="backslashreplace")  # a pipe may take less than UTF-8
    if options.stats:
        return _stats(options, source)
    view = look(find(options.file, options.trajectory), source, options.mask)
    if options.html is not None:
        return _page(options, view)
    console = Console(highlight=False)
    for line in terminal_lines(view, options.full, console.width if console.is_terminal else None):
        console.print(line, soft_wrap=True)
    return DONE


def source_of(path: Path, seed: int | None, prompt_set: str | None) -> Source:
    """The file with the settings and the seed of the run in whose data folder it lies, else the defaults; `seed` and
    `prompt_set` take their place where they are given."""
    run_dir = path.absolute().parent.parent
    if path.absolute().parent.name == "data" and (run_dir / "recipe.yaml").is_file():
        config = load_recipe(run_dir)
        source = Source(path, config.data, config.seed, in_run=True)
    else:
        source = Source(path)
    if prompt_set is not None:
        source = replace(source, settings=replace(source.settings, prompt_set=prompt_set))
    return source if seed is None else replace(source, seed=seed)


def _check(options: argparse.Namespace) -> None:
    if options.file.is_dir():
        raise RequestError(f"{options.file} is a folder: name one of its files of trajectories (.jsonl)")
    of_one = {name: getattr(options, name) for name in ("trajectory", "mask", "html", "prompt_set")}
    if options.stats and any(value is not None for value in of_one.values()):
        raise RequestError(
            "--stats counts the observations of the whole file: it goes without --trajectory, --mask, --html and "
            "--prompt-set"
        )
    if options.prompt_set is not None and options.prompt_set not in prompt_sets():
        raise RequestError(f"--prompt-set {options.prompt_set}: no such set; known: {', '.join(prompt_sets())}")
    if options.tokenizer is not None and not options.stats and options.html is None:
        raise RequestError("--tokenizer shows tokens in --html OUT.html or counts them in --stats; add one of them")
    if options.html is None:
        return
    require_outputs({"--html": options.html}, [options.file])


def _stats(options: argparse.Namespace, source: Source) -> int:
    from agentworld.data.render import Renderer
    from agentworld.data.show_html import choose_tokenizer
    from agentworld.data.show_stats import file_statistics, tables

    tokenizer, name = choose_tokenizer(options.tokenizer, find(options.file, None), source)
    found = file_statistics(options.file, source, Renderer(tokenizer))
    console = screen()
    for table in tables(found, source, name):
        console.print(table, highlight=False, soft_wrap=isinstance(table, Text))
    return DONE


def _page(options: argparse.Namespace, view: View) -> int:
    from agentworld.data.render import Renderer
    from agentworld.data.show_html import choose_tokenizer, page, write

    tokenizer, name = choose_tokenizer(options.tokenizer, view.trajectory, view.source)
    write(options.html, page(view, Renderer(tokenizer), name, options.full))
    print(f"{options.html}: {counted(len(view.turns), 'turn')}, mask {view.mask}, {name}")
    return DONE
