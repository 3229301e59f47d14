"""After each stage: what the model predicts on held-out turns, and the RL reward of what it samples.

Each stage is evaluated in the form it was trained in (base and CPT without thinking and tag, SFT and RL
with them), greedily; after SFT and RL the reward is also sampled at temperature 1 on the same held-out prompts, in RL's
form. Writes `<stage>/evaluation.json`, the greedy predictions as `<stage>/predictions.parquet` (rows for `agentworld
score`), and `baselines.json` beside the stages after the base model.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist

from agentworld.data.errors import ContentError
from agentworld.data.examples import Example, Selection, select_examples
from agentworld.data.outputs import replacing
from agentworld.data.render import Prediction
from agentworld.data.schema import Trajectory, read_jsonl
from agentworld.data.simulation import instructed
from agentworld.data.system_prompts import EVALUATION_VERSION, system_prompt
from agentworld.rewards.judge import Completion, Outcome
from agentworld.rewards.settings import RewardSettings, reward_outside_rl
from agentworld.train import checkpoint, engine, fidelity, kernels, report, run_directory
from agentworld.train.config import Config
from agentworld.train.generation import GREEDY, Generator, Rewarder, judgements

UNTAGGED_VERSION = EVALUATION_VERSION["cpt"]  # the one form without thinking and tag
SHOWN_EXAMPLES = 3
SHOWN = ("key", "action", "truth", "prediction", "tag_valid")  # of an example in evaluation.json
PREDICTIONS = "predictions.parquet"
SCHEMA = pa.schema(  # of rewards/predictions.py
    [
        *((name, pa.string()) for name in ("id", "domain")),
        ("turn", pa.int64()),
        *((name, pa.string()) for name in ("action", "prediction", "truth")),
        ("deterministic", pa.bool_()),
        ("ended", pa.bool_()),
        ("history", pa.list_(pa.list_(pa.string()))),
        *((name, pa.string()) for name in ("action_space", "simulation_instruction")),
    ]
)


def run(config: Config, run_dir: Path, stage: str) -> None:
    """Evaluate one stage and write its `evaluation.json`; examples are dealt out over the ranks."""
    kernels.install()
    weights = run_dir / stage / "export"
    if stage == "base" and not weights.exists():
        weights = Path(config.model.path)
    generator = Generator(config, run_dir, weights)
    selection = _selection(generator)
    examples = selection.examples
    held_out = {
        "turns": len(examples),
        "earlier_turn": selection.earlier,
        "too_long": selection.too_long,
        "prompt_tokens": _prompt_limit(config),
    }
    if engine.rank() == 0:
        print(f"{stage}  {report.held_out_turns(held_out)}", flush=True)
        if stage in ("sft", "rl") and (rubric := reward_outside_rl(config.reward).rubric) != config.reward.rubric:
            print(f"{stage}  held-out turns have no answer of the policy before RL: rewarded by {rubric}", flush=True)
    form = EVALUATION_VERSION["rl" if config.eval.prompt == "rl" else stage]
    scored = _predictions(generator, examples, form)
    reward = _sampled_reward(generator, examples[: config.eval.reward_examples]) if stage in ("sft", "rl") else None
    if engine.rank() != 0:
        return
    if stage == "base":
        run_directory.write_json(
            run_dir / "baselines.json", fidelity.baselines(examples, _training_observations(run_dir))
        )
    (run_dir / stage).mkdir(exist_ok=True)
    write_predictions(run_dir / stage / PREDICTIONS, examples, [shown for _, shown in scored], config.seed)
    handoff = weights / checkpoint.HANDOFF
    run_directory.write_json(  # last: a start that finds it does not evaluate the stage again
        run_dir / stage / "evaluation.json",
        {
            "stage": stage,
            **_training_facts(run_dir / stage),
            "form": form,
            "held_out": held_out,
            "fidelity": fidelity.fidelity([item for item, _ in scored]),
            "reward": reward,
            "examples": [{key: shown[key] for key in SHOWN} for _, shown in scored[:SHOWN_EXAMPLES]],
            "handoff_sha256": checkpoint.sha256_file(handoff) if handoff.is_file() else None,
        },
    )


def _selection(generator: Generator) -> Selection:
    """The held-out turns, the same for every stage: those whose prompt fits in RL's form."""
    config = generator.config
    limit = _prompt_limit(config)

    def fits(example: Example) -> bool:
        return len(_prompt(generator, example, EVALUATION_VERSION["rl"])) <= limit

    pool = read_jsonl(generator.run_dir / "data" / "eval.jsonl")
    selection = select_examples(pool, config.eval.examples, config.seed, fits)
    if not selection.examples:
        raise ContentError(
            f"no turn of the {selection.too_long} held-out trajectories has a prompt of at most {limit} tokens, the "
            "limit of evaluation in every stage; raise eval.prompt_tokens (0 takes data.rl_prompt_tokens)"
        )
    return selection


def _prompt_limit(config: Config) -> int:
    return config.eval.prompt_tokens or config.data.rl_prompt_tokens


def _predictions(generator: Generator, examples: list[Example], form: str) -> list[tuple[fidelity.Scored, dict]]:
    """Greedy predictions, scored and shown, in the order of `examples` on every rank."""
    tagged = form != UNTAGGED_VERSION
    mine = _dealt(examples)
    prompts = [_prompt(generator, example, form) for example in mine]
    answers = generator.answer(prompts, generator.config.eval.max_new_tokens, GREEDY)
    scored = []
    for example, ids in zip(mine, answers, strict=True):
        prediction = generator.renderer.parse(ids, tagged=tagged)
        valid = _answered(prediction) if tagged else None
        item = fidelity.Scored(prediction.text, example.observation, example.deterministic, example.domain, valid)
        shown = {"key": example.key, "action": example.action, "truth": example.observation}
        shown |= {"prediction": prediction.text, "tag_valid": valid, "ended": prediction.ended}
        scored.append((item, {**shown, "raw": generator.renderer.tokenizer.decode(ids)}))
    return _collected(scored, len(examples))


