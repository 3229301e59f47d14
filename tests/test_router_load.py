"""The router's load: what a step logs, what a window warns about, and what is left out of the counts. On two ranks:
tests/test_engine_matrix.py."""

import json
from types import SimpleNamespace

import pytest
import torch
from engine_cases import build, naive_losses, padded_batch

from agentworld.train import router_load
from agentworld.train.router_load import HOT, WINDOW_STEPS, RouterLoad, RouterLoadCallback, Window, summary

CPU = torch.device("cpu")


def test_padding_changes_neither_the_balance_loss_nor_the_counts() -> None:
    """Fault 3: against rows without padding, counted one token at a time."""
    plain, batch = build().train(), padded_batch()
    load = RouterLoad(plain, CPU)
    padded = plain(**batch, use_cache=False, output_router_logits=True)
    counted = load.take()
    with torch.no_grad():
        _, balance, counts = naive_losses(plain.eval(), batch)
    assert counted.tolist() == counts.tolist()
    assert padded.aux_loss.item() == pytest.approx(balance.item(), abs=1e-5)
    everything = plain(batch["input_ids"], use_cache=False, output_router_logits=True)
    assert abs(everything.aux_loss.item() - balance.item()) > 1e-3, "padding would be seen"


def test_only_forwards_that_train_are_counted() -> None:
    plain, batch = build().train(), padded_batch()
    load = RouterLoad(plain, CPU)
    with torch.no_grad():
        plain(**batch, use_cache=False)
    plain.eval()(**batch, use_cache=False)
    assert load.take().sum() == 0
    plain.train()(**batch, use_cache=False)
    assert load.take().sum() == 2 * 2 * batch["attention_mask"].sum()
    assert load.take().sum() == 0, "taken counts start again"
    load.remove()
    plain(**batch, use_cache=False)
    assert load.take().sum() == 0


def test_a_mask_that_is_no_padding_mask_is_refused() -> None:
    plain = build().train()
    RouterLoad(plain, CPU)
    with pytest.raises(ValueError, match="padding would be counted"):
        plain(torch.ones(1, 4, dtype=torch.long), attention_mask=torch.ones(1, 1, 4, 4), use_cache=False)


def test_a_step_logs_its_fullest_and_emptiest_expert() -> None:
    counts = torch.tensor([[4, 4, 4, 4], [10, 6, 0, 0]])
    assert summary(counts) == {
        "router/load_max_over_mean": 2.5,
        "router/load_min_over_mean": 0.0,
        "router/dead_experts": 2,
    }
    assert summary(torch.zeros(2, 4, dtype=torch.int64)) == {}


def test_dead_and_hot_experts_are_named_once_with_their_layer_and_window() -> None:
    window = Window(top_k=8)
    counts = torch.full((2, 256), 200)
    counts[1, 7], counts[1, 9] = 0, int(200 * HOT * 1.1)
    for _ in range(3):
        window.add(counts)
    warnings, row = window.close(step=30)
    assert warnings == [
        "router: layer 1, expert 7 got no token in the last 3 steps",
        f"router: layer 1, expert 9 got more than {HOT} times an even share in the last 3 steps",
    ]
    assert row == {"step": 30, "steps": 3, "counts": (3 * counts).tolist()}
    counts[0, 3] = 0
    window.add(counts)
    assert window.close(step=31)[0] == ["router: layer 0, expert 3 got no token in the last 1 steps"]


def test_few_tokens_warn_of_nothing() -> None:
    window = Window(top_k=2)
    window.add(torch.tensor([[0, 99, 99, 99, 99, 99, 99, 99]]))
    assert window.close(step=1)[0] == []


def test_where_the_even_share_is_large_an_expert_of_nearly_all_tokens_is_hot() -> None:
    window = Window(top_k=2)
    window.add(torch.tensor([[950, 150, 150, 150, 150, 150, 150, 150]]))  # 1000 tokens, 2 choices each
    (warning,) = window.close(step=1)[0]
    assert warning == "router: layer 0, expert 0 got more than 3.6 times an even share in the last 1 steps"
    window.add(torch.tensor([[850, 150, 150, 150, 175, 175, 175, 175]]))
    assert window.close(step=2)[0] == []


class Steps:
    """The callback as the trainer drives it, with given counts."""

    def __init__(self, tmp_path, monkeypatch, counts: torch.Tensor) -> None:
        fake = SimpleNamespace(top_k=2, take=lambda: counts, remove=lambda: None)
        monkeypatch.setattr(router_load, "RouterLoad", lambda model, device: fake)
        self.callback = RouterLoadCallback(tmp_path, expert_parallel=1)
        self.path = tmp_path / "router_load.jsonl"

    def train(self, steps: range, to_the_end: bool = True) -> list[dict]:
        state = SimpleNamespace(is_world_process_zero=True, global_step=steps.start - 1)
        self.callback.on_train_begin(SimpleNamespace(device=CPU), state, None, model=None)
        logged = []
        for state.global_step in steps:
            logs = {"loss": 1.0}
            self.callback.on_step_end(None, state, None)
            self.callback.on_log(None, state, None, logs=logs)
            logged.append(logs)
        end = {"train_runtime": 1.0}
        self.callback.on_log(None, state, None, logs=end)
        assert end == {"train_runtime": 1.0}
        if to_the_end:
            self.callback.on_train_end(None, state, None)
        return logged

    def rows(self) -> list[dict]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


def test_every_step_is_logged_and_every_window_written(tmp_path, monkeypatch, capsys) -> None:
    steps = Steps(tmp_path, monkeypatch, torch.tensor([[30, 10, 0, 0]]))
    logged = steps.train(range(1, 2 * WINDOW_STEPS + 11))
    assert all(logs["router/dead_experts"] == 2 and logs["router/load_max_over_mean"] == 3 for logs in logged)
    assert [(row["step"], row["steps"]) for row in steps.rows()] == [
        (WINDOW_STEPS, WINDOW_STEPS),
        (2 * WINDOW_STEPS, WINDOW_STEPS),
        (2 * WINDOW_STEPS + 10, 10),
    ]
    assert steps.rows()[2]["counts"] == [[300, 100, 0, 0]]
    printed = capsys.readouterr().err
    assert printed.count("layer 0, expert 2, 3 got no token in the last 50 steps") == 1


def test_a_resumed_stage_cuts_what_came_after_its_checkpoint(tmp_path, monkeypatch) -> None:
    steps = Steps(tmp_path, monkeypatch, torch.tensor([[1, 1, 1, 1]]))
    steps.train(range(1, 2 * WINDOW_STEPS + 1), to_the_end=False)
    with open(steps.path, "a") as file:
        file.write('{"step": 12')  # killed while writing
    steps.train(range(WINDOW_STEPS + 21, WINDOW_STEPS + 31))
    assert [(row["step"], row["steps"]) for row in steps.rows()] == [(50, 50), (80, 10)]
