"""The released multimodal layout: loaded straight into ZeRO-3 partitions, trained, and written back whole."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from ranks import on_ranks
from safetensors.torch import load_file, save_file
from test_export import ENGINE
from test_model import SIZES, Vocabulary
from transformers import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

from agentworld.train import checkpoint, export, model, release
from agentworld.train.config import ModelSettings

VISION = {
    "model_type": "qwen3_5_moe_vision", "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2,
    "patch_size": 4, "out_hidden_size": 64, "num_position_embeddings": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> dict[str, Path]:
    """A released checkpoint with experts stored `fused` (and MTP), and `per-expert` as transformers saves them; a text
    model with tied embeddings."""
    root = tmp_path_factory.mktemp("bases")
    text = model.random_config(ModelSettings(dtype="float32", architecture=SIZES), Vocabulary())
    config = Qwen3_5MoeConfig(text_config=text.to_dict(), vision_config=VISION, image_token_id=250)
    torch.manual_seed(5)
    whole = Qwen3_5MoeForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in whole.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.08)
    whole.save_pretrained(root / "per-expert")
    assert any(".experts.3.down_proj" in name for name in tensors_of(root / "per-expert"))
    fused = root / "fused"
    fused.mkdir()
    mtp = {"mtp.fc.weight": torch.randn(64, 128), "mtp.norm.weight": torch.randn(64).to(torch.bfloat16)}
    save_file(
        {name: tensor.contiguous() for name, tensor in whole.state_dict().items()} | mtp, fused / "model.safetensors"
    )
    stored = json.loads((root / "per-expert" / "config.json").read_text())
    stored["text_config"]["mtp_num_hidden_layers"] = 1
    stored["architectures"] = ["Qwen3_5MoeForConditionalGeneration"]
    (fused / "config.json").write_text(json.dumps(stored))
    (fused / "preprocessor_config.json").write_text('{"size": 1}')
    tied = dataclasses.replace(SIZES, tie_word_embeddings=True, initializer_range=0.08)
    ours = model.build(ModelSettings(dtype="float32", architecture=tied), Vocabulary(), seed=1)
    (root / "text").mkdir()
    export.write_safetensors(ours, ours.config, root / "text", shard_bytes=60_000)
    return {"fused": fused, "per-expert": root / "per-expert", "text": root / "text"}


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in directory.glob("*.safetensors") for name, tensor in load_file(path).items()}


PARTITIONED = """
from transformers import TrainingArguments
from agentworld.train import release

def losses_of(wrapped):
    found = []
    for step in range(3):
        ids = torch.randint(2, 240, (2, 1, 32), generator=torch.Generator().manual_seed(step))
        loss = wrapped(ids[engine.rank()], labels=ids[engine.rank()], use_cache=False).loss
        wrapped.backward(loss)
        wrapped.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        found.append(total.item() / 2)
    return found

result = {}
for name, path in BASES.items():
    for stage, degree in CASES[name]:
        settings = EngineSettings(zero_stage=stage, expert_parallel=degree, device="cpu")
        engine.start_rank(settings)
        arguments = TrainingArguments(
            output_dir=OUT, use_cpu=True, report_to=[], bf16=False,
            deepspeed=engine.deepspeed_config(settings, ModelSettings(dtype="float32")),
        )
        loaded = model.load(path, "float32")
        parts = [getattr(p, "ds_tensor", p).numel() / getattr(p, "ds_numel", p.numel()) for p in loaded.parameters()]
        held = sum(p.numel() for p in loaded.parameters())
        del arguments
        wrapped = started(loaded, settings, steps=0)
        case = {"parts": sorted(set(parts)), "held": held, "losses": losses_of(wrapped)}
        if stage == 3:
            directory = Path(OUT) / f"{name}-{degree}"
            if engine.rank() == 0:
                directory.mkdir(parents=True)
            source = release.source_of(path)
            config = model.load_config(path, "float32")
            export.write_safetensors(wrapped.module, config, directory, "release", source, shard_bytes=60_000)
            ids = torch.randint(2, 240, (1, 24), generator=torch.Generator().manual_seed(9))
            with torch.no_grad():
                case["logits"] = wrapped(ids, use_cache=False).logits[0, :, :16].tolist()
        result[f"{name}-{stage}-{degree}"] = case
        dist.barrier()
