"""Peak memory of a real CPT step beside what `agentworld plan` estimates: `python -m bench.plan_memory`.

A slice of the 35B architecture at its true widths, random weights, one packed row of random tokens, through the trainer
and the DeepSpeed configuration of the CPT stage on one GPU. Each configuration runs in a process of its own and prints
a JSON line. `--tiny` runs a small model on a CPU, to see that the program works: no memory is measured there.

    python -m bench.plan_memory --layers 4 --tokens 4096 16384 --zero 1 2 3 > memory.jsonl

A slice of 4 layers has 4.4 B parameters and held 77 GiB under ZeRO-3 on one card (docs/performance.md). 8 layers have
7.7 B: `--experts 128` halves them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROGRAM = "bench.plan_memory"


def main() -> int:
    """Start one process a configuration, print its line, and the ratio of all at the end on stderr."""
    options = _options()
    if options.one:
        print(json.dumps(_measure(json.loads(options.one))), flush=True)
        return 0
    failed = 0
    for case in _cases(options):
        command = [sys.executable, "-m", PROGRAM, "--one", json.dumps(case)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            failed += 1
            reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
            print(json.dumps({**case, "error": reason[:300]}), flush=True)
            continue
        print(done.stdout.strip().splitlines()[-1], flush=True)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=layout)
    parser.add_argument("--layers", type=int, nargs="+", default=[4])
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 8192, 16384], help="of the packed row")
    parser.add_argument("--documents", type=int, default=2, help="in the row (default 2)")
    parser.add_argument("--zero", type=int, nargs="+", default=[2], choices=(1, 2, 3))
    choices = ("none", "mixers", "layers")
    parser.add_argument("--recompute", nargs="+", default=choices, choices=choices, help="model.recompute")
    parser.add_argument("--experts", type=int, default=256, help="of a layer; 256 are the true number")
    parser.add_argument("--tiny", action="store_true", help="the model of recipe=smoke in bfloat16, on the CPU")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def _cases(options: argparse.Namespace) -> list[dict[str, Any]]:
    shared = {"documents": options.documents, "experts": options.experts, "tiny": options.tiny}
    return [
        {"layers": layers, "tokens": tokens, "zero": zero, "recompute": recompute, **shared}
        for layers in options.layers
        for zero in options.zero
        for tokens in options.tokens
        for recompute in options.recompute
    ]


def _measure(case: dict[str, Any]) -> dict[str, Any]:
    """Two steps of CPT; the memory of the second, when every state exists."""
    from agentworld.train import compat, engine, kernels, memory, plan
    from agentworld.train.architecture import count
    from agentworld.train.compose import compose

    config = compose(_overrides(case))
    engine.start_rank(config.engine)
    compat.apply()
    active = kernels.install()
    import torch

    from bench import cpt_slice

    architecture, _ = plan.text_config(config)
    device = "cpu" if case["tiny"] else "cuda"
    model = cpt_slice.random_model(architecture, "bfloat16", device)
    with tempfile.TemporaryDirectory() as folder:
        rows = _rows(case, architecture.vocab_size)
        trainer = cpt_slice.packed_trainer(config, Path(folder), model, rows)
        meter = _Meter(trainer, device)
        trainer.add_callback(meter.callback())
        trainer.train()
    ours = memory.Engine.of(config.engine)
    estimated = memory.estimate(config, architecture, count(architecture), ours, 1)["cpt"]
    before_step = max(size for moment, size in estimated.moments.items() if moment != "step")
    estimate = {"backward": before_step, "step": estimated.moments["step"], "peak": estimated.peak}
    line = {**case, "estimated": estimate, "measured": meter.bytes, "parts": estimated.parts, "kernels": active}
    if meter.bytes:
        line["estimate_over_measured"] = {key: round(estimate[key] / meter.bytes[key], 3) for key in estimate}
    return {**line, "torch": torch.__version__}


def _overrides(case: dict[str, Any]) -> list[str]:
    keys = [
        "stage=cpt",
        f"engine.zero_stage={case['zero']}",
        "engine.expert_parallel=1",
        f"model.recompute={case['recompute']}",
        f"data.cpt_row_tokens={case['tokens']}",
        "model.path=''",
        "model.dtype=bfloat16",
        "cpt.max_steps=2",
        "cpt.warmup_steps=0",
        "nproc=1",
        f"model.architecture.num_hidden_layers={case['layers']}",
    ]
    if case["tiny"]:
        return ["recipe=smoke", *keys]
    sizes = [f"model.architecture.num_experts={case['experts']}", "data.tokenizer_vocab_size=248320"]
    return ["recipe=agentworld-35b-a3b", *keys, *sizes]


def _rows(case: dict[str, Any], vocabulary: int) -> list[dict[str, Any]]:
    """One packed row for each of the two steps, of documents of one length."""
    import torch

    tokens, documents = case["tokens"], case["documents"]
    lengths = [tokens // documents] * (documents - 1)
    lengths.append(tokens - sum(lengths))
    drawn = [torch.randint(0, vocabulary, (tokens,)).tolist() for _ in range(2)]
    return [{"input_ids": ids, "labels": ids, "seq_lengths": lengths} for ids in drawn]


class _Meter:
    """Peak allocated memory of the last step, before and in the step of the optimizer."""

    def __init__(self, trainer: Any, device: str) -> None:
        self.trainer, self.measures = trainer, device == "cuda"
        self.bytes: dict[str, int] = {}

    def callback(self) -> Any:
        import torch
        from transformers import TrainerCallback

        meter = self

        class Peaks(TrainerCallback):
            def on_step_begin(self, args, state, control, **kwargs):
                if not meter.measures:
                    return
                engine = meter.trainer.model_wrapped
                if not hasattr(engine, "unmeasured_step"):
                    engine.unmeasured_step = engine.step
                    engine.step = lambda *a, **k: (meter.note("backward"), engine.unmeasured_step(*a, **k))[1]
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()

            def on_step_end(self, args, state, control, **kwargs):
                if meter.measures:
                    meter.note("step")
                    meter.bytes["peak"] = max(meter.bytes["backward"], meter.bytes["step"])

        return Peaks()

    def note(self, moment: str) -> None:
        """Take the peak since the last call."""
        import torch

        torch.cuda.synchronize()
        self.bytes[moment] = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    sys.exit(main())
