"""The recipe schema: every key of every recipe, typed, with its default. Imports no torch.

`compose.py` builds a `Config` from `recipes/` and the command line; `validate` refuses contradictions.
Units stand beside the fields; where a default comes from the paper, the section is named.
"""

from dataclasses import dataclass, field

from agentworld.data.settings import DataSettings
from agentworld.rewards.settings import RewardSettings
from agentworld.slurm.settings import ClusterSettings

STAGES = ("base", "cpt", "sft", "rl")  # in the order of a run; `base` is the untrained start


@dataclass
class RunSettings:
    name: str = ""  # empty = <recipe>-<UTC time>-<4 hex>
    root: str = "runs"


@dataclass
class ArchitectureSettings:
    """`transformers.Qwen3_5MoeTextConfig` fields of a model that is built with random weights (`model.path` empty)."""

    hidden_size: int = 128
    num_hidden_layers: int = 4
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    linear_num_key_heads: int = 4
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 32
    linear_value_head_dim: int = 32
    num_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 64
    shared_expert_intermediate_size: int = 128
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02  # standard deviation of the weights


@dataclass
class ModelSettings:
    path: str = ""  # Hugging Face directory to start from; empty = build `architecture` with random weights
    architecture: ArchitectureSettings = field(default_factory=ArchitectureSettings)
    dtype: str = "bfloat16"  # float32 | bfloat16
    # What the backward pass computes again instead of keeping it (activation checkpointing).
    recompute: str = "none"  # none | mixers: attention and Gated DeltaNet | layers
    export_layout: str = "text"  # text | release: hand-offs as the text class, or as the released multimodal checkpoint


@dataclass
class EngineSettings:
    """DeepSpeed. From `reduce_bucket_size` on, keys have DeepSpeed's names, and its defaults unless stated; a key that
    the chosen stage or degree would not read is refused. Activation checkpointing is `model.recompute`."""

    zero_stage: int = 1  # DeepSpeed ZeRO 1 | 2 | 3
    expert_parallel: int = 1  # AutoEP degree; 1 = off
    device: str = "auto"  # auto | cpu
    compiled_adam: bool = False  # DeepSpeed's own Adam, compiled at first use (nvcc on a GPU, g++ under offload)
    reduce_bucket_size: int = 500_000_000  # elements
    overlap_comm: bool = False  # reduce gradients beside the backward pass; DeepSpeed's default in stage 3: true
    contiguous_gradients: bool = True
    communication_data_type: str = "auto"  # auto (model.dtype) | float32 | bfloat16: of reduced gradients
    grad_accum_dtype: str = "auto"  # auto (model.dtype) | float32: of gradients summed over micro-batches
    allgather_bucket_size: int = 500_000_000  # elements; stages 1, 2
    round_robin_gradients: bool = False  # stages 1, 2
    stage3_prefetch_bucket_size: int = 50_000_000  # elements fetched ahead
    stage3_param_persistence_threshold: int = 100_000  # elements; smaller parameters stay whole on every rank
    stage3_max_live_parameters: int = 1_000_000_000  # elements
    stage3_max_reuse_distance: int = 1_000_000_000  # elements
    sub_group_size: int = 1_000_000_000  # elements of one optimizer step; stage 3
    offload_optimizer: str = "none"  # none | cpu: optimizer states in CPU memory, where its step is computed, too
    offload_param: str = "none"  # none | cpu: partitioned parameters in CPU memory; stage 3
    pin_memory: bool = True  # page-locked memory for what is offloaded
    use_grouped_mm: bool = True  # expert parallelism: torch._grouped_mm for the experts
    gate_up_impl: str = "separate"  # separate | fused: expert parallelism, gate and up projection in one product
    combine_impl: str = "weighted_sum"  # weighted_sum | fused_weighted_sum (Triton): expert parallelism
    async_split_plan: bool = False  # expert parallelism on a GPU: exchange the counts beside the packing


@dataclass
class StageSettings:
    """What CPT, SFT and RL share. A step is one optimizer step."""

    learning_rate: float = 1e-5
    max_steps: int = 1000
    warmup_steps: int = 20
    lr_scheduler: str = "cosine"  # cosine | constant
    min_lr_ratio: float = 0.05  # the cosine ends at this share of the learning rate
    weight_decay: float = 0.1
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    max_grad_norm: float = 1.0
    router_aux_loss_coef: float = 0.001
    save_steps: int = 100
    save_total_limit: int = 2


@dataclass
class CptSettings(StageSettings):
    rows_per_device: int = 1  # packed rows in one micro-batch of one rank
    gradient_accumulation_steps: int = 1


