"""What tests/test_engine_matrix.py runs on two gloo ranks, and the same in plain transformers and torch: the oracle.

All cases of a pair of ranks run in one pair of processes; starting them takes longer than most cases.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen3_5MoeForCausalLM

from agentworld.train import model, recompute
from agentworld.train.config import ArchitectureSettings, EngineSettings, ModelSettings

FRESH = 8  # steps on data that was not seen before; with the balance loss a run ends there
STEPS = 12  # the last 4 see the first batches again: they show the updates
ROWS, TOKENS, VOCABULARY, EXPERTS = 4, 48, 64, 8
BALANCE = 0.1  # coefficient of the balance loss where it is on: large, a wrong one must not hide
LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
LENGTHS = (31, 48, 17, 40)  # of the padded rows


class Vocabulary:
    pad_token_id, eos_token_id = 0, 1

    def __len__(self) -> int:
        return VOCABULARY


def build() -> Qwen3_5MoeForCausalLM:
    """One Gated DeltaNet and one attention layer; a sharp router, so that few choices hang on the last digit."""
    sizes = ArchitectureSettings(
        hidden_size=64, num_hidden_layers=2, full_attention_interval=2, num_experts=EXPERTS, moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    )  # fmt: skip
    built = model.build(ModelSettings(dtype="float32", architecture=sizes), Vocabulary(), seed=0)
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.ndim > 1:
                spread = 0.3 if name.endswith("mlp.gate.weight") else 0.08
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * spread)
    return built


def build_with_ties() -> Qwen3_5MoeForCausalLM:
    """All experts have the same score for every token."""
    built = build()
    with torch.no_grad():
        for layer in built.model.layers:
            layer.mlp.gate.weight.zero_()
    return built


def build_divided() -> Qwen3_5MoeForCausalLM:
    """Token 2 goes to experts 2 and 3 in every layer, token 3 to experts 6 and 7: the other half never gets a token."""
    built = build()
    direction = torch.ones(built.config.hidden_size)
    with torch.no_grad():
        for parameter in built.model.layers.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.05)  # what a layer adds must not turn the direction
        built.model.embed_tokens.weight[2], built.model.embed_tokens.weight[3] = direction, -direction
        strength = torch.tensor([0.01, 0.02, 0.05, 0.06])
        for layer in built.model.layers:
            layer.mlp.gate.weight.copy_(torch.outer(torch.cat([strength, -strength]), direction))
    return built


def batches() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(7)
    return [torch.randint(3, VOCABULARY, (ROWS, TOKENS), generator=draw) for _ in range(FRESH)]


def padded_batch() -> dict[str, torch.Tensor]:
    """Rows of `LENGTHS` tokens, padded on the right to TOKENS + 8."""
    draw = torch.Generator().manual_seed(8)
    ids = torch.randint(3, VOCABULARY, (ROWS, TOKENS + 8), generator=draw)
    mask = (torch.arange(TOKENS + 8) < torch.tensor(LENGTHS)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def divided_batch(tokens: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """A row of one repeated token each, labels at random."""
    draw = torch.Generator().manual_seed(9)
    ids = torch.tensor(tokens)[:, None].expand(ROWS, TOKENS).contiguous()
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.randint(3, VOCABULARY, ids.shape, generator=draw),
    }


# --- the oracle: plain transformers, one row at a time, no DeepSpeed


def trajectory(micro_batches: int, balance: float) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of torch's AdamW in one process."""
    plain = build()
    plain.router_aux_loss_coef = balance
    optimizer = torch.optim.AdamW(plain.parameters(), LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY)
    losses, norms, data = [], [], batches()
    for step in range(FRESH if balance else STEPS):
        total = 0.0
        for ids in data[step % len(data)].chunk(micro_batches):
            loss = plain(ids, labels=ids, use_cache=False, output_router_logits=balance > 0).loss / micro_batches
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(nn.utils.clip_grad_norm_(plain.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms


def naive_losses(plain: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cross-entropy over the labels of a batch, its balance loss (Switch Transformer, arXiv:2101.03961, equations 4 to
    6, over all layers and tokens), and the counts [layers, experts]; each row alone and without its padding."""
    cross_entropies, logits = [], []
    for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
        length = int(mask.sum())
        out = plain(ids[None, :length], use_cache=False, output_router_logits=True)
        cross_entropies.append(F.cross_entropy(out.logits[0, :-1], labels[1:length], reduction="none"))
        logits.append(torch.stack(out.router_logits))  # [layers, tokens, experts]
    probabilities = torch.cat(logits, dim=1).softmax(-1)
    top_k = plain.config.num_experts_per_tok
    counts = torch.zeros(len(probabilities), EXPERTS, dtype=torch.int64)
    for layer, rows in enumerate(probabilities):
        for row in rows:
            for expert in row.topk(top_k).indices.tolist():
                counts[layer, expert] += 1
    tokens = probabilities.shape[0] * probabilities.shape[1]
    balance = EXPERTS * ((counts.sum(0) / tokens) * (probabilities.sum((0, 1)) / tokens)).sum()
    return torch.cat(cross_entropies).mean(), balance, counts


def halves(batch: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """What each of two ranks gets."""
    return [{name: value.chunk(2)[rank] for name, value in batch.items()} for rank in range(2)]


# --- the same through the engine, on two ranks


def wrapped(settings: EngineSettings, built: nn.Module, rows: int, accumulation: int, **optimizer) -> Any:
    """A DeepSpeed engine around `built` from the configuration of `train.engine`, "auto" filled as the trainer does."""
    import deepspeed

    from agentworld.train import engine

    config = engine.deepspeed_config(settings, ModelSettings(dtype="float32"))
    config |= {
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": rows * accumulation * engine.world_size(),
        "gradient_clipping": 0.0 if optimizer else CLIP,
    }
    adam = {"lr": LEARNING_RATE, "betas": BETAS, "eps": EPSILON, "weight_decay": WEIGHT_DECAY}
    config["optimizer"]["params"] |= adam
    if optimizer:
        config |= {"optimizer": optimizer, "zero_allow_untested_optimizer": True}
    made, *_ = deepspeed.initialize(model=built, config=config, model_parameters=built.parameters())
    engine.require_expert_parallel(made.module, settings.expert_parallel)
    return made


def settings_of(stage: int, degree: int) -> EngineSettings:
    """Buckets far smaller than the model, so that it takes several."""
    return EngineSettings(zero_stage=stage, expert_parallel=degree, device="cpu", reduce_bucket_size=20_000)


def all_split(degree: int) -> EngineSettings:
    """ZeRO-3 that splits every parameter; by default those of so small a model stay whole on each rank."""
    return replace(settings_of(3, degree), stage3_param_persistence_threshold=0)


def prepare(built: Qwen3_5MoeForCausalLM, recomputed: str) -> None:
    """What the stages do for `model.recompute`."""
    if recomputed == "layers":
        built.activation_checkpointing_enable({"use_reentrant": False})
    if recomputed == "mixers":
        recompute.recompute_mixers(built)


def trajectory_on_ranks(
    settings: EngineSettings, accumulation: int, balance: float, recomputed: str = "none"
) -> dict[str, list[float]]:
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = ROWS // ranks // accumulation
    built = build()
    built.router_aux_loss_coef = balance
    prepare(built, recomputed)
    made = wrapped(settings, built.train(), rows, accumulation)
    losses, norms, data = [], [], batches()
    for step in range(FRESH if balance else STEPS):
        total = torch.zeros(())
        for micro in range(accumulation):
            ids = data[step % len(data)].split(rows)[micro * ranks + rank]
            loss = made(input_ids=ids, labels=ids, use_cache=False, output_router_logits=balance > 0).loss
            made.backward(loss)
            made.step()
            total += loss.detach() / accumulation / ranks
        dist.all_reduce(total)
        losses.append(total.item())
        norms.append(float(made.get_global_grad_norm()))
    made.destroy()
    return {"losses": losses, "norms": norms}


def matrix() -> dict[str, dict[str, list[float]]]:
    """ZeRO {1, 2, 3} x expert parallelism {1, 2} x accumulation {1, 2} x balance loss {off, on}; and mixers that are
    computed again under ZeRO-3, which from the second step on fetches parameters in the order of the first."""
    start()
    again = {"3-2-2-0.0-mixers": trajectory_on_ranks(all_split(2), 2, 0.0, "mixers")}
    return again | {
        f"{stage}-{degree}-{accumulation}-{balance}": trajectory_on_ranks(
            settings_of(stage, degree), accumulation, balance
        )
        for stage in (1, 2, 3)
        for degree in (1, 2)
        for accumulation in (1, 2)
        for balance in (0.0, BALANCE)
    }


def start() -> None:
    from agentworld.train import engine

    torch.set_num_threads(1)
    engine.start_rank(EngineSettings(device="cpu"))


def whole(parameter: nn.Parameter) -> torch.Tensor:
    import deepspeed

    if not hasattr(parameter, "ds_id"):
        return parameter.detach().clone()
    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def local_parts(
    module: nn.Module, reference: dict[str, torch.Tensor]
) -> Iterator[tuple[str, nn.Parameter, torch.Tensor]]:
    """Each parameter of this rank beside the part of the plain model's tensor that it stands for."""
    layers = dict(module.named_modules())
    for name, parameter in module.named_parameters():
        prefix, found, part = name.partition(".mlp.experts.w")
        if not found:
            plain = name.replace("mlp.router.gate.", "mlp.gate.").replace("mlp.gate.gate.", "mlp.gate.")
            plain = plain.replace("mlp.shared_experts", "mlp.shared_expert")
            yield plain, parameter, reference[plain]
            continue
        layer = layers[f"{prefix}.mlp"]
        mine = slice(layer.ep_rank * layer.num_local_experts, (layer.ep_rank + 1) * layer.num_local_experts)
        gate_up, down = (reference[f"{prefix}.mlp.experts.{kind}_proj"][mine] for kind in ("gate_up", "down"))
        width = gate_up.shape[1] // 2
        yield name, parameter, {"1": gate_up[:, :width], "3": gate_up[:, width:], "2": down}[part]


def one_step(builder, batch: dict[str, torch.Tensor], stage: int, degree: int, recomputed: str) -> dict[str, Any]:
    """A step of SGD with learning rate 1: the change of the weights is the gradient. Compared with the oracle's.

    Returns the largest difference of the logits of real tokens and of the balance loss, the parameter whose gradient is
    off by most (relative to the largest entry of its reference), the router load beside the naive counts, and a number
    that changes with any gradient.
    """
    import torch.distributed as dist

    from agentworld.train.router_load import RouterLoad

    plain = builder()
    expected = [naive_losses(plain, half) for half in halves(batch)]
    (sum(ce + BALANCE * balance for ce, balance, _ in expected) / 2).backward()
    gradients = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in plain.named_parameters()}
    before = {name: p.detach().clone() for name, p in plain.named_parameters()}

    built = builder()
    built.router_aux_loss_coef = BALANCE
    prepare(built, recomputed)
    settings = all_split(degree) if recomputed == "mixers" else settings_of(stage, degree)
    made = wrapped(settings, built.train(), ROWS // 2, 1, type="SGD", params={"lr": 1.0})
    load = RouterLoad(made.module, torch.device("cpu"))
    mine = halves(batch)[dist.get_rank()]
    out = made(**mine, use_cache=False, output_router_logits=True)
    with torch.no_grad():  # an evaluation between the two: not counted
        alone = plain(**mine, use_cache=False)
        made(**mine, use_cache=False)
    made.backward(out.loss)
    made.step()
    worst, total = ("", 0.0), 0.0
    old = {id(parameter): tensor for _, parameter, tensor in local_parts(made.module, before)}
    for name, parameter, gradient in local_parts(made.module, gradients):
        found = old[id(parameter)] - whole(parameter)
        error = ((found - gradient).abs().max() / gradient.abs().max().clamp(min=1e-3)).item()
        total += found.double().abs().sum().item()
        worst = max(worst, (name, error), key=lambda item: item[1])
    counted = load.take()
    load.remove()
    made.destroy()
    real = mine["attention_mask"].bool()
    return {
        "logits": (out.logits - alone.logits)[real].abs().max().item(),
        "balance": abs(out.aux_loss.item() - expected[dist.get_rank()][1].item()),
        "unbalanced": out.aux_loss.item(),
        "worst": worst,
        "gradient": total,
        "counted": counted.tolist(),
        "counts": sum(counts for *_, counts in expected).tolist(),
    }


def steps() -> dict[str, dict[str, Any]]:
    start()
    found = {}
    for stage in (1, 2, 3):
        for degree in (1, 2):
            for recomputed in ("none", "layers"):
                found[f"padded-{stage}-{degree}-{recomputed}"] = one_step(
                    build, padded_batch(), stage, degree, recomputed
                )
    found["padded-3-1-mixers"] = one_step(build, padded_batch(), 3, 1, "mixers")
    for stage, degree in ((1, 1), (3, 2)):
        for recomputed in ("none", "layers"):
            found[f"ties-{stage}-{degree}-{recomputed}"] = one_step(
                build_with_ties, padded_batch(), stage, degree, recomputed
            )
    for stage in (1, 2, 3):  # rank 0 holds experts 0 to 3: each rank's tokens need the other's, then only rank 0's
        found[f"crossed-{stage}"] = one_step(build_divided, divided_batch((3, 3, 2, 2)), stage, 2, "none")
        found[f"one-sided-{stage}"] = one_step(build_divided, divided_batch((2, 2, 2, 2)), stage, 2, "none")
    found["unmatched"] = {"refusal": unmatched()}
    return found


def unmatched() -> str:
    """What a start says when AutoEP finds no block of experts."""
    from deepspeed.module_inject import auto_ep

    from agentworld.data.errors import RequestError

    original = auto_ep.AutoEP.ep_parser
    auto_ep.AutoEP.ep_parser = lambda self: []
    try:
        wrapped(settings_of(3, 2), build(), ROWS // 2, 1)
    except RequestError as error:
        return str(error)
    finally:
        auto_ep.AutoEP.ep_parser = original
    return "nothing"
