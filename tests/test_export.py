"""The export of a live engine: every ZeRO stage and expert-parallel degree, on one and two ranks (fault 21)."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from ranks import on_ranks
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from agentworld.train import shards
from agentworld.train.shards import Entry

SHARD_BYTES = 60_000  # some tensors of the small model fill a shard, others share one

# `trained` builds a model, takes two steps and returns the engine; `gathered` gives every tensor without the exporter.
ENGINE = """
import torch, deepspeed
import torch.distributed as dist
from contextlib import nullcontext
from pathlib import Path
from agentworld.train import engine, export, model
from agentworld.train.config import ArchitectureSettings, EngineSettings, ModelSettings

class Vocabulary:
    pad_token_id, eos_token_id = 0, 1
    def __len__(self):
        return 256

SIZES = dict(hidden_size=64, moe_intermediate_size=32, shared_expert_intermediate_size=32)

def trained(stage, degree, steps=2, **sizes):
    settings = EngineSettings(zero_stage=stage, expert_parallel=degree, device="cpu")
    engine.start_rank(settings)
    architecture = ArchitectureSettings(**(SIZES | sizes))
    plain = model.build(ModelSettings(dtype="float32", architecture=architecture), Vocabulary(), seed=0)
    return started(plain, settings, steps)

def started(plain, settings, steps):
    config = engine.deepspeed_config(settings, ModelSettings(dtype="float32"))
    for key in [k for k, v in config.items() if v == "auto"]:
        del config[key]
    config["train_micro_batch_size_per_gpu"] = 1
    config["optimizer"]["params"] = {"lr": 1e-2, "torch_adam": True}
    wrapped, *_ = deepspeed.initialize(model=plain, config=config, model_parameters=plain.parameters())
    for step in range(steps):
        ids = torch.randint(2, 256, (engine.world_size(), 1, 32), generator=torch.Generator().manual_seed(step))
        loss = wrapped(ids[engine.rank()], labels=ids[engine.rank()], use_cache=False).loss
        wrapped.backward(loss)
        wrapped.step()
    return wrapped

def gathered(wrapped):
    own = {}
    for name, parameter in wrapped.module.named_parameters():
        whole = hasattr(parameter, "ds_id")
        with deepspeed.zero.GatheredParameters([parameter]) if whole else nullcontext():
            own[name] = parameter.detach().clone()
    ranks = [None] * engine.world_size()
    dist.all_gather_object(ranks, own)
    found = {}
    for name, tensor in ranks[0].items():
        if ".experts.w" not in name:
            for ours, theirs in export.RENAMED:
                name = name.replace(ours, theirs)
            found[name] = tensor
        elif name.endswith("w1"):
            w1, w2, w3 = (torch.cat([rank[name[:-1] + n] for rank in ranks]) for n in "123")
            found[name[:-2] + "gate_up_proj"], found[name[:-2] + "down_proj"] = torch.cat([w1, w3], dim=1), w2
    return found
