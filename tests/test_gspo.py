"""The RL objective: TRL's GSPO loss against a naive loop, and a rollout that really is used off policy (fault 26)."""

import math

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from agentworld.data.tokenizer import train_tokenizer
from agentworld.train import engine, model
from agentworld.train.config import ArchitectureSettings, EngineSettings, ModelSettings
from agentworld.train.gspo import GspoTrainer

EPSILON, EPSILON_HIGH = 3e-4, 4e-4
END = 270  # the end of turn in `made_trainer`'s tokenizer
PROMPTS = {f"session-{i}#0": [5 + i, 9, 11, 12 + i] for i in range(8)}


def made_trainer(tmp_path, seen: list | None = None, trainer_class=None, reward_funcs=None, **arguments):
    tokenizer = train_tokenizer(["echo apple\n", "cat a.txt\n"], 300)
    assert tokenizer.eos_token_id == END
    architecture = ArchitectureSettings(
        hidden_size=32, num_hidden_layers=2, full_attention_interval=2, num_experts=4, moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )  # fmt: skip
    policy = model.build(ModelSettings(dtype="float32", architecture=architecture), tokenizer, seed=0)

    class Watched(GspoTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            if seen is not None:
                ratios = sequence_log_ratios(self, model, inputs)
                seen.append((self.state.global_step, torch.stack([ratios, inputs["advantages"]])))
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def first_token(completion_ids, **columns) -> list[float]:
        return [float(ids[0] % 7) for ids in completion_ids]

    options = {
        "output_dir": str(tmp_path), "per_device_train_batch_size": 4, "num_generations": 4, "steps_per_generation": 4,
        "max_completion_length": 6, "max_steps": 8, "learning_rate": 1e-2, "importance_sampling_level": "sequence",
        "loss_type": "grpo", "epsilon": EPSILON, "epsilon_high": EPSILON_HIGH, "beta": 0.0, "use_cpu": True,
        "bf16": False, "report_to": [], "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True,
        "gradient_checkpointing": False, "router_aux_loss_coef": 0.0, "seed": 0,
    }  # fmt: skip
    return (trainer_class or Watched)(
        model=policy,
        reward_funcs=reward_funcs or [first_token],
        args=GRPOConfig(**(options | arguments)),
        train_dataset=Dataset.from_list([{"prompt": key} for key in PROMPTS]),
        processing_class=tokenizer,
        prompt_ids=PROMPTS,
    )


@torch.no_grad()
def sequence_log_ratios(trainer, policy, inputs) -> torch.Tensor:
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    new, *_ = trainer._get_per_token_logps_and_entropies(policy, ids, mask, inputs["completion_ids"].size(1))
    completion = inputs["completion_mask"]
    return ((new - inputs["old_per_token_logps"]) * completion).sum(1) / completion.sum(1)


def naive_gspo_loss(policy, prompts, completions, old_log_probs, advantages, beta) -> torch.Tensor:
    """Equation 5 of arXiv:2507.18071 with a KL term, one sequence and one token at a time, without padding. The
    reference's log-probabilities are the old ones plus 0.1."""
    losses = []
    for prompt, completion, old, advantage in zip(prompts, completions, old_log_probs, advantages, strict=True):
        logits = policy(torch.tensor([prompt + completion]), use_cache=False).logits[0]
        total, divergence = torch.zeros(()), torch.zeros(())
        for t, token in enumerate(completion):
            log_prob = torch.log_softmax(logits[len(prompt) + t - 1], dim=-1)[token]
            total = total + log_prob - old[t]
            divergence = divergence + torch.exp(old[t] + 0.1 - log_prob) - (old[t] + 0.1 - log_prob) - 1
        ratio = torch.exp(total / len(completion))
        clipped = min(max(ratio.item(), 1 - EPSILON), 1 + EPSILON_HIGH)
        use_clipped = clipped * advantage < ratio.item() * advantage
        policy_loss = -(torch.tensor(clipped) if use_clipped else ratio) * advantage
        losses.append(policy_loss + beta * divergence / len(completion))
    return torch.stack(losses).mean()


@pytest.mark.parametrize(
    "lengths,kept,beta",
    [((1, 10, 60, 1000), (0, 1, 2, 3), 0.0), ((3, 3, 3, 3), (0, 1, 2, 3), 0.05), ((9, 2, 30, 5), (0, 2, 3), 0.05)],
)
def test_loss_and_gradient_equal_the_naive_loop(tmp_path, lengths, kept, beta) -> None:
    trainer = made_trainer(tmp_path)
    trainer.current_gradient_accumulation_steps, trainer.beta = 1, beta
    policy = trainer.model.train()
    draw = torch.Generator().manual_seed(1)
    prompts = [torch.randint(5, 250, (n,), generator=draw).tolist() for n in (4, 9, 2, 6)]
    completions = [torch.randint(5, 250, (n,), generator=draw).tolist() for n in lengths]
    advantages = [1.3, -0.7, -1.1, 0.5]
    # Old log-probabilities near the new ones: ratios on both sides of both clips, and inside.
    shifts = [1e-4, 1e-3, -1e-3, -2e-4]
    old = []
    with torch.no_grad():
        for prompt, completion, shift in zip(prompts, completions, shifts, strict=True):
            logits = policy(torch.tensor([prompt + completion]), use_cache=False).logits[0]
            log_probs = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
            old.append(log_probs[range(len(completion)), completion] + shift)
    expected = naive_gspo_loss(
        policy, *([column[i] for i in kept] for column in (prompts, completions, old, advantages)), beta
    )
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()

    widest_prompt, widest = max(map(len, prompts)), max(lengths)
    loss = trainer._compute_loss(
        policy,
        {
            "prompt_ids": torch.tensor([[0] * (widest_prompt - len(p)) + p for p in prompts]),
            "prompt_mask": torch.tensor([[0] * (widest_prompt - len(p)) + [1] * len(p) for p in prompts]),
            "completion_ids": torch.tensor([c + [0] * (widest - len(c)) for c in completions]),
            "completion_mask": torch.tensor(
                [[int(i in kept)] * len(c) + [0] * (widest - len(c)) for i, c in enumerate(completions)]
            ),
            "advantages": torch.tensor(advantages),
            "old_per_token_logps": torch.stack([torch.nn.functional.pad(o, (0, widest - len(o))) for o in old]),
            "ref_per_token_logps": torch.stack([torch.nn.functional.pad(o + 0.1, (0, widest - len(o))) for o in old]),
            "num_items_in_batch": torch.tensor(sum(lengths)),
            "rows_per_kept": torch.tensor(len(lengths) / len(kept)),
        },
    )
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=2e-6)
    for name, parameter in policy.named_parameters():
        if name in gradients:
            scale = gradients[name].abs().max().clamp(min=1e-7)
            assert (parameter.grad - gradients[name]).abs().max() / scale < 5e-3, name