def write_predictions(path: Path, examples: Sequence[Example], shown: Sequence[Mapping[str, Any]], seed: int) -> None:
    """Greedy predictions as rows for `agentworld score`: what the model said, raw with its end of turn (base and CPT:
    `--form plain`), and what verifiers and guards need of the turn. `shown`: of each example, from `_predictions`."""
    rows = [
        {
            "id": example.trajectory.id,
            "domain": example.domain,
            "turn": example.index,
            "action": example.action,
            "prediction": found["raw"],
            "truth": example.observation,
            "deterministic": example.deterministic,
            "ended": found["ended"],
            "history": [[turn.action, turn.observation] for turn in example.history],
            "action_space": example.trajectory.system.action_space,
            "simulation_instruction": told(example, seed).system.simulation_instruction,
        }
        for example, found in zip(examples, shown, strict=True)
    ]
    with replacing(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), temporary, compression="zstd")


def _sampled_reward(generator: Generator, examples: list[Example]) -> dict:
    """The RL reward in RL's form: `reward_draws` samples a prompt at temperature 1, and greedy."""
    settings = generator.config
    mine = _dealt(examples)
    prompts = [_prompt(generator, example, EVALUATION_VERSION["rl"]) for example in mine]
    torch.manual_seed(settings.seed + 1000 * engine.rank())
    draws = settings.eval.reward_draws
    sampled = generator.answer([p for p in prompts for _ in range(draws)], settings.eval.max_new_tokens, 1.0)
    greedy = generator.answer(prompts, settings.eval.max_new_tokens, GREEDY)
    answers = [
        ids for number, ids in enumerate(greedy) for ids in (*sampled[number * draws : (number + 1) * draws], ids)
    ]
    outcomes = _outcomes(generator, [example for example in mine for _ in range(draws + 1)], answers)
    _require_judgements(settings.reward, outcomes)
    totals = [outcome.total for outcome in outcomes]  # None where a judge failed
    rows = [totals[first : first + draws + 1] for first in range(0, len(totals), draws + 1)]
    rows = _collected(rows, len(examples))
    summary = fidelity.reward_summary([row[:draws] for row in rows], [row[draws] for row in rows])
    given = reward_outside_rl(settings.reward)
    return {**summary, "rubric": given.rubric, "settings_sha256": run_directory.reward_sha256(given)}


def _outcomes(generator: Generator, examples: list[Example], answers: list[list[int]]) -> list[Outcome]:
    """The reward of each answer, and how it came about."""
    renderer = generator.renderer
    items = [
        Completion(
            renderer.parse(ids, tagged=True),
            example.observation,
            example.action,
            example.deterministic is True,
            example.domain,
            tuple(renderer.messages(_prompt(generator, example, EVALUATION_VERSION["rl"]))),
        )
        for example, ids in zip(examples, answers, strict=True)
    ]
    return Rewarder(generator).outcomes([example.key for example in examples], items)


def _require_judgements(settings: RewardSettings, outcomes: Sequence[Outcome]) -> None:
    """Stop where so many judgements failed, over all ranks, that the mean would be one of the rest, or of zeros where
    `on_failure=zero`; verdicts are kept in the cache."""
    failed, judged = map(engine.total, judgements(outcomes))
    if failed > settings.judge.failed_limit * judged:
        raise ContentError(
            f"the judge failed on {failed} of {judged} completions, more than reward.judge.failed_limit="
            f"{settings.judge.failed_limit:g}; the first reason stands above; resume=true asks again"
        )


def _prompt(generator: Generator, example: Example, form: str) -> list[int]:
    trajectory = told(example, generator.config.seed)
    system = system_prompt(trajectory, form, generator.config.data.prompt_set)
    return generator.renderer.prompt(system, trajectory.turns, example.index)


def told(example: Example, seed: int) -> Trajectory:
    """The trajectory of a held-out example with the simulation instruction that training rows of its kind have: its
    source's own, and in search the query; none drawn from the truth."""
    return instructed(example.trajectory, example.index, seed, 0.0)[0]


def _answered(prediction: Prediction) -> bool:
    return prediction.tag_valid and prediction.ended


def _dealt(items: Sequence) -> list:
    return list(items[engine.rank() :: engine.world_size()])


def _collected(mine: list, count: int) -> list:
    """Undo `_dealt`: the items of all ranks in their first order."""
    if engine.world_size() == 1:
        return mine
    parts: list[list] = [[] for _ in range(engine.world_size())]
    dist.all_gather_object(parts, mine)
    return [parts[i % len(parts)][i // len(parts)] for i in range(count)]


def _training_facts(directory: Path) -> dict:
    path = directory / "training.json"
    nothing = {"steps": 0, "seconds": 0.0, "tokens": 0, "heldout_loss": None}
    return json.loads(path.read_text()) if path.is_file() else nothing


def _training_observations(run_dir: Path) -> Iterator[str]:
    paths = [run_dir / "data" / f"{pool}.jsonl" for pool in ("cpt", "sft", "rl")]
    for path in paths:
        if path.stat().st_size == 0:  # a pool without a share of the data
            continue
        for trajectory in read_jsonl(path):
            yield from (turn.observation for turn in trajectory.turns)
