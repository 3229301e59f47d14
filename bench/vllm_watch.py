"""What `bench.vllm_rollouts` sees on a rank: probabilities before, in and after each rollout, and speed."""

import datetime
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import broadcast_object_list, gather_object
from trl.models.utils import unwrap_model_for_generation

from agentworld.train import engine, kernels, vllm_rollouts
from agentworld.train.compose import compose
from bench import vllm_probabilities as probabilities
from bench.layer_speed import machine
from bench.random_policy import drawn, random_trainer
from bench.vllm_rollouts import overrides

PAIRS = (("vllm", "training"), ("training", "float32"), ("vllm", "float32"))


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The whole of a case, on each of its ranks."""
    config = compose(overrides(case["widths"], case["sizes"], case["keys"], case["ranks"]))
    engine.start_rank(config.engine)
    active = kernels.install()
    vllm_rollouts.OPTIONS |= case["options"]
    seconds, trainer = timed(lambda: random_trainer(config, Path(case["folder"]), case["sizes"]))
    found = {"start_seconds": round(seconds, 1), **watched(trainer, case)}
    dist.barrier()
    facts = {"date": datetime.date.today().isoformat(), "vllm": version("vllm"), **machine(True)}
    return {**found, "kernels": active, **facts}


def watched(trainer: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Train, and what was seen before, in and after each rollout; at the end speed, and greedy samples of a colocated
    vLLM."""
    watch = Watch(trainer, case["sizes"])
    trainer.train()
    found = {"updates": watch.updates, "rollouts": watch.rollouts}
    found["tokens_per_s"] = said("tokens a second", watch.speed(case["repeats"])) if case["repeats"] else None
    return found | {"greedy": watch.greedy() if trainer.vllm_generation.mode == "colocate" else None}


