"""`model.recompute`: the same losses and gradients whatever is computed again, and only what was asked for."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from transformers import DynamicCache, Qwen3_5MoeForCausalLM
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeSparseMoeBlock

from agentworld.data.errors import RequestError
from agentworld.data.tokenizer import train_tokenizer
from agentworld.train import engine, kernels, model
from agentworld.train.compose import compose
from agentworld.train.config import ArchitectureSettings, Config, ModelSettings
from agentworld.train.recompute import keep_mixers, mixers, recompute_mixers
from bench import cpt_slice
from bench.random_policy import random_trainer

LAYERS = 4  # three of Gated DeltaNet, one of attention
LENGTHS = (7, 70, 20)  # documents of a packed row, one longer than a chunk of the delta rule
TOKENIZER = train_tokenizer(["echo apple\n", "cat a.txt\n"], 300)
SIZES = ArchitectureSettings(
    hidden_size=32, num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16,
)  # fmt: skip


@pytest.fixture
def policy() -> Qwen3_5MoeForCausalLM:
    kernels.install()
    return model.build(ModelSettings(dtype="float32", architecture=SIZES), TOKENIZER, seed=0).train()


def packed_row() -> dict[str, torch.Tensor | int]:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 250, (1, sum(LENGTHS)), generator=draw)
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32)
    return {
        "input_ids": ids,
        "labels": ids,
        "position_ids": torch.cat([torch.arange(length) for length in LENGTHS])[None],
        "seq_idx": torch.repeat_interleave(torch.tensor(LENGTHS))[None].to(torch.int32),
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": max(LENGTHS),
        "max_length_k": max(LENGTHS),
    }


def counted(policy: Qwen3_5MoeForCausalLM) -> Counter[str]:
    """How often the first projection of a mixer, and a MoE block, begin to be computed: over all layers."""
    runs: Counter[str] = Counter()

    def count(name: str):
        def note(*unused) -> None:
            runs[name] += 1

        return note

    for mixer in mixers(policy):
        first = mixer.in_proj_qkv if hasattr(mixer, "in_proj_qkv") else mixer.q_proj
        first.register_forward_pre_hook(count("mixer"))
    for module in policy.modules():
        if isinstance(module, Qwen3_5MoeSparseMoeBlock):
            module.register_forward_pre_hook(count("moe"))
    return runs


def step(policy: Qwen3_5MoeForCausalLM, **inputs) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients."""
    policy.zero_grad()
    loss = policy(**inputs).loss
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def assert_equal(found: tuple[float, dict], expected: tuple[float, dict]) -> None:
    assert found[0] == pytest.approx(expected[0], abs=1e-6)
    assert found[1].keys() == expected[1].keys() and len(found[1]) > 10 * LAYERS
    for name, gradient in expected[1].items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-6, atol=1e-6)


def test_mixers_are_computed_twice_and_nothing_else_is(policy) -> None:
    row, runs = packed_row() | {"use_cache": False}, counted(policy)
    names, fields = list(policy.state_dict()), policy.config.to_dict()
    expected = step(policy, **row)
    assert runs == {"mixer": LAYERS, "moe": LAYERS}
    runs.clear()
    recompute_mixers(policy)
    assert_equal(step(policy, **row), expected)
    assert runs == {"mixer": 2 * LAYERS, "moe": LAYERS}
    assert (list(policy.state_dict()), policy.config.to_dict()) == (names, fields), "an export knows nothing of it"
    assert not policy.is_activation_checkpointing
    runs.clear()
    policy.eval()
    assert_equal(step(policy, **row), expected)
    assert runs == {"mixer": LAYERS, "moe": LAYERS}, "only where the model trains"
    runs.clear()
    keep_mixers(policy.train())
    policy.activation_checkpointing_enable({"use_reentrant": False})
    assert_equal(step(policy, **row), expected)
    assert runs == {"mixer": 2 * LAYERS, "moe": 2 * LAYERS}, "the counter sees what whole layers compute again"


