"""Random weights: the same in memory and streamed to shards, and what the class itself would draw."""

import dataclasses

import pytest
import torch
from transformers import Qwen3_5MoeForCausalLM

from agentworld.train import base, export, model
from agentworld.train.config import ArchitectureSettings, ModelSettings

SIZES = ArchitectureSettings(hidden_size=64, moe_intermediate_size=32, shared_expert_intermediate_size=32)


class Vocabulary:
    pad_token_id, eos_token_id = 0, 1

    def __len__(self) -> int:
        return 256


def shapes_of(settings: ModelSettings) -> Qwen3_5MoeForCausalLM:
    with torch.device("meta"):
        return Qwen3_5MoeForCausalLM(model.random_config(settings, Vocabulary())).to(model.DTYPES[settings.dtype])


@pytest.mark.parametrize("dtype,tied", [("float32", True), ("bfloat16", False)])
def test_a_streamed_base_is_the_model_that_build_makes(tmp_path, dtype, tied) -> None:
    settings = ModelSettings(dtype=dtype, architecture=dataclasses.replace(SIZES, tie_word_embeddings=tied))
    built = dict(model.build(settings, Vocabulary(), seed=3).named_parameters())
    shapes = shapes_of(settings)
    entries = list(base.random_entries(shapes, 3))
    assert [entry.name for entry in entries] == list(built) and ("lm_head.weight" in built) != tied
    torch.manual_seed(99)
    export.write(entries, shapes.config, tmp_path, "text", shard_bytes=60_000)
    loaded = dict(model.load(tmp_path, dtype).named_parameters())
    assert len(list(tmp_path.glob("*.safetensors"))) > 8
    assert [name for name, tensor in loaded.items() if not torch.equal(tensor, built[name])] == []
    last = entries[-1]
    assert torch.equal(last.fetch(0), built[last.name]), "the values of a module do not depend on the ones before"
    other = dict(model.build(settings, Vocabulary(), seed=4).named_parameters())
    same = [name for name, tensor in other.items() if torch.equal(tensor, built[name])]
    assert all("norm" in name for name in same), "all that is drawn depends on the seed"


def test_random_weights_have_the_distribution_of_the_class() -> None:
    settings = ModelSettings(dtype="float32", architecture=dataclasses.replace(SIZES, initializer_range=0.05))
    ours = model.build(settings, Vocabulary(), seed=0)
    torch.manual_seed(0)
    theirs = dict(Qwen3_5MoeForCausalLM(ours.config).named_parameters())
    drawn = 0
    for name, tensor in ours.named_parameters():
        if name.endswith("dt_bias"):  # spread_time_steps
            continue
        count, spread = tensor.numel(), theirs[name].std().item() if tensor.numel() > 1 else 0.0
        if spread == 0:
            assert torch.equal(tensor, theirs[name]), name
        elif count >= 1000:
            drawn += 1
            assert tensor.std().item() == pytest.approx(spread, rel=5 / count**0.5), name
            assert abs(tensor.mean().item()) < 6 * spread / count**0.5, name
        if name.endswith("A_log"):
            assert (tensor.exp() > 0).all() and (tensor.exp() <= 16).all()
    assert drawn > 20
    values = [tensor.flatten()[:8] for name, tensor in ours.named_parameters() if tensor.std() > 0 and tensor.ndim > 1]
    assert len({tuple(value.tolist()) for value in values}) == len(values), "no two modules draw the same numbers"
