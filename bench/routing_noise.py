"""How far bfloat16 is from float32 in the log-probabilities of a random model, and how much of that is other experts.

Two engines that compute the same model in bfloat16 round differently; a hidden state that is off by a little now and
then takes another expert, and is then off by much. The same model and tokens in bfloat16, in float32, and in bfloat16
with the experts and weights that float32 chose; plain torch code on the CPU, one process, no vLLM.

    python -m bench.routing_noise
"""

import argparse
import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

from agentworld.train import model
from agentworld.train.compose import compose
from bench import vllm_rollouts
from bench.random_policy import drawn, random_tokenizer
from bench.vllm_probabilities import difference

Routes = list[tuple[torch.Tensor, ...]]  # of each layer: logits, weights and experts of each token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", choices=list(vllm_rollouts.WIDTHS), default="small")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    print(json.dumps(measure(options.widths, options.sequences, options.tokens), indent=1))


def measure(widths: str, sequences: int, tokens: int) -> dict:
    """Nats between bfloat16 and float32, free and with float32's routes, and the share of tokens routed otherwise."""
    config = compose(vllm_rollouts.overrides(widths, vllm_rollouts.SIZES, vllm_rollouts.COLOCATED))
    tokenizer = random_tokenizer()
    ids = drawn(tokenizer, (sequences, tokens), torch.Generator().manual_seed(1))
    rounded = model.build(config.model, tokenizer, seed=0).eval()
    exact = copy.deepcopy(rounded).float()
    with routes() as of_exact:
        expected = log_probs(exact, ids)
    with routes() as own:
        free = log_probs(rounded, ids)
    with routes(of_exact):
        forced = log_probs(rounded, ids)
    return {
        "bfloat16": difference(list(zip(free, expected, strict=True))),
        "bfloat16, routes of float32": difference(list(zip(forced, expected, strict=True))),
        "tokens_routed_otherwise": [other_experts(*pair) for pair in zip(own, of_exact, strict=True)],
    }


@torch.no_grad()
def log_probs(policy: modeling.Qwen3_5MoeForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """[sequences, tokens - 1] in nats."""
    found = policy(ids, use_cache=False).logits[:, :-1].float().log_softmax(-1)
    return found.gather(2, ids[:, 1:, None])[..., 0]


@contextmanager
def routes(given: Routes | None = None) -> Iterator[Routes]:
    """What the routers choose, layer by layer; with `given` they choose that instead."""
    seen: Routes = []
    product = modeling.Qwen3_5MoeTopKRouter.forward

    def router(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen = product(self, hidden_states)
        if given is not None:
            place = given[len(seen)]
            chosen = tuple(old.to(new.dtype) for old, new in zip(place, chosen, strict=True))
        seen.append(chosen)
        return chosen

    modeling.Qwen3_5MoeTopKRouter.forward = router
    try:
        yield seen
    finally:
        modeling.Qwen3_5MoeTopKRouter.forward = product


def other_experts(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> float:
    """Share of the tokens whose experts are not the same ones, in any order."""
    return (a[2].sort(-1).values != b[2].sort(-1).values).any(-1).float().mean().item()


if __name__ == "__main__":
    main()