def test_documents_stay_apart_where_they_are_computed_again(policy) -> None:
    """The gradient of the last document alone is that of its part of the row."""
    recompute_mixers(policy)
    row, first = packed_row(), sum(LENGTHS[:-1])
    row["labels"] = row["labels"].clone()
    row["labels"][:, : first + 1] = -100
    alone = {"input_ids": row["input_ids"][:, first:], "labels": row["labels"][:, first:]}
    assert_equal(step(policy, **row, use_cache=False), step(policy, **alone, use_cache=False))


def test_a_cache_is_written_once(policy) -> None:
    """Sampling in training mode, as in a rollout; and a forward pass that both trains and fills a cache."""
    prompt = packed_row()["input_ids"][:, :9]
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    expected = policy.generate(prompt, **options, use_cache=False)
    runs = counted(policy)
    recompute_mixers(policy)
    assert policy.generate(prompt, **options).tolist() == expected.tolist()
    assert runs == {"mixer": 8 * LAYERS, "moe": 8 * LAYERS}
    cached = step(policy, input_ids=prompt, labels=prompt, cache=(cache := DynamicCache(config=policy.config)))
    assert cache.get_seq_length() == prompt.shape[1]
    assert_equal(cached, step(policy, input_ids=prompt, labels=prompt, use_cache=False))


def trained(config: Config, name: str, folder: Path) -> tuple[dict, dict[str, torch.Tensor], Counter[str]]:
    """One step of a stage's own trainer: what it logs, the weights after it, and what was computed how often in it."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    torch.manual_seed(0)
    if name == "rl":
        trainer = random_trainer(config, folder, {"prompts": 2, "longest_prompt": 24})
    else:
        rows = [{key: packed_row()[key][0].tolist() for key in ("input_ids", "labels")} | {"seq_lengths": LENGTHS}]
        policy = model.build(config.model, TOKENIZER, seed=0)
        trainer = cpt_slice.packed_trainer(config, folder, policy, rows)
    runs = counted(trainer.model)
    trainer.train()
    whole_layers = config.model.recompute == "layers"
    assert trainer.args.gradient_checkpointing is trainer.model.is_activation_checkpointing is whole_layers
    logged = {key: trainer.state.log_history[0][key] for key in ("loss", "grad_norm")}
    return logged, {key: value.detach().clone() for key, value in trainer.model.named_parameters()}, runs


@pytest.mark.parametrize("name,choices", [("cpt", ("mixers", "layers")), ("rl", ("mixers",))])
def test_the_trainer_of_a_stage_recomputes_what_its_recipe_says(name, choices, tmp_path) -> None:
    """The same step of the same samples. In RL the rollout has no backward pass."""
    kernels.install()
    config = compose(["recipe=smoke"])
    engine.start_rank(config.engine)
    step = {"max_steps": 1, "warmup_steps": 0}
    rollout = {"prompts_per_rollout": 2, "num_generations": 4, "mini_batches": 1, "completions_per_device": 8}
    config.cpt = replace(config.cpt, **step, rows_per_device=1)
    config.rl = replace(config.rl, **step, **rollout, max_completion_tokens=8)
    config.model = replace(config.model, architecture=SIZES)
    found = {}
    for choice in ("none", *choices):
        config.model = replace(config.model, recompute=choice)
        found[choice] = trained(config, name, tmp_path / choice)
    logged, weights, runs = found["none"]
    assert logged["grad_norm"] > 0.01 and runs["mixer"] == runs["moe"] >= LAYERS
    for choice in choices:
        assert found[choice][0] == pytest.approx(logged, abs=1e-6)
        more = LAYERS if choice == "layers" else 0
        assert found[choice][2] == {"mixer": runs["mixer"] + LAYERS, "moe": runs["moe"] + more}
        for key, weight in weights.items():
            torch.testing.assert_close(found[choice][1][key], weight, rtol=1e-6, atol=1e-6)


def test_the_old_key_names_the_new_one() -> None:
    with pytest.raises(RequestError, match=r"model\.gradient_checkpointing is no key here: it is model\.recompute"):
        compose(["recipe=smoke", "model.gradient_checkpointing=true"])
    with pytest.raises(RequestError, match=r"model\.recompute.*none.*mixers.*layers"):
        compose(["recipe=smoke", "model.recompute=true"])
