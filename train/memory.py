"""Memory of one GPU in each stage, by part and moment: an estimate from formulas; no torch.

Weights, gradients and optimizer states follow DeepSpeed 0.19.8, activations `activations.py`, the loss TRL 1.16's
chunked head. The moments of a stage are kept apart and the largest is its peak:

    loss        what the forward pass saved, and the workspace of the loss
    backward    layer by layer from the last: what is still saved, the layer at work, the gradients so far
    step        float32 gradients and the temporaries of the optimizer
    generation  (RL) the cache, and the prefill of all prompts of a rank

Not in it: the CUDA context, NCCL's buffers and what the allocator cannot use for fragmentation. `HEADROOM` is for them.
"""

from dataclasses import dataclass, field, replace

from transformers import Qwen3_5MoeTextConfig

from agentworld.train import activations
from agentworld.train.activations import Kernels
from agentworld.train.architecture import Parameters
from agentworld.train.config import Config, EngineSettings
from agentworld.train.engine import inference_settings
from agentworld.train.rollout_limits import uses_vllm

CARDS = {"80 GB": 79 << 30, "141 GB": 139 << 30}  # bytes that torch may use on an H100 80 GB and an H200
HEADROOM = 0.10  # share of a card that stays free
LOSS_TILE = (4096, 32768)  # tokens x vocabulary: trl/kernels/chunked_logprob.py TOKEN_CHUNK_SIZE, trl/trainer/utils.py
LIVE_ELEMENTS = 10**9  # deepspeed/runtime/zero/config.py: stage3_max_live_parameters, sub_group_size
BUCKET_ELEMENTS = 5 * 10**8  # the same: reduce_bucket_size
FLASH_HEAD = 256  # the widest head of FlashAttention: fused_layers.uses_packed_attention
ADAM_BYTES = 12  # float32 master copy and two moments of a parameter
STEP_BYTES = 8  # bfloat16 gradient, its flat copy and its float32 copy; then that copy and the root of a moment


@dataclass(frozen=True)
class Engine:
    """What of DeepSpeed decides memory. `bucket` (one or two buffers of a reduction), `live`, `sub_group`: elements.

    Left out, because they move less than the estimate is worth at sensible values: prefetching, which `live` limits,
    parameters too small to be split, and the buckets of the all-gather, which are views.
    """

    zero_stage: int
    expert_parallel: int = 1
    offload_optimizer: bool = False
    offload_parameters: bool = False
    bucket: int = BUCKET_ELEMENTS
    live: int = LIVE_ELEMENTS  # that ZeRO-3 keeps gathered
    sub_group: int = LIVE_ELEMENTS  # that the optimizer of ZeRO-3 steps at once
    float32_gradients: bool = False  # where they are summed over micro-batches
    float32_reduction: bool = False  # a bucket is cast for it

    @classmethod
    def of(cls, settings: EngineSettings) -> "Engine":
        """The engine of a recipe."""
        return cls(
            settings.zero_stage,
            settings.expert_parallel,
            settings.offload_optimizer != "none",
            settings.offload_param != "none",
            settings.reduce_bucket_size * (2 if settings.overlap_comm else 1),
            settings.stage3_max_live_parameters,
            settings.sub_group_size,
            settings.grad_accum_dtype == "float32",
            settings.communication_data_type == "float32",
        )


@dataclass(frozen=True)
class Batch:
    """What one rank holds at once: `rows` of `tokens`, so many labels, and whether attention needs a [T, T] mask."""

    rows: int
    tokens: int
    labels: int
    kernels: Kernels
    masked: bool

    @property
    def all_tokens(self) -> int:
        return self.rows * self.tokens


@dataclass(frozen=True)
class Memory:
    """Bytes of one GPU. `parts` are the largest each part gets, `moments` the sums; the peak is the largest moment."""

    parts: dict[str, int]
    moments: dict[str, int] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        return max(self.moments.values())

    @property
    def moment(self) -> str:
        return max(self.moments, key=self.moments.__getitem__)


