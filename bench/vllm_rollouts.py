"""A colocated vLLM beside the training engine: do their probabilities agree, do updates arrive, how fast are rollouts.

The trainer of the RL stage on one GPU, a random model, prompts of random tokens and a reward that only has to vary,
with vLLM started and fed as `rl.rollout.engine=vllm_colocate` does it. Before each rollout, so after 0, 1, 2 and 3
updates, the log-probabilities of fixed sequences are taken from vLLM (prefill), from the training engine and from plain
transformers in float32 with the weights of that moment; after it, those of what vLLM sampled. Then whole rollouts are
sampled by vLLM and by `generate`, with the kernels that training has, in turn. Each case runs in a process of its own
and prints a JSON line.

    python -m bench.vllm_rollouts --out rollouts.jsonl

The case "state-bfloat16" keeps vLLM's state of Gated DeltaNet in bfloat16, as vLLM does for a config.json that names
no dtype of it; this pipeline asks for float32, in which the training engine keeps it.
"""

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.rank_processes import last_words, say

PROGRAM = "bench.vllm_rollouts"
CASES = {"state-float32": {}, "state-bfloat16": {"mamba_ssm_cache_dtype": "bfloat16"}}
WIDTHS = {
    "small": {
        "hidden_size": 512, "num_hidden_layers": 8, "num_experts": 16, "num_experts_per_tok": 4, "head_dim": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
        "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256,
    },
    "mini": {},  # recipes/model/mini.yaml as it is
}  # fmt: skip
SIZES = {"prompts": 64, "generations": 4, "longest_prompt": 512, "new_tokens": 256, "fixed": 8, "greedy_tokens": 64}
UPDATES = 3


def main() -> int:
    """Start one process a case and print its line."""
    options = _options()
    if options.one:
        options.result.write_text(json.dumps(measure(json.loads(options.one))))
        return 0
    failed = False
    for name in options.cases:
        case = {"case": name, "widths": options.widths, "repeats": options.repeats, "sizes": SIZES}
        line = _in_a_process(case, options.logs / f"vllm-{options.widths}-{name}.log")
        failed |= "error" in line
        say(line, options.out)
    return 1 if failed else 0


def _in_a_process(case: dict[str, Any], log: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, log.open("w") as output:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", PROGRAM, "--one", json.dumps(case), "--result", str(result)]
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT)
        if done.returncode == 0:
            return json.loads(result.read_text())
    return {**case, "error": f"exit code {done.returncode}: {last_words(log)}"}


def _options() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=layout)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--widths", choices=list(WIDTHS), default="small")
    parser.add_argument("--repeats", type=int, default=3, help="timed rollouts of each engine")
    parser.add_argument("--out", type=Path, help="lines are added to this file")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()), help="directory for vLLM's output")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def overrides(widths: str, sizes: dict[str, int]) -> list[str]:
    return [
        "recipe=mini", "engine=zero1", "nproc=1", "wandb.mode=disabled",
        "rl.rollout.engine=vllm_colocate", "rl.rollout.batch_size=0", "rl.rollout.gpu_memory_utilization=0.3",
        f"rl.prompts_per_rollout={sizes['prompts']}", f"rl.num_generations={sizes['generations']}",
        "rl.mini_batches=1", f"rl.completions_per_device={sizes['prompts'] // 2}",
        f"rl.max_completion_tokens={sizes['new_tokens']}", f"data.rl_prompt_tokens={sizes['longest_prompt']}",
        f"rl.max_steps={UPDATES + 1}", "rl.warmup_steps=0", "rl.learning_rate=2e-3", "rl.router_aux_loss_coef=0",
        *(f"model.architecture.{key}={value}" for key, value in WIDTHS[widths].items()),
    ]  # fmt: skip


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The whole of a case."""
    from importlib.metadata import version

    from agentworld.train import compat, engine, kernels, vllm_rollouts
    from agentworld.train.compose import compose
    from bench.layer_speed import machine
    from bench.random_policy import random_trainer

    config = compose(overrides(case["widths"], case["sizes"]))
    engine.start_rank(config.engine)
    compat.apply()
    active = kernels.install()
    vllm_rollouts.OPTIONS |= CASES[case["case"]]
    with tempfile.TemporaryDirectory() as folder:
        seconds, trainer = _timed(lambda: random_trainer(config, Path(folder), case["sizes"]))
        found = {"start_seconds": round(seconds, 1), **watched(trainer, case)}
    facts = {"date": datetime.date.today().isoformat(), "vllm": version("vllm"), **machine(True)}
    return {**case, **found, "kernels": active, **facts}


def watched(trainer: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Train, and what was seen before, in and after each rollout; at the end greedy samples and speed."""
    watch = _Watch(trainer, case["sizes"])
    trainer.train()
    speed = _said("tokens a second", watch.speed(case["repeats"]))
    return {"updates": watch.updates, "rollouts": watch.rollouts, "tokens_per_s": speed, "greedy": watch.greedy()}


