"""Speed of a training step, forward and backward, of a slice of Qwen3.5-35B-A3B at its true widths, on one GPU.

"plain" is transformers with flash-linear-attention installed and its own loss over full logits; "ours" is the same
model after `agentworld.train.kernels.install`, with the fused head that the trainers use. Both run in turn in one
process on the same weights and tokens. The cost of a layer is the difference between the slices of 8 and of 4 layers,
so embedding, head and loss drop out of it. The optimizer is not part of the step.

    python -m bench.layer_speed --out speed.json           # a GPU, two minutes
    python -m bench.layer_speed --profile --out speed.json # kernels by group, too
    python -m bench.layer_speed --tiny                     # any machine: does the program run?
"""

import argparse
import datetime
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig
from trl.trainer.utils import add_fused_lm_head

from agentworld.train import kernels
from agentworld.train.recompute import keep_mixers, recompute_mixers
from bench.kernel_groups import profile

REAL = {
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
TINY = REAL | {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
LAYERS_OF_THE_MODEL = 40
VARIANTS = ("plain", "ours", "layers", "mixers")  # the last two: ours, with this `model.recompute`
DOCUMENTS = (0.5, 0.2, 0.1, 0.08, 0.05, 0.03, 0.02, 0.01, 0.006, 0.004)  # parts of a packed row


def build(widths: dict, layers: int, device: str, dtype: torch.dtype) -> Qwen3_5MoeForCausalLM:
    """The slice with random weights; lower `config.num_hidden_layers` afterwards to run fewer of its layers."""
    torch.manual_seed(0)
    config = Qwen3_5MoeTextConfig(**widths, num_hidden_layers=layers, use_cache=False)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = Qwen3_5MoeForCausalLM(config)
    torch.set_default_dtype(before)
    add_fused_lm_head(model)
    return model.train()


def document_lengths(tokens: int, parts: Sequence[float]) -> list[int]:
    """Tokens of each document of a packed row, by its part of the row, at least one; the first takes what is left."""
    lengths = [max(1, int(part * tokens)) for part in parts]
    lengths[0] += tokens - sum(lengths)
    return lengths


def batch(vocabulary: int, rows: int, length: int, packed: bool, device: str) -> dict:
    """Random tokens, each its own label; packed: one row of ten documents, as TRL's padding-free collator makes it."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, vocabulary, (1, rows * length) if packed else (rows, length), generator=draw)
    if not packed:
        return {"input_ids": ids.to(device), "labels": ids.to(device)}
    lengths = document_lengths(ids.shape[1], DOCUMENTS)
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(device)
    return {
        "input_ids": ids.to(device),
        "labels": ids.to(device),
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None].to(device),
        "seq_idx": torch.repeat_interleave(torch.tensor(lengths))[None].to(torch.int32).to(device),
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def step(model: Qwen3_5MoeForCausalLM, inputs: dict, fused_head: bool) -> torch.Tensor:
    """One forward and backward; gradients are left on the model. Returns the loss."""
    model.zero_grad(set_to_none=True)
    options = {"fused_lm_head": True} if fused_head else {}
    loss = model(**inputs, use_cache=False, **options).loss
    loss.backward()
    return loss.detach()


def use(variant: str, packed: bool) -> dict[str, str]:
    """Put the kernels of a variant in place. Stock transformers leaks over the documents of a packed row in the
    convolution, so "plain" gets the exact torch convolution there."""
    if variant != "plain":
        return kernels.install()
    kernels.restore()
    if packed or not torch.cuda.is_available():
        return kernels.install_packing_only()
    return {}


def recompute(model: Qwen3_5MoeForCausalLM, variant: str) -> None:
    """The `model.recompute` of a variant."""
    model.activation_checkpointing_disable()
    keep_mixers(model)
    if variant == "mixers":
        recompute_mixers(model)
    if variant == "layers":
        model.activation_checkpointing_enable({"use_reentrant": False})


def seconds(function: Callable[[], object], count: int, device: str) -> float:
    """Mean seconds of a call, from `count` calls in a row."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(count):
            function()
        return (time.perf_counter() - start) / count
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / count


def matrix_flops(device: str, size: int = 8192) -> float:
    """FLOP/s of a bf16 matrix product of random data on this card, the median of five means of ten."""
    if device == "cpu":
        size = 256
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds(lambda: a @ b, 3, device)
    return 2 * size**3 / statistics.median(seconds(lambda: a @ b, 10, device) for _ in range(5))


def layer_flops(widths: dict, tokens: int, attended: float) -> float:
    """Floating-point operations of one average layer (3 Gated DeltaNet to 1 attention), forward and backward.

    2 x multiply-adds x 3 (forward, both gradients) of all matrix products that a token takes part in, plus full
    attention's two products over `attended` (query, key) pairs, x 3.5 as its backward recomputes the scores; of the
    delta rule only its state products (4 x key dim x value dim a head and token).
    """
    h, e = widths["hidden_size"], widths["moe_intermediate_size"]
    keys = widths["linear_num_key_heads"] * widths["linear_key_head_dim"]
    values = widths["linear_num_value_heads"] * widths["linear_value_head_dim"]
    heads = widths["num_attention_heads"] * widths["head_dim"]
    few_heads = widths["num_key_value_heads"] * widths["head_dim"]
    experts = 3 * h * (widths["num_experts_per_tok"] * e + widths["shared_expert_intermediate_size"])
    experts += h * widths["num_experts"]
    delta = h * (2 * keys + 3 * values) + 2 * values * widths["linear_key_head_dim"]
    attention = h * (3 * heads + 2 * few_heads)
    products = experts + 0.75 * delta + 0.25 * attention
    return 6 * tokens * products + 0.25 * 3.5 * 4 * attended * heads


def measure(args: argparse.Namespace, packed: bool) -> dict:
    """Milliseconds a step of each variant and slice, in turn."""
    device = "cuda" if torch.cuda.is_available() and not args.tiny else "cpu"
    widths, dtype = (TINY, torch.float32) if args.tiny else (REAL, torch.bfloat16)
    rows, length = (2, 64) if args.tiny else (args.rows, args.length)
    model = build(widths, max(args.layers), device, dtype)
    inputs = batch(widths["vocab_size"], rows, length, packed, device)
    peak, losses, active, profiles = {}, {}, {}, {}
    times: dict[str, list[float]] = {}
    for repeat in range(-1, args.repeats):  # the first compiles
        for variant in args.variants:
            active[variant] = use(variant, packed)
            recompute(model, variant)
            for layers in args.layers:
                name = f"{variant} {layers}"
                model.config.num_hidden_layers = layers
                if repeat < 0:
                    if device == "cuda":
                        torch.cuda.reset_peak_memory_stats()
                    losses[name] = step(model, inputs, variant != "plain").item()
                    step(model, inputs, variant != "plain")
                    peak[name] = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
                else:
                    mean = seconds(lambda v=variant: step(model, inputs, v != "plain"), args.steps, device)
                    times.setdefault(name, []).append(1000 * mean)
    if args.profile and device == "cuda":
        for variant in args.variants:
            use(variant, packed)
            recompute(model, variant)
            profiles[variant] = profile_of_a_layer(model, inputs, variant != "plain", sorted(args.layers))
    kernels.restore()
    tokens = rows * length
    lengths = inputs["cu_seq_lens_q"].diff().tolist() if packed else [length] * rows
    attended = sum(n * (n + 1) / 2 for n in lengths)
    flops = layer_flops(widths, tokens, attended)
    found = {"packed": packed, "tokens": tokens, "rows": rows, "length": length, "losses": losses, "peak_gib": peak}
    found |= {"ms": times, "kernels": active, "profiles": profiles, "layer_flops": flops}
    return found | {"summary": summary(found, args, flops, matrix_flops(device))}


def profile_of_a_layer(model, inputs: dict, fused_head: bool, layers: list[int]) -> dict:
    """Milliseconds of GPU time by kernel group, of one layer: the difference of the largest and smallest slice."""
    groups = []
    for count in (layers[0], layers[-1]):
        model.config.num_hidden_layers = count
        groups.append(profile(lambda: step(model, inputs, fused_head)))
    extra = layers[-1] - layers[0]
    names = sorted(set(groups[0]) | set(groups[1]))
    return {name: (groups[1].get(name, 0) - groups[0].get(name, 0)) / extra for name in names}


def summary(found: dict, args: argparse.Namespace, flops: float, ceiling: float) -> dict:
    """What the tables of docs/performance.md show."""
    small, large = min(args.layers), max(args.layers)
    result = {"bf16_matrix_product_tflops": ceiling / 1e12}
    for variant in args.variants:
        pairs = zip(found["ms"][f"{variant} {small}"], found["ms"][f"{variant} {large}"], strict=True)
        layer = [(b - a) / (large - small) for a, b in pairs]
        at_large = statistics.median(found["ms"][f"{variant} {large}"])
        whole = at_large + (LAYERS_OF_THE_MODEL - large) * statistics.median(layer)
        result[variant] = {
            "layer_ms": statistics.median(layer),
            "layer_ms_spread": [min(layer), max(layer)],
            "step_ms": {str(n): statistics.median(found["ms"][f"{variant} {n}"]) for n in args.layers},
            "tokens_per_s": {
                str(n): 1000 * found["tokens"] / statistics.median(found["ms"][f"{variant} {n}"]) for n in args.layers
            },
            "peak_gib": {str(n): found["peak_gib"][f"{variant} {n}"] for n in args.layers},
            "layer_mfu": flops / (statistics.median(layer) / 1000) / ceiling,
            "extrapolated_40_layers_tokens_per_s": 1000 * found["tokens"] / whole,
        }
    if {"plain", "ours"} <= set(args.variants):
        result["speedup"] = result["plain"]["layer_ms"] / result["ours"]["layer_ms"]
    return result


def machine(gpu: bool) -> dict[str, str]:
    """Card, driver and the versions that the figures depend on."""
    modules = ("torch", "triton", "transformers", "trl", "fla", "tilelang")
    distributions = {"fla": "flash-linear-attention"}
    found = {name: version(distributions.get(name, name)) for name in modules if find_spec(name)}
    if not gpu:
        return {"device": "cpu", **found}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    return {"device": torch.cuda.get_device_name(), "driver": driver, "cuda": torch.version.cuda, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs=2, default=[4, 8], help="two slices; multiples of 4")
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--length", type=int, default=4096, help="tokens a row; packed: one row of rows x length")
    parser.add_argument("--shape", choices=["rows", "packed", "both"], default="both")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["plain", "ours"])
    parser.add_argument("--repeats", type=int, default=5, help="turns of each variant and slice")
    parser.add_argument("--steps", type=int, default=3, help="steps in a turn, timed together")
    parser.add_argument("--profile", action="store_true", help="kernels of one layer, by group")
    parser.add_argument("--tiny", action="store_true", help="small widths on the CPU: a test of the program")
    parser.add_argument("--out", type=Path, help="all figures as JSON")
    args = parser.parse_args()
    gpu = torch.cuda.is_available() and not args.tiny
    report = {"date": datetime.date.today().isoformat(), **machine(gpu), "runs": []}
    for packed in {"rows": [False], "packed": [True], "both": [False, True]}[args.shape]:
        run = measure(args, packed)
        report["runs"].append(run)
        print(
            json.dumps({"packed": packed, "summary": run["summary"], "profiles": run["profiles"]}, indent=1), flush=True
        )
        if args.out:
            args.out.write_text(json.dumps(report, indent=1))
        if gpu:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