def test_a_rollout_serves_four_steps_and_leaves_the_policy(tmp_path) -> None:
    seen: list = []
    trainer = made_trainer(
        tmp_path, seen, per_device_train_batch_size=2, gradient_accumulation_steps=2, steps_per_generation=8
    )
    trainer.train()
    assert trainer.args.steps_per_generation == 4 * trainer.args.gradient_accumulation_steps
    both = {step: torch.cat([found for at, found in seen if at == step], dim=1) for step in range(8)}
    by_step = {step: found[0] for step, found in both.items()}
    assert [len(ratios) for ratios in by_step.values()] == [4] * 8, "two micro-batches of two a step"
    for step, log_ratios in by_step.items():
        if step % 4 == 0:
            assert log_ratios.abs().max() < 1e-5, f"step {step} follows a new rollout: on policy"
        else:
            assert log_ratios.abs().max() > EPSILON, f"step {step} reuses a rollout: the ratio has left 1"
    logged = [entry for entry in trainer.state.log_history if "ratio/max" in entry]
    for entry, (log_ratios, advantages) in zip(logged, both.values(), strict=True):
        low = (log_ratios.exp() < 1 - EPSILON) & (advantages < 0)
        high = (log_ratios.exp() > 1 + EPSILON_HIGH) & (advantages > 0)
        assert entry["clip_ratio/region_mean"] == pytest.approx((low | high).float().mean().item())
        assert entry["ratio/mean"] == pytest.approx(log_ratios.exp().mean().item(), abs=1e-6)
        assert entry["ratio/max"] == pytest.approx(log_ratios.exp().max().item(), abs=1e-6)
    clipped = [
        entry["clip_ratio/region_mean"] for entry in trainer.state.log_history if "clip_ratio/region_mean" in entry
    ]
    assert max(clipped) > 0 and all(math.isfinite(value) for value in clipped)