def kernels_of(config: Config, packed: bool) -> Kernels:
    """Those that `kernels.install` takes on a GPU with fla, or on a CPU; `Stage` decides about the experts."""
    if config.engine.device != "cpu":
        return Kernels()
    return activations.ON_A_CPU if packed else replace(activations.ON_A_CPU, convolution="torch")


def batch_of(config: Config, stage: str) -> Batch:
    """A micro-batch at its largest: CPT and SFT join their rows to one packed row of which every token may be a label,
    RL pads prompt and completion. Only packed rows in half precision on a GPU do without a mask
    (`fused_layers.uses_packed_attention`)."""
    if stage == "rl":
        rl = config.rl
        tokens = config.data.rl_prompt_tokens + rl.max_completion_tokens
        labels = rl.completions_per_device * rl.max_completion_tokens
        return Batch(rl.completions_per_device, tokens, labels, kernels_of(config, packed=False), masked=True)
    tokens = getattr(config, stage).rows_per_device * getattr(config.data, f"{stage}_row_tokens")
    masked = config.engine.device == "cpu" or config.model.dtype == "float32"
    return Batch(1, tokens, tokens, kernels_of(config, packed=True), masked)


class Stage:
    """The memory of one stage on `ranks` GPUs."""

    def __init__(
        self, architecture: Qwen3_5MoeTextConfig, parameters: Parameters, engine: Engine, ranks: int, dtype: str
    ) -> None:
        self.architecture, self.parameters, self.engine = architecture, parameters, engine
        self.e = 2 if dtype == "bfloat16" else 4
        self.gradient = 4 if engine.float32_gradients else self.e  # bytes
        self.experts = parameters.parts["experts"] // engine.expert_parallel
        self.local = parameters.total - parameters.parts["experts"] + self.experts
        self.partition = -(-parameters.total // ranks)
        self.layer_experts = parameters.layer_experts // engine.expert_parallel
        # What ZeRO-3 makes a copy of to use it. A rank that has the whole of a parameter uses it where it is, unless
        # that is the CPU's memory (deepspeed/runtime/zero/partition_parameters.py:61, NoGatherHandle).
        elsewhere = engine.offload_parameters
        self.copied_experts = self.experts if ranks > engine.expert_parallel or elsewhere else 0
        self.copied = (self.local - self.experts + self.copied_experts) if ranks > 1 or elsewhere else 0
        self.linear = architecture.layer_types.count("linear_attention")

    def training(self, batch: Batch, recompute: str) -> Memory:
        """Loss, backward pass and step of a micro-batch, with a `model.recompute`."""
        engine, e = self.engine, self.e
        masked = batch.masked or self.architecture.head_dim > FLASH_HEAD
        batch = replace(batch, kernels=self._with_experts(batch.kernels), masked=masked)
        parts = self._states()
        saved, working = self._saved(batch, recompute)
        loss = self._loss(batch)
        mask = activations.attention_mask(batch.tokens, batch.rows, e)[0] if masked else 0
        parts |= {"activations": sum(saved) + max(working), "attention mask": mask, "loss": loss}
        held = parts["weights"] + parts["optimizer"] + parts["gathered"] + mask
        sharded = 0 if engine.zero_stage == 1 else parts["gradients"]
        moments = {"loss": held + sharded + sum(saved) + loss + (parts["buckets"] if engine.zero_stage == 3 else 0)}
        moments["backward"] = held + sharded + self._backward(saved, working) + parts["buckets"]
        if engine.zero_stage == 1:  # at the end: all gradients, the buffer of a bucket and the rank's own part
            moments["reduction"] = held + self.gradient * (self.local + self.partition) + parts["buckets"]
        moments["step"] = held - mask + self._step(parts)
        return Memory(parts, moments)

    def generation(self, rows: int, prompt: int, completion: int, kernels: Kernels, held: str = "trained") -> Memory:
        """Sampling for `rows` prompts of a rank at once, as transformers' `generate` does: all prompts in one prefill.

        Args:
            held: trained = in RL: the engine's states stay, and ZeRO-3 gathers what it has split (trl:
                ds3_gather_for_generation); whole = in evaluation: the model and nothing else; divided = there with
                `eval.divided`: this rank's part, and what ZeRO-3 has gathered for the layers at work.
        """
        e, c = self.e, self.architecture
        kernels = replace(kernels, experts="routed") if held == "whole" else self._with_experts(kernels)
        parts = self._states()
        if held == "whole":
            parts = dict.fromkeys(parts, 0) | {"weights": e * self.parameters.total}
        elif held == "divided":
            parts |= dict.fromkeys(("gradients", "optimizer", "buckets"), 0)
        elif self.engine.zero_stage == 3:
            parts["gathered"] = e * self.copied
        else:
            parts |= dict.fromkeys(("gradients", "buckets"), 0)
        attention = self.architecture.num_hidden_layers - self.linear
        keys = attention * 2 * c.num_key_value_heads * c.head_dim * e
        heads, key_dim, value_dim = c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
        channels = 2 * c.linear_num_key_heads * key_dim + heads * value_dim
        state = self.linear * (4 * heads * key_dim * value_dim + e * channels * c.linear_conv_kernel_dim)
        parts["cache"] = rows * ((prompt + completion) * keys + state)
        parts["attention mask"] = sum(activations.attention_mask(prompt, rows, e))
        parts["prefill"] = int(rows * prompt * activations.forward(c, e, kernels)) + rows * c.vocab_size * (e + 8)
        return Memory(parts, {"generation": sum(parts.values())})

    def _with_experts(self, kernels: Kernels) -> Kernels:
        """DeepSpeed's experts where they are divided, ours where they are not."""
        return replace(kernels, experts="autoep" if self.engine.expert_parallel > 1 else "routed")

    def _states(self) -> dict[str, int]:
        engine, e = self.engine, self.e
        split = engine.zero_stage == 3
        weights = self.partition if split else self.local
        gradients = self.local if engine.zero_stage == 1 else self.partition
        gathered = max(self.layer_experts if self.copied_experts else 0, min(engine.live, self.copied))
        return {
            "weights": 0 if engine.offload_parameters else e * weights,
            "gradients": 0 if engine.offload_optimizer and engine.zero_stage > 1 else self.gradient * gradients,
            "optimizer": 0 if engine.offload_optimizer else ADAM_BYTES * self.partition,
            "gathered": e * min(gathered, self.copied) if split else 0,
            "buckets": (e + (4 if engine.float32_reduction and e < 4 else 0)) * engine.bucket,
        }

    def _saved(self, batch: Batch, recompute: str) -> tuple[list[int], list[int]]:
        """Bytes of each layer from forward to backward pass, and what its backward pass needs beside, in the MoE block
        or in the mixer. What is recomputed keeps its input, and saves the rest at its turn: a layer all of it, a mixer
        when the backward pass of the MoE block is done."""
        c, e, tokens, degree = self.architecture, self.e, batch.all_tokens, self.engine.expert_parallel
        router, stream = tokens * activations.router_loss(c, e), tokens * e * c.hidden_size
        moe = activations.moe(c, e, batch.kernels, tokens, degree)
        gradients = e * self.layer_experts if self.engine.zero_stage > 1 else 0
        saved, working = [], []
        for kind in c.layer_types:
            inner = tokens * activations.layer(c, kind, e, batch.kernels, tokens, batch.masked, degree)
            mixer = tokens * activations.mixer(c, kind, e, batch.kernels, batch.masked)
            if kind == "full_attention" and batch.masked:
                copied = activations.attention_mask(batch.tokens, batch.rows, e)[1]
                inner, mixer = inner + copied, mixer + copied
            again = {"none": 0, "mixers": mixer - stream, "layers": inner}[recompute]
            kept = {"none": inner, "mixers": inner - again, "layers": stream}[recompute]
            in_moe = tokens * activations.backward_moe(c, e, batch.kernels) + (again if recompute == "layers" else 0)
            in_mixer = tokens * activations.backward_mixer(c, kind, e, batch.kernels, moe) + again
            saved.append(int(kept + router))
            working.append(int(max(in_moe, in_mixer) + gradients))
        return saved, working

    def _backward(self, saved: list[int], working: list[int]) -> int:
        """The widest moment from the last layer to the first; in stage 1 gradients grow as saved tensors go."""
        grown = self.gradient * self.parameters.parts["head"] if self.engine.zero_stage == 1 else 0
        remaining, widest = sum(saved), 0
        for number in reversed(range(len(saved))):
            widest = max(widest, remaining + working[number] + grown)
            remaining -= saved[number]
            if self.engine.zero_stage == 1:
                grown += self.gradient * (self.parameters.layers[number] + self.layer_experts)
        return max(widest, grown)

    def _loss(self, batch: Batch) -> int:
        """TRL's chunked head (trl/kernels/chunked_logprob.py): logits exist as one tile only. The labelled states and
        eight float32 numbers a label; a float32 and a final gradient of the states and of the head's weight."""
        c, e = self.architecture, self.e
        head = c.vocab_size * c.hidden_size
        cast = e if e < 4 else 0
        states = batch.labels * (c.hidden_size * (e + 4 + cast) + 32)
        final_norm = batch.all_tokens * (activations.norm(c.hidden_size, e, batch.kernels) + 2 * e * c.hidden_size)
        tile = min(batch.labels, LOSS_TILE[0]) * LOSS_TILE[1] * e
        return int(states + final_norm + head * (4 + cast) + tile)

    def _step(self, parts: dict[str, int]) -> int:
        """Gradients and temporaries of the optimizer: of the rank's partition at once, or in stage 3 by sub-group."""
        if self.engine.offload_optimizer:
            return parts["gradients"] + parts["buckets"]
        if self.engine.zero_stage == 3:
            return parts["gradients"] + parts["buckets"] + STEP_BYTES * min(self.engine.sub_group, self.partition)
        whole = parts["gradients"] if self.engine.zero_stage == 1 else 0
        return STEP_BYTES * self.partition + whole


def rows_per_rank(config: Config, ranks: int) -> int:
    """Completions that one rank samples at once in a rollout."""
    rows = -(-config.rl.prompts_per_rollout * config.rl.num_generations // ranks)
    return min(rows, config.rl.rollout.batch_size or rows)


def stages_of(config: Config) -> list[str]:
    """The stages that a run trains."""
    return [config.stage] if config.stage in ("cpt", "sft", "rl") else ["cpt", "sft", "rl"]


def estimate(
    config: Config, architecture: Qwen3_5MoeTextConfig, parameters: Parameters, engine: Engine, ranks: int
) -> dict[str, Memory]:
    """The memory of each stage of a run; RL is its training beside its sampling, unless vLLM samples."""
    stage = Stage(architecture, parameters, engine, ranks, config.model.dtype)
    found = {name: stage.training(batch_of(config, name), config.model.recompute) for name in stages_of(config)}
    if "rl" in found and not uses_vllm(config.rl.rollout):
        sampling = stage.generation(
            rows_per_rank(config, ranks),
            config.data.rl_prompt_tokens,
            config.rl.max_completion_tokens,
            kernels_of(config, packed=False),
        )
        both = {
            part: max(found["rl"].parts.get(part, 0), sampling.parts.get(part, 0))
            for part in {**found["rl"].parts, **sampling.parts}
        }
        found["rl"] = Memory(both, found["rl"].moments | sampling.moments)
    return found


def evaluation(config: Config, architecture: Qwen3_5MoeTextConfig, parameters: Parameters, ranks: int) -> Memory:
    """The memory of an evaluation or of the pilot (train/generation.py): the whole model on each rank, or a part."""
    settings = config.eval
    prompt, completion = settings.prompt_tokens or config.data.rl_prompt_tokens, settings.max_new_tokens
    if config.rl.pilot_completions and "rl" in stages_of(config):
        prompt = max(prompt, config.data.rl_prompt_tokens)
        completion = max(completion, config.rl.max_completion_tokens)
    engine, held = Engine(1), "whole"
    if settings.divided:
        engine, held = Engine.of(inference_settings(config.engine)), "divided"
    stage = Stage(architecture, parameters, engine, ranks, config.model.dtype)
    return stage.generation(settings.batch_size, prompt, completion, kernels_of(config, packed=False), held)