"""

MATRIX = """
from transformers import Qwen3_5MoeForCausalLM
result = {}
for stage, degree in CASES:
    wrapped = trained(stage, degree)
    directory = Path(OUT) / f"{stage}-{degree}"
    if engine.rank() == 0:
        directory.mkdir(parents=True)
    expected = gathered(wrapped)
    ids = torch.randint(2, 256, (2, 24), generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        logits = wrapped(ids, use_cache=False).logits
    digests = export.write_safetensors(wrapped.module, wrapped.module.config, directory, shard_bytes=SHARD_BYTES)
    dist.barrier()
    reloaded, info = Qwen3_5MoeForCausalLM.from_pretrained(directory, output_loading_info=True)
    with torch.no_grad():
        found = reloaded.eval()(ids, use_cache=False).logits
    weights = dict(reloaded.named_parameters())
    result[f"{stage}-{degree}"] = {
        "blocks": type(wrapped.module.model.layers[0].mlp).__name__,
        "info": {kind: sorted(map(str, keys)) for kind, keys in info.items() if keys},
        "names": sorted(weights) == sorted(expected),
        "altered": [n for n, tensor in expected.items() if not torch.equal(weights[n], tensor)],
        "logits": (found - logits).abs().max().item(),
        "digests": digests,
    }
    dist.barrier()
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_engine_exports_the_weights_that_it_trained(tmp_path, ranks) -> None:
    cases = [(stage, degree) for stage in (1, 2, 3) for degree in range(1, ranks + 1)]
    given = f"CASES, OUT, SHARD_BYTES = {cases!r}, {str(tmp_path / 'export')!r}, {SHARD_BYTES}\n"
    results = on_ranks(ranks, given + ENGINE + MATRIX, tmp_path, timeout=600)
    for (stage, degree), case in zip(cases, results[0], strict=True):
        found = results[0][case]
        assert (found["blocks"] == "AutoEPMoELayer") == (degree > 1), case
        assert found["info"] == {} and found["names"] and found["altered"] == [], (case, found)
        assert all(result[case]["logits"] < 1e-5 for result in results), case
        assert all(result[case]["digests"] == found["digests"] for result in results)
        check_files(tmp_path / "export" / f"{stage}-{degree}", found["digests"])


def check_files(directory: Path, digests: dict) -> None:
    """What the shards say of themselves: size, hash, index, and the library's own way of writing them."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    paths = sorted(directory.glob("*.safetensors"))
    assert len(paths) > 8 and {path.name for path in paths} == set(digests) == set(index["weight_map"].values())
    total = 0
    for path in paths:
        content = path.read_bytes()
        assert digests[path.name] == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        tensors = load_file(path)
        assert {name for name, shard in index["weight_map"].items() if shard == path.name} == set(tensors)
        size = sum(tensor.nbytes for tensor in tensors.values())
        assert size <= SHARD_BYTES or len(tensors) == 1
        total += size
    assert index["metadata"]["total_size"] == total


PEAK = """
def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024

result = {}
for stage, degree in [(3, 1), (1, 2), (3, 2)]:
    wrapped = trained(stage, degree, steps=0, num_experts=32, moe_intermediate_size=1024)
    directory = Path(OUT) / f"{stage}-{degree}"
    if engine.rank() == 0:
        directory.mkdir(parents=True)
    warm = [e for e in export.entries(wrapped.module) if "experts" not in e.name][:2]
    for entry in warm:
        entry.fetch(0)
    dist.barrier()
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts again at what is held now
    before = status("VmRSS")
    export.write_safetensors(wrapped.module, wrapped.module.config, directory, shard_bytes=24 << 20)
    sizes = [entry.bytes for entry in export.entries(wrapped.module)]
    result[f"{stage}-{degree}"] = [status("VmHWM") - before, max(sizes), sum(sizes)]
    del wrapped
"""


def test_an_export_holds_the_largest_parameter_and_its_gathered_copy(tmp_path, monkeypatch) -> None:
    # Freed tensors go back to the system at once; glibc would keep some, more or fewer from run to run.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(1 << 20))
    program = f"OUT = {str(tmp_path / 'export')!r}\n" + ENGINE + PEAK
    for rank in on_ranks(2, program, tmp_path, timeout=600):
        for case, (peak, largest, total) in rank.items():
            assert total > 5 * largest and largest >= 16 << 20, "held at once, it would show"
            # The copy that is written, the gathered one, and buffers of the collective and the allocator.
            assert peak < 3 * largest, f"{case}: {peak >> 20} MiB for a parameter of {largest >> 20} MiB"


def bytes_of(tensor: torch.Tensor) -> list[int]:
    return tensor.reshape(-1).view(torch.uint8).tolist()


def entry_of(name: str, tensor: torch.Tensor) -> Entry:
    return Entry(name, tuple(tensor.shape), tensor.dtype, lambda writer: tensor)


def test_shards_read_back_as_the_library_writes_them(tmp_path) -> None:
    draw = torch.Generator().manual_seed(0)
    tensors = {
        "odd": torch.randn(3, generator=draw).to(torch.bfloat16),
        "wide": torch.randn(5, 7, generator=draw),
        "scalar": torch.tensor(2.5),
        "counts": torch.arange(4),
        "strided": torch.randn(6, 4, generator=draw).T,
        "empty": torch.empty(0, 3),
        "small": torch.randn(2, generator=draw).to(torch.float8_e4m3fn),
    }
    digests = shards.write([entry_of(name, tensor) for name, tensor in tensors.items()], tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "library")
    theirs, ours = load_file(tmp_path / "library"), load_file(path)
    assert theirs.keys() == ours.keys() and digests[path.name]["bytes"] == path.stat().st_size
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and ours[name].shape == tensor.shape
        assert bytes_of(ours[name]) == bytes_of(tensor), name
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_tensor_of_another_shape_than_announced_stops_the_export(tmp_path) -> None:
    wrong = Entry("weight", (2, 3), torch.float32, lambda writer: torch.zeros(3, 2))
    with pytest.raises(AssertionError, match="weight"):
        shards.write([wrong], tmp_path)
