"""DeepSpeed changes nothing: ZeRO {1, 2, 3}, expert parallelism {1, 2}, accumulation, activation checkpointing and
padding against plain transformers in one process (faults 3, 14, 16, 17)."""

from pathlib import Path
from typing import Any

import pytest
from engine_cases import BALANCE, FRESH, STEPS, padded_batch, trajectory
from ranks import on_ranks

PROGRAM = "import sys\nsys.path.insert(0, {folder!r})\nimport engine_cases\nresult = engine_cases.{name}()\n"


def on_two_ranks(name: str, tmp_path: Path) -> dict[str, Any]:
    return on_ranks(2, PROGRAM.format(folder=str(Path(__file__).parent), name=name), tmp_path, timeout=900)[0]


@pytest.fixture(scope="module")
def steps(tmp_path_factory) -> dict[str, dict[str, Any]]:
    return on_two_ranks("steps", tmp_path_factory.mktemp("steps"))


def of_kind(steps: dict[str, dict[str, Any]], *kinds: str) -> dict[str, dict[str, Any]]:
    chosen = {name: found for name, found in steps.items() if name.startswith(kinds)}
    assert chosen
    return chosen


def test_the_matrix_trains_as_one_process_does(tmp_path) -> None:
    """Losses and gradient norms of every step. The balance loss is taken for each micro-batch of a rank, and so in the
    reference; on repeated data its choices may hang on the last digit, so those steps are compared without it."""
    found = on_two_ranks("matrix", tmp_path)
    assert len(found) == 25
    references = {(0.0, 1): trajectory(1, 0.0)}
    references |= {(BALANCE, accumulation): trajectory(2 * accumulation, BALANCE) for accumulation in (1, 2)}
    references[0.0, 2] = references[0.0, 1]
    plain = references[0.0, 1][0]
    assert len(plain) == STEPS and max(plain[FRESH:]) < min(plain[:FRESH]) - 0.1, "repeated data show what was learnt"
    for case, ran in found.items():
        accumulation, balance = int(case.split("-")[2]), float(case.split("-")[3])
        losses, norms = references[balance, accumulation]
        assert ran["losses"] == pytest.approx(losses, abs=1e-5), case
        assert ran["norms"] == pytest.approx(norms, rel=1e-3), case


def test_a_step_equals_plain_transformers(steps) -> None:
    """Logits, balance loss and every gradient (fault 14: not ep_size times too large), with padding in the batch, which
    counts nowhere (fault 3): the reference has none."""
    cases = of_kind(steps, "padded")
    assert len(cases) == 13
    for case, found in cases.items():
        assert found["logits"] < 1e-5 and found["balance"] < 1e-5, (case, found)
        assert found["unbalanced"] > 2.05, "a balanced router would hide a wrong balance loss"
        assert found["worst"][1] < 1e-3, (case, found["worst"])


def test_the_router_load_is_the_naive_count(steps) -> None:
    """On all ranks together, not doubled under checkpointing, without padding and without the evaluation."""
    tokens = int(padded_batch()["attention_mask"].sum())
    for case, found in of_kind(steps, "padded").items():
        assert found["counted"] == found["counts"], case
        assert [sum(layer) for layer in found["counted"]] == [2 * tokens] * len(found["counted"])


def test_ties_are_routed_alike_when_they_are_computed_again(steps) -> None:
    """Fault 17: with every expert at the same score, gradients with and without activation checkpointing are equal."""
    for stage, degree in ((1, 1), (3, 2)):
        plain, again = (steps[f"ties-{stage}-{degree}-{recomputed}"] for recomputed in ("none", "layers"))
        assert plain["gradient"] > 1 and plain["gradient"] == pytest.approx(again["gradient"], rel=1e-6)
        assert plain["counted"] == again["counted"]


def test_ranks_whose_tokens_need_other_experts_train(steps) -> None:
    """Fault 16: rank 0 holds experts 0 to 3. Its tokens all go to rank 1 and the other way round; then all tokens go to
    rank 0, and the experts of rank 1 get nothing."""
    for case, found in of_kind(steps, "crossed", "one-sided").items():
        assert found["worst"][1] < 1e-3, (case, found["worst"])
        for layer in found["counted"]:
            used = [expert for expert, count in enumerate(layer) if count]
            assert used == ([2, 3, 6, 7] if case.startswith("crossed") else [2, 3]), case


def test_a_model_without_matching_blocks_is_refused(steps) -> None:
    text = steps["unmatched"]["refusal"]
    assert "engine.expert_parallel=2" in text and "0 of 2 layers" in text


UNEVEN = """
import sys
sys.path.insert(0, {folder!r})
from pathlib import Path
from accelerate.state import AcceleratorState, GradientState
from test_gspo import made_trainer
from agentworld.train import engine, kernels
from agentworld.train.config import EngineSettings, ModelSettings
from agentworld.train.gspo import GspoTrainer

class Uneven(GspoTrainer):
    def __init__(self, *args, model, **kwargs):
        def generate(*given, **options):
            length = 2 if engine.rank() == 0 else 24
            out = type(model).generate(model, *given, **options, min_new_tokens=length, max_new_tokens=length)
            prompts = given[0] if given else options["input_ids"]
            generated.append(out.shape[1] - prompts.shape[1])
            return out
        model.generate = generate
        super().__init__(*args, model=model, **kwargs)

kernels.install()
result = {{}}
for stage in (1, 3):
    generated = []
    settings = EngineSettings(zero_stage=stage, expert_parallel=2, device="cpu")
    engine.start_rank(settings)
    AcceleratorState._reset_state()
    GradientState._reset_state()
    trainer = made_trainer(
        Path({out!r}), trainer_class=Uneven, per_device_train_batch_size=2, steps_per_generation=2, max_steps=2,
        deepspeed=engine.deepspeed_config(settings, ModelSettings(dtype="float32")), max_completion_length=24,
    )
    trainer.rollout_batch_size = stage // 3  # one call a rollout, and one for each prompt
    trainer.train()
    result[stage] = {{"lengths": generated, "steps": trainer.state.global_step}}
"""


def test_ranks_that_generate_different_lengths_do_not_wait_for_ever(tmp_path) -> None:
    """In AutoEP's and ZeRO-3's collectives all ranks take part, or none: `GspoTrainer` generates with synced_gpus."""
    program = UNEVEN.format(folder=str(Path(__file__).parent), out=str(tmp_path / "out"))
    first, second = on_ranks(2, program, tmp_path, timeout=600)
    for stage in ("1", "3"):
        assert set(first[stage]["lengths"]) == {2} and set(second[stage]["lengths"]) == {24}
        assert len(first[stage]["lengths"]) == len(second[stage]["lengths"]) == {"1": 1, "3": 4}[stage], "equal calls"
        assert first[stage]["steps"] == second[stage]["steps"] == 2
