"""Loss and gradient norm do not depend on how the rows of a step fall into micro-batches and ranks (faults 13, 25)."""

import pytest
from ranks import on_ranks

COMMON = """
import torch
from accelerate.state import AcceleratorState, GradientState
from datasets import Dataset
from trl import GRPOConfig, SFTConfig
from agentworld.data.tokenizer import train_tokenizer
from agentworld.train import engine, kernels, model
from agentworld.train.config import ArchitectureSettings, EngineSettings, ModelSettings
from agentworld.train.gspo import GspoTrainer
from agentworld.train.trainers import PackedTrainer

settings, weights = EngineSettings(zero_stage=1, device="cpu"), ModelSettings(dtype="float32")
engine.start_rank(settings)
kernels.install()
weights.architecture = ArchitectureSettings(
    hidden_size=32, num_hidden_layers=2, full_attention_interval=2, num_experts=4, moe_intermediate_size=16,
    shared_expert_intermediate_size=16,
)
tokenizer = train_tokenizer(["echo apple\\n", "cat a.txt\\n"], 300)
draw = torch.Generator().manual_seed(4)


def tokens(count):
    return torch.randint(5, 250, (count,), generator=draw).tolist()


def arguments(rows, accumulation):
    AcceleratorState._reset_state()
    GradientState._reset_state()
    return {
        "output_dir": OUT, "per_device_train_batch_size": rows, "gradient_accumulation_steps": accumulation,
        "max_steps": 2, "learning_rate": 1e-2, "max_grad_norm": 1.0, "use_cpu": True, "bf16": False, "report_to": [],
        "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True, "gradient_checkpointing": False,
        "router_aux_loss_coef": 0.0, "logging_nan_inf_filter": False, "seed": 0,
        "deepspeed": engine.deepspeed_config(settings, weights),
    }


def logged(trainer):
    trainer.train()
    return [[entry["loss"], entry["grad_norm"]] for entry in trainer.state.log_history if "loss" in entry]


result = []
"""

PACKED = """
rows = []
for lengths, trained in LENGTHS:
    ids = tokens(sum(lengths))
    labels = [i if place % 20 >= 20 - trained else -100 for place, i in enumerate(ids)]
    rows.append({"input_ids": ids, "labels": labels, "seq_lengths": lengths})
for per_device, accumulation in CASES:
    given = arguments(per_device, accumulation)
    trainer = PackedTrainer(
        model=model.build(weights, tokenizer, seed=0),
        args=SFTConfig(**given, padding_free=True, packing=False, max_length=None,
                       dataset_kwargs={"skip_prepare_dataset": True}),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    # Of all rows and, beside it, of 7: of two ranks one has a row too few, and its neighbour's must not count twice.
    held_out = [trainer.held_out_loss(trainer.train_dataset.select(range(count))) for count in (8, 7)]
    result.append([held_out, *logged(trainer)])
"""

RL = """
PROMPTS = {"a#0": tokens(4), "b#0": tokens(9)}
ENDS = [tokenizer.eos_token_id]
ANSWERS = {tuple(PROMPTS[key]): [tokens(n) + (ENDS if ends else []) for n, ends in LENGTHS] for key in PROMPTS}


class Scripted(GspoTrainer):
    def _generate_single_turn(self, prompt_ids, *unused):
        first = self.accelerator.process_index * len(prompt_ids)
        return [ANSWERS[tuple(ids)][(first + place) % 4] for place, ids in enumerate(prompt_ids)], None


def reward(completion_ids, **columns):
    return [None if len(ids) == FAILED else float(ids[0] % 7) for ids in completion_ids]


for per_device, accumulation in CASES:
    trainer = Scripted(
        model=model.build(weights, tokenizer, seed=0),
        reward_funcs=[reward],
        args=GRPOConfig(
            **arguments(per_device, accumulation), steps_per_generation=accumulation, num_generations=4,
            max_completion_length=40, importance_sampling_level="sequence", loss_type="grpo", epsilon=3e-4,
            epsilon_high=4e-4, beta=0.0, mask_truncated_completions=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": key} for key in PROMPTS]),
        processing_class=tokenizer,
        prompt_ids=PROMPTS,
    )
    result.append(logged(trainer))
"""

ONE_RANK, TWO_RANKS = [(1, 8), (2, 4), (8, 1)], [(1, 4), (4, 1)]
CPT_ROWS = [([30, 11], 20), ([7], 20), ([25], 9), ([40, 3], 20), ([12], 20), ([33], 0), ([5, 5, 5], 15), ([60], 20)]
SFT_ROWS = [([40], 3), ([22, 30], 2), ([90], 1), ([25], 5), ([41], 4), ([27], 2), ([70], 6), ([33], 1)]


FAILED, LENGTHS = 21, [(5, True), (31, True), (12, False), (20, True)]  # of a prompt's four answers the last fails


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, list]:
    """For each stage and each of the five splits: [loss, gradient norm] of two steps; before them, for CPT and SFT, the
    held-out loss of all rows and of 7."""
    out = tmp_path_factory.mktemp("split")
    splits: dict[str, list] = {"cpt": [], "sft": [], "rl": []}
    for ranks, cases in ((1, ONE_RANK), (2, TWO_RANKS)):
        program = f"OUT, CASES = {str(out / 'trainer')!r}, {cases!r}\n" + COMMON
        for rows in (CPT_ROWS, SFT_ROWS):
            program += f"LENGTHS = {rows!r}\n" + PACKED
        program += f"LENGTHS, FAILED = {LENGTHS!r}, {FAILED}\n" + RL
        runs = on_ranks(ranks, program, out)[0]
        for number, stage in enumerate(splits):
            splits[stage] += runs[number * len(cases) : (number + 1) * len(cases)]
    return splits


@pytest.mark.parametrize("stage", ["cpt", "sft", "rl"])
def test_five_splits_take_the_same_two_steps(found, stage) -> None:
    first, *others = found[stage]
    assert len(others) == 4 and len(first) == (2 if stage == "rl" else 3)
    assert all(norm > 0.01 for _, norm in first[-2:])
    assert first[-1] != pytest.approx(first[-2], abs=1e-3), "the second step follows an update"
    for other in others:
        for one, two in zip(first, other, strict=True):
            assert two == pytest.approx(one, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize("stage", ["cpt", "sft"])
def test_the_loss_of_a_step_is_the_mean_over_its_labels(found, stage) -> None:
    """The held-out loss of the same rows before training, which tests/test_trainers.py holds against a loop."""
    for split in found[stage]:
        held_out, first_step = split[0][0], split[1][0]
        assert first_step == pytest.approx(held_out, abs=1e-5)
