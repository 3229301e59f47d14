"""DeepSpeed changes nothing: ZeRO {1, 2, 3}, expert parallelism {1, 2}, accumulation, activation checkpointing and
padding against plain transformers in one process (faults 3, 14, 16, 17)."""

from pathlib import Path
from typing import Any

import pytest
from engine_cases import BALANCE, STEPS, batches, padded_batch, trajectory
from ranks import on_ranks

PROGRAM = "import sys\nsys.path.insert(0, {folder!r})\nimport engine_cases\nresult = engine_cases.{name}()\n"
REPEATED = len(batches())  # steps from here on repeat data


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
    """The balance loss is taken a micro-batch and a rank, so the reference takes it over the same parts. Where it is on,
    a choice of the router that hangs on the last digit may tip in the steps that repeat data: those get more room."""
    found = on_two_ranks("matrix", tmp_path)
    assert len(found) == 24
    references = {(0.0, 1): trajectory(1, 0.0), (0.0, 2): trajectory(1, 0.0)}
    references |= {(BALANCE, accumulation): trajectory(2 * accumulation, BALANCE) for accumulation in (1, 2)}
    for case, ran in found.items():
        accumulation, balance = int(case.split("-")[2]), float(case.split("-")[3])
        losses, norms = references[balance, accumulation]
        assert len(ran["losses"]) == STEPS
        assert max(losses[REPEATED:]) < min(losses[:REPEATED]) - 0.1, "repeated data must show what was learnt"
        certain = STEPS if balance == 0 else REPEATED
        assert ran["losses"][:certain] == pytest.approx(losses[:certain], abs=1e-5), case
        assert ran["norms"][:certain] == pytest.approx(norms[:certain], rel=1e-4), case
        assert ran["losses"] == pytest.approx(losses, abs=1e-2), case


def test_a_step_equals_plain_transformers(steps) -> None:
    """Logits, balance loss and every gradient (fault 14: not ep_size times too large), with padding in the batch, which
    counts nowhere (fault 3): the reference has none."""
    cases = of_kind(steps, "padded")
    assert len(cases) == 12
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
        plain, again = (steps[f"ties-{stage}-{degree}-{checkpointing}"] for checkpointing in (False, True))
        assert plain["gradient"] > 1 and plain["gradient"] == pytest.approx(again["gradient"], rel=1e-6)
        assert plain["counted"] == again["counted"]


def test_ranks_whose_tokens_need_other_experts_train(steps) -> None:
    """Fault 16: rank 0 holds experts 0 to 3. Its tokens all go to rank 1 and the other way round; then all of both go to
    rank 0, and the experts of rank 1 get nothing."""
    for case, found in of_kind(steps, "crossed", "one-sided").items():
        assert found["worst"][1] < 1e-3, (case, found["worst"])
        for layer in found["counted"]:
            used = [expert for expert, count in enumerate(layer) if count]
            assert used == ([2, 3, 6, 7] if case.startswith("crossed") else [2, 3]), case


def test_a_model_without_matching_blocks_is_refused(steps) -> None:
    text = steps["unmatched"]["refusal"]
    assert "engine.expert_parallel=2" in text and "0 of 2 layers" in text