class Watch:
    """Put around the calls of a trainer's vLLM. Every rank computes the same, which ZeRO-3 and divided experts need."""

    def __init__(self, trainer: Any, sizes: dict[str, int]) -> None:
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
        self._send_seconds = timed(self._send)[0]

    def _generate(self, **options: Any) -> Any:
        exact = probabilities.Float32(self.trainer)
        self.updates.append(said("fixed sequences", self._fixed_sequences(exact)))
        seconds, found = timed(lambda: self._sample(**options))
        tokens = sum(gather_object([sum(map(len, found[1]))]))
        speed = {"seconds": seconds, "tokens": tokens, "tokens_per_s": tokens / seconds}
        self.rollouts.append(said("rollout", {**speed, **self._sampled(exact, options["prompts"], found)}))
        return found

    def _fixed_sequences(self, exact: Any) -> dict[str, Any]:
        """The fixed sequences after the last update, and how far the training engine's moved by it."""
        now = {
            "vllm": probabilities.of_vllm(self.trainer, self._fixed),
            "training": probabilities.of_training(self.trainer, self._fixed),
            "float32": exact.log_probs(self._fixed),
        }
        before, self._before = self._before, now["training"]
        found = {f"{a}-{b}": probabilities.difference(list(zip(now[a], now[b], strict=True))) for a, b in PAIRS}
        if before is not None:
            for name in ("vllm", "training"):
                found[f"{name}-training before"] = probabilities.difference(list(zip(now[name], before, strict=True)))
        return {"updates": len(self.updates), "send_seconds": self._send_seconds, **found}

    def _sampled(self, exact: Any, prompts: list[list[int]], found: tuple) -> dict[str, Any]:
        """What vLLM says of some of rank 0's samples, one token at a time, beside the others' prefill of the same; of
        all tokens, and of those in the last quarter of the longest completion."""
        chosen = range(0, len(prompts), max(1, len(prompts) // 16))
        samples = [[(prompts[i], found[1][i], [step[0] for step in found[2][i]]) for i in chosen]]
        broadcast_object_list(samples, from_process=0)
        now: dict[str, list[Any]] = {"vllm": [], "training": [], "float32": []}
        for prompt, completion, log_probs in samples[0]:
            ids, count = torch.tensor([[*prompt, *completion]]), len(completion)
            now["vllm"].append(torch.tensor(log_probs))
            now["training"].append(probabilities.of_training(self.trainer, ids)[0, -count:])
            now["float32"].append(exact.log_probs(ids)[0, -count:])
        late = 3 * self.sizes["new_tokens"] // 4
        result = {}
        for a, b in PAIRS:
            pairs = list(zip(now[a], now[b], strict=True))
            result[f"{a}-{b}"] = probabilities.difference(pairs)
            ends = [(x[late:], y[late:]) for x, y in pairs if len(x) > late]
            result[f"{a}-{b} late"] = probabilities.difference(ends) if ends else None
        return result

    def greedy(self) -> dict[str, Any]:
        """A colocated vLLM's greedy samples, and where float32 would have taken another token, by what margin."""
        from vllm import SamplingParams

        shape = self.sizes["fixed"], self.sizes["longest_prompt"] // 4
        prompts = drawn(self.trainer.processing_class, shape, torch.Generator().manual_seed(2))
        self._send()
        asked = SamplingParams(max_tokens=self.sizes["greedy_tokens"], temperature=0.0, ignore_eos=True)
        given = [{"prompt_token_ids": row.tolist()} for row in prompts]
        outputs = probabilities.awake(self.trainer.vllm_generation).generate(given, asked, use_tqdm=False)
        ids = torch.cat([prompts, torch.tensor([list(output.outputs[0].token_ids) for output in outputs])], dim=1)
        exact = probabilities.Float32(self.trainer)
        same, gaps = (found[:, -self.sizes["greedy_tokens"] :] for found in exact.choices(ids))
        other = gaps[~same]
        return {
            "tokens": same.numel(),
            "another_in_float32": len(other),
            "largest_margin_there": other.max().item() if len(other) else None,
            "median_margin_of_all": gaps.median().item(),
            "first_of_each_sequence": [(~row).nonzero()[0].item() if (~row).any() else None for row in same],
        }

    def speed(self, repeats: int) -> dict[str, list[float]]:
        """Tokens a second of a rollout's sampling on one rank, by each engine in turn after one that does not count."""
        found: dict[str, list[float]] = {"vllm": [], "transformers": []}
        prompts = [ids for ids in self.trainer._prompt_ids.values() for _ in range(self.sizes["generations"])]
        for repeat in range(-1, repeats):
            for name, sample in (("vllm", self._sample_by_vllm), ("transformers", self._sample_by_transformers)):
                seconds, tokens = timed(lambda s=sample: s(prompts))
                if repeat >= 0:
                    found[name].append(tokens / seconds)
        return found

    def _sample_by_vllm(self, prompts: list[list[int]]) -> int:
        found = self._sample(prompts=prompts, images=None, num_generations=self.sizes["generations"])
        return sum(map(len, found[1]))

    def _sample_by_transformers(self, prompts: list[list[int]]) -> int:
        end, longest = self.trainer.processing_class.eos_token_id, max(map(len, prompts))
        ids = torch.tensor([[end] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        accelerator, device = self.trainer.accelerator, self.trainer.accelerator.device
        with torch.no_grad(), unwrap_model_for_generation(self.trainer.model_wrapped, accelerator) as policy:
            policy.eval()
            found = policy.generate(
                input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=True,
                do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=self.sizes["new_tokens"],
                eos_token_id=end, pad_token_id=end,
            )[:, longest:]  # fmt: skip
            policy.train()
        ends = found == end
        return int((ends.cumsum(1) - ends.long() == 0).sum())  # to the first end, with it


def said(what: str, found: dict[str, Any]) -> dict[str, Any]:
    """For the log, where a case that fails later leaves what it had."""
    print(f"{datetime.datetime.now():%H:%M:%S} {what}: {json.dumps(found)}", flush=True)
    return found


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds from the moment the card is idle to the moment it is idle again, and what the function gave."""

    def wait() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    found = function()
    wait()
    return time.perf_counter() - start, found