def test_prompts_reach_the_model_as_rendered(tmp_path) -> None:
    trainer = made_trainer(tmp_path)
    ids, images, fields = trainer._tokenize_prompts(["session-3#0", "session-1#0"])
    assert (ids, images, fields) == ([PROMPTS["session-3#0"], PROMPTS["session-1#0"]], None, {})


class Scripted(GspoTrainer):
    """A trainer whose model does not sample: it answers what `answers` says, and keeps what it trains on."""

    answers: tuple[list[int], ...] = ()

    def _generate_single_turn(self, prompt_ids, *unused):
        return [list(self.answers[place % len(self.answers)]) for place in range(len(prompt_ids))], None

    def _compute_loss(self, model, inputs):
        self.trained = inputs
        self.loss = super()._compute_loss(model, inputs)
        return self.loss


def scripted_step(tmp_path, answers, reward_funcs, **arguments) -> Scripted:
    """One optimizer step on one prompt with four answers."""
    trainer = made_trainer(
        tmp_path, trainer_class=Scripted, reward_funcs=reward_funcs, steps_per_generation=1, max_steps=1, **arguments
    )
    trainer.answers = answers
    trainer.train()
    return trainer


def gradients_of(trainer) -> torch.Tensor:
    """The update of one step of plain SGD, which is proportional to the gradient."""
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@torch.no_grad()
def naive_entropy(policy, inputs) -> float:
    """Nats a sampled token, over the kept completions, one token at a time and without padding."""
    found = []
    for row in range(len(inputs["prompt_ids"])):
        prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()].tolist()
        completion = inputs["completion_ids"][row][inputs["completion_mask"][row].bool()].tolist()
        for place in range(len(completion)):
            log_probs = torch.log_softmax(policy(torch.tensor([prompt + completion[:place]])).logits[0, -1], -1)
            found.append(-(log_probs.exp() * log_probs).sum().item())
    return sum(found) / len(found)


def test_a_completion_that_one_function_could_not_score_has_no_reward(tmp_path) -> None:
    """TRL would count the missing score as 0 and punish the completion for a judge that failed."""
    answers = ([7, 8, END], [9, END], [10, 11, 12, END], [13, END])

    def rubric(completion_ids, **columns):
        return [10.0, 4.0, 7.0, 1.0]

    def judge(completion_ids, **columns):
        return [3.0, None, 1.0, 2.0]

    trainer = scripted_step(tmp_path, answers, [rubric, judge])
    rewards = torch.tensor([13.0, 8.0, 3.0])
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    by_first_token = dict(zip(trainer.trained["completion_ids"][:, 0].tolist(), range(4), strict=True))
    kept = [by_first_token[token] for token in (7, 10, 13)]
    assert trainer.trained["advantages"][kept].tolist() == pytest.approx(expected.tolist(), abs=1e-4)
    lost = by_first_token[9]
    assert trainer.trained["completion_mask"][lost].sum() == 0 and not trainer.trained["kept"][lost]
    assert trainer.trained["rows_per_kept"].item() == pytest.approx(4 / 3)
    history = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert history["reward"] == pytest.approx(rewards.mean().item(), abs=1e-5)
    assert history["completions/kept_ratio"] == pytest.approx(0.75)
    assert history["reward_std"] == pytest.approx(rewards.std().item(), abs=1e-4)
    assert history["frac_reward_zero_std"] == 0.0
    assert history["ratio/mean"] == history["ratio/max"] == 1.0, "on policy, and the lost one is not counted"
    assert history["entropy"] == pytest.approx(naive_entropy(made_trainer(tmp_path).model, trainer.trained), abs=1e-4)
    assert history["completions/mean_length"] == 2.75 and history["completions/clipped_ratio"] == 0.0