"""


def test_a_released_checkpoint_goes_through_partitions_and_back(bases, tmp_path) -> None:
    given = f"BASES = {{k: Path(v) for k, v in { ({name: str(path) for name, path in bases.items()})!r}.items()}}\n"
    cases = {"fused": [(1, 1), (3, 1), (3, 2)], "per-expert": [(1, 1), (3, 1)], "text": [(1, 1), (3, 2)]}
    given += f"OUT, CASES = {str(tmp_path / 'out')!r}, {cases!r}\n"
    ranks = on_ranks(2, ENGINE + given + PARTITIONED, tmp_path, timeout=600)
    for name, path in bases.items():
        whole = ranks[0][f"{name}-1-1"]
        for _, degree in cases[name][1:]:
            found = [rank[f"{name}-3-{degree}"] for rank in ranks]
            assert all(case["held"] == 0 and max(case["parts"]) < 0.6 for case in found), "a rank holds its half only"
            assert found[0]["losses"] == pytest.approx(whole["losses"], rel=5e-6)  # float32
            assert found[0]["losses"][0] != pytest.approx(found[0]["losses"][1], abs=1e-3)
            check_release(tmp_path / "out" / f"{name}-{degree}", path, found[0]["logits"])


def check_release(directory: Path, source: Path, logits: list) -> None:
    loaded, info = Qwen3_5MoeForConditionalGeneration.from_pretrained(directory, output_loading_info=True)
    before, after = tensors_of(source), tensors_of(directory)
    carried = {name for name in before if name.startswith(("model.visual.", "mtp."))}
    assert all(str(name).startswith("model.visual.") for name in info["missing_keys"])
    assert bool(info["missing_keys"]) == (not carried) and not info["mismatched_keys"]
    assert all(str(name).startswith("mtp.") for name in info["unexpected_keys"])
    with torch.no_grad():
        ids = torch.randint(2, 240, (1, 24), generator=torch.Generator().manual_seed(9))
        found = loaded.eval()(input_ids=ids, use_cache=False).logits[0, :, :16]
    torch.testing.assert_close(found, torch.tensor(logits), atol=1e-5, rtol=0)
    assert all(torch.equal(before[name], after[name]) for name in carried)
    top = {"lm_head.weight"} if "lm_head.weight" in before else set()
    assert {name for name in after if not name.startswith("model.language_model.")} == carried | top
    trained = "model.language_model.embed_tokens.weight"
    assert not torch.equal(before[trained if carried else "model.embed_tokens.weight"], after[trained])
    config, stored = (json.loads((path / "config.json").read_text()) for path in (directory, source))
    assert config["architectures"] == ["Qwen3_5MoeForConditionalGeneration"] and config["model_type"] == "qwen3_5_moe"
    assert config["vision_config"]["out_hidden_size"] == 64
    if carried:
        assert config["image_token_id"] == 250 and config["vision_config"]["depth"] == 1
        mtp = [sizes["text_config"].get("mtp_num_hidden_layers") for sizes in (config, stored)]
        assert mtp[0] == mtp[1]
    assert (directory / "preprocessor_config.json").is_file() == (source / "preprocessor_config.json").is_file()


def test_a_release_without_a_base_names_the_class_and_leaves_the_tower_out(tmp_path) -> None:
    settings = ModelSettings(dtype="float32", architecture=SIZES)
    built = model.build(settings, Vocabulary(), seed=0).eval()
    export.write_safetensors(built, built.config, tmp_path, "release")
    (tmp_path / "tokenizer.json").write_text("{}")
    again = model.load(tmp_path, "float32")
    names = dict(built.named_parameters())
    assert [name for name, tensor in again.named_parameters() if not torch.equal(tensor, names[name])] == []
    whole, info = Qwen3_5MoeForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["unexpected_keys"] and all(str(name).startswith("model.visual.") for name in info["missing_keys"])
    assert whole.config.text_config.hidden_size == SIZES.hidden_size
    checkpoint.accept_parent(tmp_path, "cpt", tmp_path, {"hidden_size": 64, "num_experts": 8})
    assert release.source_of(tmp_path, None) is None, "nothing to carry on from it"


def test_a_text_export_of_a_released_base_names_no_absent_part(bases) -> None:
    config = model.load_config(bases["fused"], "float32").to_dict()
    assert not [key for key in config if key.startswith(("mtp", "vision"))]
    assert config["architectures"] == ["Qwen3_5MoeForCausalLM"] and config["hidden_size"] == 64
    assert release.source_of(None, bases["fused"]) == bases["fused"]
