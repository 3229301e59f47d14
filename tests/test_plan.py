"""`agentworld plan`: counts, memory, work, checks, and what it prints."""

import itertools
import json
from argparse import Namespace
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from agentworld.data.errors import RequestError
from agentworld.train import activations, compute, fitting, kernels, memory, plan, recompute
from agentworld.train.architecture import count, text_config
from agentworld.train.cli import main
from agentworld.train.compose import compose, options
from agentworld.train.model import architecture_fields
from bench import full_depth_setup, plan_memory

kernels.install()
RELEASED = ["recipe=agentworld-35b-a3b"]
UNPLANNED = {"inputs", "model", "RL prompts", "disk"}  # checks that fail for what is not on this machine


@pytest.fixture(scope="module")
def released() -> plan.Plan:
    return plan.make(compose(RELEASED))


def test_parameters_of_the_released_size(released):
    """engine-independent facts of the released text model: 34,660,610,688 in all, 3,454,988,928 active."""
    counted = released.parameters
    assert (counted.total, counted.active) == (34_660_610_688, 3_454_988_928)
    assert counted.parts["experts"] == 32_212_254_720 and counted.parts["head"] == 508_559_360
    assert counted.multiplied == counted.active - 508_559_360
    assert sum(counted.layers) + 40 * counted.layer_experts + 2 * 508_559_360 + 2048 == counted.total


def test_the_larger_size_is_the_published_one():
    counted = count(text_config(compose(["recipe=agentworld-397b-a17b"]))[0])
    assert round(counted.total / 1e9) == 396 and round(counted.active / 1e9) == 17


def test_a_directory_decides_the_architecture(tmp_path):
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_experts": 8, "vocab_size": 333}
    written = {"model_type": "qwen3_5_moe", "text_config": {"model_type": "qwen3_5_moe_text", **sizes}}
    (tmp_path / "config.json").write_text(json.dumps(written))
    architecture, source = text_config(compose([*RELEASED, f"model.path={tmp_path}"]))
    assert {key: getattr(architecture, key) for key in sizes} == sizes and source == str(tmp_path / "config.json")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(RequestError, match=r"model_type llama is not qwen3_5_moe_text"):
        text_config(compose([*RELEASED, f"model.path={tmp_path}"]))


@pytest.mark.parametrize("name", options("recipe"))
def test_every_recipe_is_planned_to_fit(name):
    """All that may fail here is what this machine lacks."""
    made = plan.make(compose([f"recipe={name}"]))
    assert {check.name for check in made.failed} <= UNPLANNED
    limit = {"agentworld-35b-a3b": "80 GB", "agent-warmup-35b": "80 GB"}.get(name, "141 GB")
    assert all(used.peak <= fitting.usable(limit) for used in made.stages.values())