@dataclass
class SftSettings(StageSettings):
    rows_per_device: int = 1
    gradient_accumulation_steps: int = 1


@dataclass
class RolloutSettings:
    """What samples the completions of RL. From `server_base_url` on, keys are TRL's `vllm_*` arguments with its
    defaults (trl/trainer/grpo_config.py); a key that the chosen engine would not read is refused."""

    engine: str = "transformers"  # transformers (in the training engine) | vllm_server | vllm_colocate (same GPUs)
    batch_size: int = 0  # prompts a rank samples for at once, sorted by length; 0 = all; vLLM batches by itself
    server_base_url: str = ""  # vllm_server: http://HOST:PORT; empty = server_host and server_port
    server_host: str = "0.0.0.0"
    server_port: int = 8000
    server_timeout: float = 240.0  # seconds to wait for the server to be up
    group_port: int = 51216  # of the group over which weights are sent
    gpu_memory_utilization: float = 0.3  # vllm_colocate: share of each GPU for vLLM's weights and cache
    tensor_parallel_size: int = 1  # vllm_colocate: GPUs of one vLLM engine
    max_model_length: int = 0  # vllm_colocate: tokens; 0 = data.rl_prompt_tokens + rl.max_completion_tokens
    enable_sleep_mode: bool = False  # vllm_colocate: vLLM gives its memory back while the model is trained
    importance_sampling_correction: bool = True  # weigh by training over sampling probability, as vLLM's differ
    importance_sampling_mode: str = "sequence_mask"  # token_truncate | token_mask | sequence_truncate | sequence_mask
    importance_sampling_clip_max: float = 3.0  # largest weight, of a sequence or token; 0 = no bound
    importance_sampling_clip_min: float = 0.0  # smallest weight; 0 = no bound


@dataclass
class RlSettings(StageSettings):
    """GSPO (arXiv:2507.18071). A rollout is prompts_per_rollout x num_generations completions, used in `mini_batches`
    optimizer steps, over all ranks."""

    prompts_per_rollout: int = 64
    num_generations: int = 8
    mini_batches: int = 4
    completions_per_device: int = 16  # sequences in one micro-batch of one rank
    epsilon: float = 3e-4
    epsilon_high: float = 4e-4
    beta: float = 0.0  # KL coefficient
    temperature: float = 1.0
    max_completion_tokens: int = 256
    mask_truncated_completions: bool = False  # true: what reaches the limit leaves group and loss; false: it scores 0
    # Before RL its start samples so many completions a prompt, as RL does, and prompts on which nothing can be learnt
    # are dropped (train/pilot_groups.py says which); 0 = no pilot.
    pilot_completions: int = 0
    drop_solved: bool = True  # prompts whose pilot completions all have the highest reward
    drop_hopeless: bool = True  # prompts whose pilot completions all have the lowest
    domain_weights: dict[str, float] = field(default_factory=dict)  # {terminal: 2, swe: 1}; empty = as the data are
    rollout: RolloutSettings = field(default_factory=RolloutSettings)


@dataclass
class EvalSettings:
    examples: int = 200  # held-out turns, one a trajectory
    prompt_tokens: int = 0  # longest prompt, in RL's form; 0 = data.rl_prompt_tokens
    batch_size: int = 32
    max_new_tokens: int = 256
    divided: bool = False  # true: ZeRO-3 and expert_parallel divide the model over the ranks; false: each has all
    prompt: str = "stage"  # stage = the form each stage was trained in; rl = the RL form for all
    reward_examples: int = 64  # held-out turns on which the RL reward is sampled
    reward_draws: int = 4  # samples a turn at temperature 1


@dataclass
class WandbSettings:
    mode: str = "offline"  # online | offline | disabled
    project: str = "agentworld"


@dataclass
class Config:
    recipe: str = ""
    stage: str = "all"  # all | data | cpt | sft | rl | eval
    seed: int = 0
    nproc: int = 0  # processes of this node; 0 = one a visible GPU, one on a CPU
    resume: bool = False
    overwrite: bool = False
    run: RunSettings = field(default_factory=RunSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    data: DataSettings = field(default_factory=DataSettings)
    reward: RewardSettings = field(default_factory=RewardSettings)
    cpt: CptSettings = field(default_factory=CptSettings)
    sft: SftSettings = field(default_factory=SftSettings)
    rl: RlSettings = field(default_factory=RlSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    wandb: WandbSettings = field(default_factory=WandbSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)  # of `agentworld submit`