class _Watch:
    """Put around the calls of a trainer's vLLM."""

    def __init__(self, trainer: Any, sizes: dict[str, int]) -> None:
        import torch

        from bench.random_policy import drawn

        self.trainer, self.sizes = trainer, sizes
        self.updates: list[dict[str, Any]] = []
        self.rollouts: list[dict[str, Any]] = []
        self._before: Any = None  # log-probabilities of the training engine one update ago
        shape = (sizes["fixed"], sizes["longest_prompt"])
        self._fixed = drawn(trainer.processing_class, shape, torch.Generator().manual_seed(1))
        generation = trainer.vllm_generation
        self._sample, self._send, self._send_seconds = generation.generate, generation.sync_weights, 0.0
        generation.generate, generation.sync_weights = self._generate, self._send_timed

    def _send_timed(self) -> None:
        self._send_seconds = _timed(self._send)[0]

    def _generate(self, **options: Any) -> Any:
        from bench.vllm_probabilities import Float32

        exact = Float32(self.trainer)
        self.updates.append(_said("fixed sequences", self._fixed_sequences(exact)))
        seconds, found = _timed(lambda: self._sample(**options))
        tokens = sum(map(len, found[1]))
        speed = {"seconds": seconds, "tokens": tokens, "tokens_per_s": tokens / seconds}
        self.rollouts.append(_said("rollout", {**speed, **self._sampled(exact, options["prompts"], found)}))
        return found

    def _fixed_sequences(self, exact: Any) -> dict[str, Any]:
        """The fixed sequences after the last update, and how far the training engine's moved by it."""
        from bench.vllm_probabilities import difference, of_training, of_vllm

        now = {"vllm": of_vllm(self.trainer, self._fixed), "training": of_training(self.trainer, self._fixed)}
        now["float32"] = exact.log_probs(self._fixed)
        before, self._before = self._before, now["training"]
        pairs = [("vllm", "training"), ("training", "float32"), ("vllm", "float32")]
        found = {f"{a}-{b}": difference(list(zip(now[a], now[b], strict=True))) for a, b in pairs}
        if before is not None:
            for name in ("vllm", "training"):
                found[f"{name}-training before"] = difference(list(zip(now[name], before, strict=True)))
        return {"updates": len(self.updates), "send_seconds": self._send_seconds, **found}

    def _sampled(self, exact: Any, prompts: list[list[int]], found: tuple) -> dict[str, Any]:
        """What vLLM says of some of its own samples, one token at a time, beside the others' prefill of the same; of
        all tokens, and of those in the last quarter of the longest completion."""
        import torch

        from bench.vllm_probabilities import difference, of_training

        now: dict[str, list[Any]] = {"vllm": [], "training": [], "float32": []}
        for i in range(0, len(prompts), max(1, len(prompts) // 16)):
            ids, count = torch.tensor([[*prompts[i], *found[1][i]]]), len(found[1][i])
            now["vllm"].append(torch.tensor([step[0] for step in found[2][i]]))
            now["training"].append(of_training(self.trainer, ids)[0, -count:])
            now["float32"].append(exact.log_probs(ids)[0, -count:])
        late = 3 * self.sizes["new_tokens"] // 4
        result = {}
        for a, b in (("vllm", "training"), ("training", "float32"), ("vllm", "float32")):
            pairs = list(zip(now[a], now[b], strict=True))
            result[f"{a}-{b}"] = difference(pairs)
            ends = [(x[late:], y[late:]) for x, y in pairs if len(x) > late]
            result[f"{a}-{b} late"] = difference(ends) if ends else None
        return result

    def greedy(self) -> dict[str, Any]:
        """vLLM's greedy samples, and where float32 would have taken another token, by what margin."""
        import torch
        from vllm import SamplingParams

        from bench.random_policy import drawn
        from bench.vllm_probabilities import Float32

        shape = self.sizes["fixed"], self.sizes["longest_prompt"] // 4
        prompts = drawn(self.trainer.processing_class, shape, torch.Generator().manual_seed(2))
        self._send()
        asked = SamplingParams(max_tokens=self.sizes["greedy_tokens"], temperature=0.0, ignore_eos=True)
        given = [{"prompt_token_ids": row.tolist()} for row in prompts]
        outputs = self.trainer.vllm_generation.llm.generate(given, asked, use_tqdm=False)
        ids = torch.cat([prompts, torch.tensor([list(output.outputs[0].token_ids) for output in outputs])], dim=1)
        same, gaps = (found[:, -self.sizes["greedy_tokens"] :] for found in Float32(self.trainer).choices(ids))
        other = gaps[~same]
        return {
            "tokens": same.numel(),
            "another_in_float32": len(other),
            "largest_margin_there": other.max().item() if len(other) else None,
            "median_margin_of_all": gaps.median().item(),
            "first_of_each_sequence": [(~row).nonzero()[0].item() if (~row).any() else None for row in same],
        }

    def speed(self, repeats: int) -> dict[str, list[float]]:
        """Tokens a second of a rollout's sampling by each engine in turn, after one that does not count."""
        found: dict[str, list[float]] = {"vllm": [], "transformers": []}
        prompts = [ids for ids in self.trainer._prompt_ids.values() for _ in range(self.sizes["generations"])]
        for repeat in range(-1, repeats):
            for name, sample in (("vllm", self._sample_by_vllm), ("transformers", self._sample_by_transformers)):
                seconds, tokens = _timed(lambda s=sample: s(prompts))
                if repeat >= 0:
                    found[name].append(tokens / seconds)
        return found

    def _sample_by_vllm(self, prompts: list[list[int]]) -> int:
        found = self._sample(prompts=prompts, images=None, num_generations=self.sizes["generations"])
        return sum(map(len, found[1]))

    def _sample_by_transformers(self, prompts: list[list[int]]) -> int:
        import torch

        end, longest = self.trainer.processing_class.eos_token_id, max(map(len, prompts))
        ids = torch.tensor([[end] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        policy, device = self.trainer.accelerator.unwrap_model(self.trainer.model_wrapped), self.trainer.model.device
        policy.eval()
        with torch.no_grad():
            found = policy.generate(
                input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=True,
                do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=self.sizes["new_tokens"],
                eos_token_id=end, pad_token_id=end,
            )[:, longest:]  # fmt: skip
        policy.train()
        ends = found == end
        return int((ends.cumsum(1) - ends.long() == 0).sum())  # to the first end, with it


def _said(what: str, found: dict[str, Any]) -> dict[str, Any]:
    """For the log, where a case that fails later leaves what it had."""
    print(f"{datetime.datetime.now():%H:%M:%S} {what}: {json.dumps(found)}", flush=True)
    return found


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    import torch

    def wait() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    found = function()
    wait()
    return time.perf_counter() - start, found


if __name__ == "__main__":
    sys.exit(main())