def test_an_evaluation_holds_the_whole_model_or_a_part_and_one_layer_of_it(released):
    """By hand: bfloat16 weights of all 64 ranks together, and what ZeRO-3 has gathered of them; no state of training.
    Cache, mask and prefill are the same."""
    more = ["eval.prompt_tokens=4096", "engine.stage3_max_live_parameters=10"]
    made = {
        divided: plan.make(compose([*RELEASED, *more, f"eval.divided={divided}"])).evaluation
        for divided in ("true", "false")
    }
    total, layer = released.parameters.total, released.parameters.layer_experts // 8
    assert made["false"].parts["weights"] == 2 * total and made["true"].parts["weights"] == 2 * -(-total // 64)
    assert made["true"].parts["gathered"] == 2 * layer and made["false"].parts["gathered"] == 0
    for part in ("gradients", "optimizer", "buckets"):
        assert made["true"].parts[part] == made["false"].parts[part] == 0
    for part in ("cache", "attention mask"):
        assert made["true"].parts[part] == made["false"].parts[part] > 0
    piloted = {
        stage: plan.make(compose([*RELEASED, f"stage={stage}", "rl.pilot_completions=2"])).evaluation
        for stage in ("cpt", "rl")
    }
    assert piloted["rl"].parts["attention mask"] > piloted["cpt"].parts["attention mask"], "no pilot without RL"
    longer = plan.make(compose([*RELEASED, "eval.prompt_tokens=8192"])).evaluation
    assert longer.parts["attention mask"] == 4 * made["false"].parts["attention mask"], "the limit of evaluation counts"


def test_states_are_split_as_zero_splits_them(released):
    """By hand for 64 ranks: 2 + 2 + 12 bytes a parameter over all ranks, whatever the degree of expert parallelism."""
    total = released.parameters.total
    parts = released.stages["cpt"].parts
    assert parts["weights"] == parts["gradients"] == 2 * -(-total // 64)
    assert parts["optimizer"] == 12 * -(-total // 64)
    one = memory.Stage(released.architecture, released.parameters, memory.Engine(1, 8), 64, "bfloat16")._states()
    assert one["weights"] == one["gradients"] == 2 * (total - released.parameters.parts["experts"] * 7 // 8)
    two = memory.Stage(released.architecture, released.parameters, memory.Engine(2, 8), 64, "bfloat16")._states()
    assert (two["weights"], two["gradients"]) == (one["weights"], parts["gradients"])


@pytest.mark.parametrize("zero", [1, 3])
def test_the_moments_of_a_step_by_hand(released, zero):
    """Which parts stand beside each other: ZeRO-3 keeps its part of the gradients through a step, ZeRO-1 makes whole
    ones in the backward pass and reduces them with one buffer at its end."""
    engine = memory.Engine(zero, 8)
    stage = memory.Stage(released.architecture, released.parameters, engine, 64, "bfloat16")
    batch = memory.batch_of(released.config, "rl")
    batch = replace(batch, kernels=replace(batch.kernels, experts="autoep"))
    found = stage.training(batch, "layers")
    parts, (saved, working) = found.parts, stage._saved(batch, "layers")
    assert parts["activations"] == sum(saved) + max(working) and parts["attention mask"] > 0
    states = parts["weights"] + parts["optimizer"] + parts["gathered"]
    forward = states + parts["attention mask"]
    local = released.parameters.total - released.parameters.parts["experts"] * 7 // 8
    rank = -(-released.parameters.total // 64)
    if zero == 3:
        kept = parts["gradients"] + parts["buckets"]
        expected = {"loss": forward + kept + sum(saved) + parts["loss"], "step": states + kept + 8 * rank}
        expected["backward"] = forward + kept + stage._backward(saved, working)
    else:
        expected = {"loss": forward + sum(saved) + parts["loss"], "step": states + 2 * local + 8 * rank}
        expected["backward"] = forward + stage._backward(saved, working) + parts["buckets"]
        expected["reduction"] = forward + 2 * (local + rank) + parts["buckets"]
    assert found.moments == expected


def test_offloaded_states_and_batches_by_hand(released):
    """ZeRO-1 keeps its gradients on the GPU though the optimizer is in CPU memory; ZeRO-2 does not."""
    local = released.parameters.total - released.parameters.parts["experts"] * 7 // 8
    config = deepcopy(released.config)
    config.rl.completions_per_device, config.rl.rollout.batch_size = 2, 1000
    batch = memory.batch_of(config, "rl")
    assert (batch.rows, batch.tokens, batch.labels) == (2, 32768 + 4096, 2 * 4096)
    assert memory.rows_per_rank(config, 64) == 8, "no more than there are"
    for zero, gradients in ((1, 2 * local), (2, 0)):
        engine = memory.Engine(zero, 8, offload_optimizer=True)
        stage = memory.Stage(released.architecture, released.parameters, engine, 64, "bfloat16")
        found = stage.training(batch, "layers")
        assert (found.parts["gradients"], found.parts["optimizer"]) == (gradients, 0)
        assert found.moments["step"] == found.parts["weights"] + gradients + found.parts["buckets"]


def test_the_loss_by_hand(released):
    """The head's weight has a float32 and a bfloat16 gradient; a label has its state, its gradients and eight float32
    numbers; logits exist for 4,096 labels and 32,768 words at most."""
    stage = memory.Stage(released.architecture, released.parameters, memory.Engine(3, 8), 64, "bfloat16")
    kernels_ = memory.kernels_of(released.config, packed=True)
    norm = activations.norm(2048, 2, kernels_) + 2 * 2 * 2048

    def loss(labels: int) -> int:
        return stage._loss(memory.Batch(1, 16384, labels, kernels_, masked=False))

    label = 2048 * (2 + 4 + 2) + 8 * 4
    assert loss(0) == 16384 * norm + (4 + 2) * 508_559_360
    assert loss(2048) - loss(0) == 2048 * (label + 2 * 32768)
    assert loss(16384) - loss(4096) == 12288 * label, "another tile takes the place of the first"


def test_more_ranks_and_more_sharding_never_take_more(released):
    def peaks(engine, ranks):
        found = memory.estimate(released.config, released.architecture, released.parameters, engine, ranks)
        return [found[stage].peak for stage in ("cpt", "sft")]

    for engine in fitting.ENGINES.values():
        falling = [peaks(replace(engine, expert_parallel=8), ranks) for ranks in (8, 16, 32, 64)]
        assert all(more <= fewer for a, b in itertools.pairwise(falling) for more, fewer in zip(b, a, strict=True))
    offloaded = peaks(memory.Engine(3, 8, offload_optimizer=True), 16)
    assert all(less < more for less, more in zip(offloaded, peaks(memory.Engine(3, 8), 16), strict=True))


KEYS = [  # of the engine, the part it changes, and by how many bytes, for `cpt`
    ("reduce_bucket_size=250_000_000", "buckets", -2 * 2 * 250_000_000),  # two buffers: overlap_comm
    ("overlap_comm=false", "buckets", -2 * 500_000_000),
    ("communication_data_type=float32", "buckets", 4 * 2 * 500_000_000),
    ("stage3_max_live_parameters=600_000_000", "gathered", -2 * 400_000_000),
    ("grad_accum_dtype=float32", "gradients", 2 * 541_572_042),
    ("offload_optimizer=cpu", "optimizer", -12 * 541_572_042),
    ("offload_param=cpu", "weights", -2 * 541_572_042),
]


@pytest.mark.parametrize("setting,part,change", KEYS, ids=[key for key, _, _ in KEYS])
def test_each_key_of_the_engine_changes_its_part_alone(released, setting, part, change):
    """34,660,610,688 parameters over 64 ranks are 541,572,042 a rank."""
    made = plan.make(compose([*RELEASED, "stage=cpt", f"engine.{setting.replace('_000', '000')}"]))
    before, after = released.stages["cpt"].parts, made.stages["cpt"].parts
    assert after[part] - before[part] == change
    also = {"gradients"} if "offload_optimizer" in setting else set()  # they go to CPU memory with it
    assert {name for name in before if before[name] != after[name]} == {part} | also


def test_the_sub_group_bounds_the_step(released):
    """Eight bytes a parameter of the rank's 541,572,042, or of a sub-group where that is smaller."""
    made = plan.make(compose([*RELEASED, "stage=cpt", "engine.sub_group_size=100000000"]))
    before, after = released.stages["cpt"].moments, made.stages["cpt"].moments
    assert before["step"] - after["step"] == 8 * (541_572_042 - 100_000_000)
    assert {name for name in before if before[name] != after[name]} == {"step"}


def test_the_smallest_number_fits_and_half_of_it_does_not(released):
    config, card = compose([*RELEASED, "stage=cpt"]), "80 GB"
    for engine in fitting.ENGINES.values():
        fit = fitting.smallest(config, released.architecture, released.parameters, engine, card)
        assert fit.peak <= fitting.usable(card)
        for degree in (1, 2, 4, 8, 16):
            half = replace(engine, expert_parallel=degree)
            if (fit.gpus // 2) % degree == 0:
                assert fitting.on(config, released.architecture, released.parameters, half, fit.gpus // 2, card) is None


def test_operations_are_those_that_torch_counts():
    """The forward pass of a small model; torch counts attention over the whole row and no triangular solves."""
    architecture = Qwen3_5MoeTextConfig(
        vocab_size=1000, **architecture_fields(compose(["recipe=smoke"]).model.architecture)
    )
    model, tokens = Qwen3_5MoeForCausalLM(architecture), 256
    model.set_experts_implementation("eager")
    model.set_attn_implementation("eager")  # the counter knows no fused attention of a CPU
    ids = torch.randint(0, 1000, (1, tokens))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=ids, use_cache=False)
    c = architecture
    solves = 3 * c.linear_num_value_heads * 64 * (c.linear_key_head_dim + c.linear_value_head_dim)
    formula = compute.flops_per_token(architecture, count(architecture), context=tokens, forward_only=True) - solves
    assert counter.get_total_flops() / tokens == pytest.approx(formula, rel=0.01)
    assert compute.flops_per_token(architecture, count(architecture), 256) == 3 * (formula + solves)
    training = []
    for prepare in (recompute.keep_mixers, recompute.recompute_mixers):
        prepare(model)
        with FlopCounterMode(display=False) as counter:
            model.train()(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        training.append(counter.get_total_flops() / tokens)
    again = compute.recomputed_per_token("mixers", architecture, count(architecture), context=tokens) - solves
    assert training[1] - training[0] == pytest.approx(again, rel=0.01)


def test_what_is_recomputed_is_work(released):
    """Whole layers: the forward pass once more, 4 in place of 3, in RL 6 of 5 (sampling, old log-probabilities)."""
    flops = {}
    for choice in ("none", "mixers", "layers"):
        config = compose([*RELEASED, f"model.recompute={choice}"])
        for stage in ("cpt", "rl"):
            found = compute.work(config, stage, released.architecture, released.parameters, 64, 0.19)
            flops[stage, choice] = found.flops
    assert flops["cpt", "layers"] / flops["cpt", "none"] == pytest.approx(4 / 3)
    assert flops["rl", "layers"] / flops["rl", "none"] == pytest.approx(6 / 5)
    more = {choice: flops["cpt", choice] - flops["cpt", "none"] for choice in ("mixers", "layers")}
    assert 0.3 * more["layers"] < more["mixers"] < 0.6 * more["layers"]


def test_the_way_out_of_too_little_memory_is_one_that_is_left():
    hint = "set model.recompute=layers"
    rows = "data.cpt_row_tokens=1048576"
    for choice in ("none", "mixers", "layers"):
        made = plan.make(compose([*RELEASED, "stage=cpt", rows, f"model.recompute={choice}"]))
        detail = next(check.detail for check in made.failed if check.name == "memory cpt")
        assert "lower data.cpt_row_tokens" in detail and (hint in detail) is (choice != "layers")


def test_tokens_and_hours(released):
    work = released.work
    assert work["cpt"].tokens_per_step == 64 * 32768 and work["rl"].tokens_per_step == 128 * (32768 + 4096)
    assert work["rl"].generated_tokens == 440 * 128 * 4096
    # 110 rollouts of 8 prompts a rank, 4 at a time; on 16 ranks there are 32, and at once there is one call.
    assert work["rl"].decoding_hours == pytest.approx(110 * 2 * 4096 * 40 * 0.0066 / 3600)
    for ranks, keys, calls in ((16, [], 8), (64, ["rl.rollout.batch_size=0"], 1), (64, ["rl.rollout.batch_size=3"], 3)):
        config = compose([*RELEASED, *keys])
        found = compute.work(config, "rl", released.architecture, released.parameters, ranks, 0.19)
        assert found.decoding_hours == pytest.approx(110 * calls * 4096 * 40 * 0.0066 / 3600)
    whole = compose([*RELEASED, "engine.expert_parallel=1"])
    found = compute.work(whole, "rl", released.architecture, released.parameters, 64, 0.19)
    assert found.decoding_hours == pytest.approx(110 * 2 * 4096 * 40 * 0.0025 / 3600)
    two = compose([*RELEASED, "engine.expert_parallel=2"])
    assert compute.work(two, "rl", released.architecture, released.parameters, 64, 0.19) == work["rl"]
    summed = compose([*RELEASED, "cpt.rows_per_device=2", "cpt.gradient_accumulation_steps=3"])
    found = compute.work(summed, "cpt", released.architecture, released.parameters, 64, 0.19)
    assert found.tokens_per_step == 6 * work["cpt"].tokens_per_step
    for stage in work.values():
        assert stage.hours == pytest.approx(stage.flops / (64 * 0.19 * 790e12) / 3600)
    with_half = compute.work(released.config, "cpt", released.architecture, released.parameters, 128, 0.19)
    assert with_half.hours == pytest.approx(work["cpt"].hours), "twice the ranks at twice the rows: the same time"


def test_disk_by_hand(released):
    """16 bytes a parameter of each checkpoint that is kept, and of the one that is written beside them; an export of
    each stage, and the start of RL once more for a vLLM that cannot read the other layout."""
    total, limits = released.parameters.total, {"cpt": 2, "sft": 3, "rl": 4}
    config = compose([*RELEASED, *(f"{stage}.save_total_limit={limit}" for stage, limit in limits.items())])

    def disk(*stages: str) -> dict[str, int]:
        return compute.disk(config, released.parameters, list(stages), 1000)

    expected = {"checkpoints": (2 + 3 + 4 + 1) * 16 * total, "exports": 3 * 2 * total, "prepared data": 3000}
    assert disk("cpt", "sft", "rl") == expected
    assert disk("sft") == expected | {"checkpoints": (3 + 1) * 16 * total, "exports": 2 * total}
    config.rl.rollout.engine = "vllm_colocate"
    assert disk("rl")["exports"] == 2 * 2 * total and disk("cpt")["exports"] == 2 * total
    config.model.export_layout, config.model.dtype = "release", "float32"
    assert disk("rl")["exports"] == 4 * total


def test_what_fails_later_is_named_now(tmp_path):
    model, logs = tmp_path / "model", tmp_path / "t.jsonl"
    model.mkdir()
    config = {"model_type": "qwen3_5_moe_text", "num_experts": 8, "max_position_embeddings": 4096}
    (model / "config.json").write_text(json.dumps(config))
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})
    )
    (model / "1.safetensors").write_text("")
    logs.write_text("{}\n" * 10)
    (tmp_path / "runs" / "taken").mkdir(parents=True)
    overrides = [
        f"model.path={model}",
        f"data.trajectories=[{logs}]",
        f"run.root={tmp_path / 'runs'}",
        "run.name=taken",
    ]
    failed = {check.name: check.detail for check in plan.make(compose([*RELEASED, *overrides])).failed}
    assert "1 of 2 shards are missing, first 2.safetensors" in failed["model"]
    assert "65536 is more than the model's 4096 positions" in failed["context"]
    assert "resume=true" in failed["run name"]
    assert "10 trajectories x data.split.rl=0.2 give 2 prompts" in failed["RL prompts"]
    assert "inputs" not in failed
    assert "the teacher answers no turn as the environment did" in failed["SFT traces"]
    nodes = {check.name: check.detail for check in plan.make(compose([RELEASED[0], "cluster.nodes=2"])).failed}
    assert "nproc=64, and a submitted run takes cluster.nodes x cluster.tasks_per_node = 16" in nodes["processes"]
    processes = plan.make(compose(["recipe=smoke", "nproc=3"])).failed
    assert [check.name for check in processes] == ["processes"]


def test_the_command_prints_writes_and_refuses(tmp_path, capsys):
    out = tmp_path / "plan.json"
    assert main(["plan", "recipe=smoke", f"run.root={tmp_path}", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("peak", "at backward", "fewest GPUs", "hours at MFU 0.19", "estimate"))
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 100 + len(str(tmp_path))
    read = json.loads(out.read_text())
    assert read["parameters"]["total"] == 1_439_032 and read["stages"]["rl"]["peak"] == max(
        read["stages"]["rl"]["moments"].values()
    )
    assert list(tmp_path.iterdir()) == [out], "a plan makes no run directory"
    assert main(["plan", "recipe=smoke", f"run.root={tmp_path}", "--json", str(tmp_path)]) == 2
    assert capsys.readouterr() == ("", f"agentworld: error: --json {tmp_path}: a folder; name a file\n")
    assert main(["plan", "recipe=smoke", "nproc=3", f"run.root={tmp_path}"]) == 2
    captured = capsys.readouterr()
    assert "FAILS" in captured.out and captured.err.count("\n") == 1 and "processes" in captured.err
    assert main(["plan", "recipe=smoke", "--mfu", "2"]) == 2
    assert "no share" in capsys.readouterr().err


def test_the_estimate_is_within_a_tenth_of_what_a_gpu_held() -> None:
    """Whole steps of CPT on an H200 (docs/performance.md); too low is as bad as too high."""
    cases = json.loads((Path(__file__).parent / "measured_memory.json").read_text())["plan_memory"]
    assert len(cases) == 2
    for case in cases:
        config = compose(plan_memory._overrides({"tiny": False, **case}))
        architecture, _ = text_config(config)
        engine = memory.Engine.of(config.engine)
        estimated = memory.estimate(config, architecture, count(architecture), engine, 1)["cpt"]
        assert estimated.peak == pytest.approx(case["measured"]["peak"], rel=0.1), case
        assert estimated.moments["step"] == pytest.approx(case["measured"]["step"], rel=0.1), case
        before = max(size for moment, size in estimated.moments.items() if moment != "step")
        assert before == pytest.approx(case["measured"]["backward"], rel=0.1), case


def test_the_estimate_of_divided_experts_is_within_a_tenth_of_what_two_gpus_held() -> None:
    """Steps of CPT and RL of 12 layers, ZeRO-3, experts over both (docs/performance.md)."""
    cases = json.loads((Path(__file__).parent / "measured_memory.json").read_text())["full_depth"]
    assert [case["stage"] for case in cases] == ["cpt", "rl"]
    for case in cases:
        options = Namespace(gpus=2, offload=False, tiny=False, overrides=[], sizes=full_depth_setup.Sizes())
        stage = [f"stage={case['stage']}", "run.name=x", "resume=true"]
        config = compose([*full_depth_setup.overrides(options, case["layers"]), *stage, *case["keys"]])
        estimated = full_depth_setup.planned_peak(config, case["stage"])
        assert estimated == pytest.approx(case["peak"], rel=0.1), case


def test_hours_of_evaluation_are_those_of_its_calls(released) -> None:
    """Counted as the evaluation deals turns out and batches them, on the rank with the most."""
    keys = ["eval.examples=130", "eval.batch_size=4", "eval.reward_examples=70", "eval.reward_draws=5"]
    config = compose([*RELEASED, *keys, "eval.max_new_tokens=100"])

    def calls(answers: int) -> int:
        return len(range(0, answers, 4))

    turns, rewarded = len(range(0, 130, 64)), len(range(0, 70, 64))
    greedy, sampled = calls(turns), calls(5 * rewarded) + calls(rewarded)
    for stages, expected in ((["cpt"], 2 * greedy), (["cpt", "sft", "rl"], 4 * greedy + 2 * sampled)):
        hours = compute.evaluation_hours(config, released.architecture, stages, 64)
        assert hours == pytest.approx(expected * 100 * 40 * 0.0025 / 3600)
    config.eval.divided = True
    hours = compute.evaluation_hours(config, released.architecture, ["rl"], 64)
    assert hours == pytest.approx((greedy + sampled) * 100 * 40 * 0.0066 / 3600)


def test_zero3_gathers_nothing_that_one_rank_holds_alone() -> None:
    """As DeepSpeed: a partition of one rank is used as it is, unless it lies in CPU memory."""
    for gpus, degree, engine in ((1, 1, "zero3"), (2, 2, "zero3"), (4, 2, "zero3"), (2, 2, "zero3-offload-cpu")):
        keys = [*RELEASED, f"engine={engine}", f"nproc={gpus}", f"engine.expert_parallel={degree}", "cluster.nodes=1"]
        config = compose([*keys, f"cluster.tasks_per_node={gpus}", "stage=rl", "run.name=x", "resume=true"])
        architecture, _ = text_config(config)
        parameters = count(architecture)
        stage = memory.Stage(architecture, parameters, memory.Engine.of(config.engine), gpus, "bfloat16")
        gathered = stage.generation(1, 8, 8, memory.kernels_of(config, packed=False)).parts["gathered"]
        dense = parameters.total - parameters.parts["experts"]
        expected = {1: 0, 2: dense, 4: dense + parameters.parts["experts"] // 2}[gpus]
        if engine == "zero3-offload-cpu":
            expected = dense + parameters.parts["experts"] // 2
        assert gathered == 2 * expected