def test_if_no_completion_has_a_reward_nothing_is_learnt(tmp_path) -> None:
    def judge(completion_ids, **columns):
        return [None] * len(completion_ids)

    before = made_trainer(tmp_path)
    trainer = scripted_step(tmp_path, ([7, END], [8, END], [9, END], [10, END]), [judge], optim="sgd")
    assert trainer.loss.item() == 0
    assert torch.equal(gradients_of(trainer), gradients_of(before))


def test_equal_rewards_leave_the_weights_exactly_as_they_are(tmp_path) -> None:
    before = made_trainer(tmp_path)
    trainer = scripted_step(
        tmp_path,
        ([7, 8, END], [8, END], [9, 9, 9, END], [10, END]),
        [lambda completion_ids, **_: [12.5] * 4],
        optim="sgd",
    )
    assert trainer.loss.item() == 0
    assert torch.equal(gradients_of(trainer), gradients_of(before))
    history = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert (history["reward"], history["reward_std"], history["frac_reward_zero_std"]) == (12.5, 0.0, 1.0)


def test_a_group_with_a_failed_judgement_learns_like_the_group_without_it(tmp_path) -> None:
    """Fault 24: mean, standard deviation and loss are those of the others; scored 0, it would change them all."""
    answers = ([7, 8, END], [9, END], [10, 11, 12, END], [13, END])
    rewards = {7: 10.0, 9: 4.0, 10: 7.0}

    def judge(failed):
        return lambda completion_ids, **_: [rewards.get(ids[0], failed) for ids in completion_ids]

    options = {"optim": "sgd", "max_grad_norm": 0.0}
    alone = {"num_generations": 3, "per_device_train_batch_size": 3}
    before = gradients_of(made_trainer(tmp_path))
    without = gradients_of(scripted_step(tmp_path, answers[:3], [judge(None)], **options, **alone)) - before
    failed = gradients_of(scripted_step(tmp_path, answers, [judge(None)], **options)) - before
    zero = gradients_of(scripted_step(tmp_path, answers, [judge(0.0)], **options)) - before
    scale = without.abs().max()
    assert scale > 1e-4
    assert (failed - without).abs().max() < 1e-3 * scale
    assert (zero - without).abs().max() > 0.1 * scale


def test_masked_truncated_completions_change_nothing_for_the_others(tmp_path) -> None:
    """Fault 25: neither their tokens nor their rewards, and the mean is over the kept ones."""

    def length(completion_ids, **columns):
        return [float(len(ids) + ids[0]) for ids in completion_ids]

    whole = ([7, 8, END], [9, END], [10, 11, 12, END])
    updates = {}
    for name, cut, masked in (
        ("cut", [20, 21, 22, 23, 24, 25], True),
        ("another", [3, 200, 201, 202, 203, 204], True),
        ("counted", [20, 21, 22, 23, 24, 25], False),
    ):
        trainer = scripted_step(
            tmp_path, (*whole, cut), [length], mask_truncated_completions=masked, optim="sgd", max_grad_norm=0.0
        )
        updates[name] = gradients_of(trainer)
        history = next(entry for entry in trainer.state.log_history if "reward" in entry)
        assert history["completions/clipped_ratio"] == 0.25
        assert history["completions/kept_ratio"] == (0.75 if masked else 1.0)
    scale = (updates["cut"] - updates["counted"]).abs().max()
    assert scale > 1e-4
    before = gradients_of(made_trainer(tmp_path))
    assert (updates["cut"] - before).abs().max() > 1e-4, "the whole ones are learnt from"
    assert (updates["cut"] - updates["another"]).abs().max() < 1e-3 * scale


