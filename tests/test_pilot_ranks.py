"""The pilot and RL on two ranks: RL trains on what the pilot has left, in the order that the weights draw."""

import json
from pathlib import Path
from statistics import fmean, stdev

import pyarrow.parquet as pq
import pytest
from small_run import completions_of, metrics, reopened

from agentworld.rewards import completions
from agentworld.train.launch import launch

PROGRAM = """
import sys
import torch
from agentworld.train import worker
worker.quiet_libraries()
from agentworld.data.render import Renderer
from agentworld.train.generation import Generator
from agentworld.train.gspo import GspoTrainer
def drawn(renderer, count):
    words = ("apple", "river", "quartz", "salt")
    texts = [" ".join(words[i] for i in torch.randint(4, (2,)).tolist()) for _ in range(count)]
    tags = [f"<predicted_observation>{text}</predicted_observation>" for text in texts]
    return [[*renderer.encode(text), renderer.end_id] for text in tags]
def in_the_pilot(self, prompts, *_):
    answers = drawn(self.renderer, len(prompts))
    return [ids[:-1] if len(prompt) % 2 else ids for prompt, ids in zip(prompts, answers)]
Generator._generate = in_the_pilot
GspoTrainer._generate_single_turn = lambda self, ids, *_: (drawn(Renderer(self.processing_class), len(ids)), None)
sys.exit(worker.main(sys.argv[1:]))
"""


def test_rl_trains_on_what_the_pilot_leaves_in_the_order_that_the_weights_draw(chain, tmp_path: Path) -> None:
    """Two ranks; prompts of an odd number of tokens are answered without an end, so that their groups are hopeless."""
    settings = {"pilot_completions": 2, "domain_weights": {"terminal": 1.0}, "max_steps": 6}
    run = reopened(chain, tmp_path, "pilot", "rl", rl=settings, eval={"batch_size": 3})
    environment = {"DS_ACCELERATOR": "cpu"}
    for step in ("pilot", "rl"):
        assert launch(["-c", PROGRAM, str(run), step], 2, run / "rl", environment).code == 0, step
    prompts = pq.read_table(run / "data" / "prompts" / "rl.parquet").to_pylist()
    odd = {row["prompt"] for row in prompts if len(row["prompt_ids"]) % 2}
    report = json.loads((run / "rl" / "pilot" / "report.json").read_text())
    assert set(report["dropped"]["hopeless"]) == odd and 0 < len(odd) < len(prompts)
    assert report["total"]["given"] == len(prompts)
    sampled = completions_of(run)
    assert len(sampled) == 3 * 8 and not {row["prompt"] for row in sampled} & odd
    order = [row["prompt"] for row in sampled[::4]]
    assert len(set(order)) == 6, "three rollouts of two prompts, none twice before all others"
    logged = [row for row in metrics(run / "rl") if "domain/terminal/reward" in row]
    assert [row["step"] for row in logged] == [1, 3, 5], "the first steps of the rollouts"
    for row in logged:
        mine = [one for one in sampled if one["step"] == row["step"] - 1]
        for part in ("reward", "rubric", "rule"):
            values = [one[part] for one in mine if one[part] is not None]
            assert row[f"domain/terminal/{part}"] == pytest.approx(fmean(values), abs=1e-4), part
        for name in completions.DIMENSIONS:
            assert row[f"domain/terminal/{name}"] == pytest.approx(fmean(one["scores"][name] for one in mine), abs=1e-4)
        assert row["reward_std"] == pytest.approx(stdev(one["reward"] for one in mine), abs=1e-3)
        groups = [[one["reward"] for one in mine[first : first + 4]] for first in (0, 4)]
        assert row["frac_reward_zero_std"] == sum(len(set(group)) == 1 for group in groups) / 2
        lengths = [one["sampled_tokens"] for one in mine]
        assert row["completions/mean_length"] == pytest.approx(fmean(lengths), abs=1e-4)
        assert (row["completions/clipped_ratio"], row["completions/kept_ratio"]) == (0.0, 1.0)
    facts = json.loads((run / "rl" / "prompts.json").read_text())
    kept = len(prompts) - len(odd)
    assert facts == {"prompts": kept, "domains": {"terminal": {"prompts": kept, "drawn": 6, "share": 1.0}}}
