"""Log-probabilities of given tokens by a trainer's vLLM, by the training engine, and by transformers in float32."""

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

from agentworld.train import export, kernels


def of_vllm(trainer: Any, ids: torch.Tensor) -> torch.Tensor:
    """By vLLM's prefill, of each token after the first: [sequences, tokens - 1], float32 on the CPU, in nats."""
    generation = trainer.vllm_generation
    if generation.mode == "server":
        first = [1] * len(ids)
        found = generation.vllm_client.get_sequence_logprobs(ids.tolist(), prompt_lengths=first, top_logprobs=1)
        return torch.tensor(found["actual_logprobs"])[..., 0]
    from vllm import SamplingParams

    llm = awake(generation)
    llm.reset_prefix_cache()
    asked = SamplingParams(max_tokens=1, temperature=1.0, prompt_logprobs=0)
    outputs = llm.generate([{"prompt_token_ids": row.tolist()} for row in ids], asked, use_tqdm=False)
    found = []
    for output, row in zip(outputs, ids, strict=True):
        pairs = zip(output.prompt_logprobs[1:], row[1:].tolist(), strict=True)
        found.append([of_token[token].logprob for of_token, token in pairs])
    return torch.tensor(found)


def awake(generation: Any) -> Any:
    """A colocated vLLM with its cache there; between two rollouts it may be asleep."""
    if generation.enable_sleep_mode:
        generation.llm.wake_up(tags=["kv_cache"])
    return generation.llm


def of_training(trainer: Any, ids: torch.Tensor) -> torch.Tensor:
    """By the training engine as RL computes its old log-probabilities; shape as `of_vllm`."""
    ids = ids.to(trainer.accelerator.device)
    with torch.no_grad():
        found, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, torch.ones_like(ids), ids.shape[1] - 1
        )
    return found.float().cpu()


class Float32:
    """Plain transformers with its torch code, in float32, on the weights that a trainer has when this is made;
    collective."""

    def __init__(self, trainer: Any) -> None:
        trained = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        config = copy.deepcopy(trained.config)
        config._experts_implementation, config._attn_implementation = "eager", "eager"
        config.use_cache, config.output_router_logits, config.dtype = False, False, torch.float32
        self.device = trainer.accelerator.device
        self.model = modeling.Qwen3_5MoeForCausalLM(config).to(self.device).eval()
        weights = {name: tensor.float() for name, tensor in export.tensors(trained)}
        if config.tie_word_embeddings:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        self.model.load_state_dict(weights)

    @torch.no_grad()
    def logits(self, ids: torch.Tensor) -> Iterator[torch.Tensor]:
        """[tokens - 1, vocabulary] of each sequence, one at a time."""
        with _torch_code():
            for row in ids.to(self.device):
                yield self.model(row[None]).logits[0, :-1].log_softmax(-1)

    def log_probs(self, ids: torch.Tensor) -> torch.Tensor:
        """Shape as `of_vllm`."""
        rows = zip(self.logits(ids), ids.to(self.device), strict=True)
        return torch.stack([logits.gather(1, row[1:, None])[:, 0] for logits, row in rows]).cpu()

    def choices(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Whether each token is the most probable one, and by how many nats the first is before the second."""
        same, gaps = [], []
        for logits, row in zip(self.logits(ids), ids.to(self.device), strict=True):
            top = logits.topk(2, dim=-1)
            same.append(top.indices[:, 0] == row[1:])
            gaps.append(top.values[:, 0] - top.values[:, 1])
        return torch.stack(same).cpu(), torch.stack(gaps).cpu()


@contextmanager
def _torch_code() -> Iterator[None]:
    """transformers without our kernels and without the packages that it takes by itself where they are installed."""
    kernels.restore()
    kept = {name: getattr(modeling, name) for name in ("torch_chunk_gated_delta_rule", "causal_conv1d_fn")}
    try:
        for name, function in kept.items():
            setattr(modeling, name, inspect.unwrap(function))
        yield
    finally:
        for name, function in kept.items():
            setattr(modeling, name, function)
        kernels.install()


def difference(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    """Nats between two log-probabilities of each sequence [tokens]: of tokens, and of the means of sequences, which is
    what GSPO's ratio is made of."""
    by_token = [(a - b) for a, b in pairs]
    means = torch.stack([row.mean() for row in by_token]).abs()
    tokens = torch.cat(by_token).abs()
    return {
        "token_mean": tokens.mean().item(),
        "token_max": tokens.max().item(),
        "sequence_mean": means.mean().item(),
        "sequence_max": means.max().item(),
    }