def test_the_ids_that_were_sampled_are_trained_on(tmp_path) -> None:
    """Fault 27: also where decoding and encoding again would give other ids."""
    tokenizer = train_tokenizer(["echo apple\n", "cat a.txt\n"], 300)
    letters = [[tokenizer.convert_tokens_to_ids(letter) for letter in text] for text in ("echo", "cat", "apple", "a")]
    answers = tuple([*ids, END] for ids in letters)
    again = tokenizer("echo", add_special_tokens=False)["input_ids"]
    assert again != letters[0], "the text has a shorter spelling in ids"
    trainer = scripted_step(
        tmp_path, answers, [lambda completion_ids, **_: [float(len(ids)) for ids in completion_ids]]
    )
    rows = zip(trainer.trained["completion_ids"], trainer.trained["completion_mask"], strict=True)
    assert sorted(ids[mask.bool()].tolist() for ids, mask in rows) == sorted(map(list, answers))


def test_equal_rewards_that_float32_cannot_average_are_equal(tmp_path, capsys) -> None:
    """The mean of seven or eight times 13.37 in float32 is another number."""

    def equal(completion_ids, **columns) -> list[float | None]:
        return [13.37] * 7 + [None] + [13.37] * 8

    options = {"num_generations": 8, "per_device_train_batch_size": 16, "steps_per_generation": 1, "max_steps": 1}
    trainer = made_trainer(tmp_path, reward_funcs=[equal], weight_decay=0.0, **options)
    found = []
    score = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: found.append(score(inputs)) or found[-1]
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    assert found[0]["advantages"].dtype == torch.float32 and not found[0]["advantages"].any()
    assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())
    [row] = [row for row in trainer.state.log_history if "frac_reward_zero_std" in row]
    assert row["frac_reward_zero_std"] == 1.0
    assert "rl  step 1: the completions of each prompt have equal rewards (mean 13.37)" in capsys.readouterr().out


def test_differing_rewards_are_no_reason_for_a_warning(tmp_path, capsys) -> None:
    made_trainer(tmp_path, max_steps=2).train()
    assert "equal rewards" not in capsys.readouterr().out


def test_the_order_of_prompts_is_that_of_the_pass_also_in_a_new_process(tmp_path) -> None:
    straight = GRPOTrainer._get_train_sampler(made_trainer(tmp_path))
    passes = [list(straight) for _ in range(3)]
    assert passes[0] != passes[1] != passes[2]
    for number, expected in enumerate(passes):
        trainer = made_trainer(tmp_path)
        trainer.state.epoch = number + 0.25
        sampler = trainer._get_train_sampler()
        assert list(sampler) == expected and len(sampler) == len(straight)
    ordered = made_trainer(tmp_path, shuffle_dataset=False)
    assert list(ordered._get_train_sampler()) == list(GRPOTrainer._get_train_sampler(ordered))


def test_rl_resumed_in_its_second_pass_is_the_uninterrupted_run(tmp_path) -> None:
    """Eight prompts are a pass of eight steps; the checkpoint is that of step 10."""
    settings = EngineSettings(zero_stage=1, device="cpu")
    engine.start_rank(settings)
    options = {
        "deepspeed": engine.deepspeed_config(settings, ModelSettings(dtype="float32")), "steps_per_generation": 2,
        "max_steps": 14, "save_strategy": "steps", "save_steps": 10,
    }  # fmt: skip

    def run(start: str | None) -> tuple[list, list]:
        seen = []

        class Seeing(GspoTrainer):
            def _generate_and_score_completions(self, inputs):
                seen.append((self.state.global_step, sorted({row["prompt"] for row in inputs})))
                return super()._generate_and_score_completions(inputs)

        AcceleratorState._reset_state()
        GradientState._reset_state()
        trainer = made_trainer(tmp_path, trainer_class=Seeing, **options)
        trainer.train(resume_from_checkpoint=start)
        losses = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
        return [row for row in seen if row[0] >= 10], [losses[step] for step in range(11, 15)]

    assert run(None) == run(str(tmp_path / "checkpoint-10"))
