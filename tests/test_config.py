"""Composition of recipes: what is refused, in which words, and that nothing heavy is imported on the way."""

import shlex
import subprocess
import sys
from dataclasses import replace

import pytest

from agentworld.data.errors import RequestError
from agentworld.train.compose import compose, load_recipe, to_yaml
from agentworld.train.config import Config
from agentworld.train.contradictions import CHOICES, NOT_NEGATIVE, POSITIVE, leaves, validate, validate_processes

SMOKE = "recipe=smoke"


def refusal(*overrides: str) -> str:
    with pytest.raises(RequestError) as caught:
        compose([SMOKE, *overrides])
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_groups_and_keys_override_the_recipe():
    config = compose(
        [SMOKE, "engine=zero2", "engine.expert_parallel=2", "nproc=2", "cpt.max_steps=30", "rl.epsilon=1e-4"]
    )
    assert (config.engine.zero_stage, config.engine.expert_parallel, config.cpt.max_steps) == (2, 2, 30)
    assert config.rl.epsilon == 1e-4
    assert config.recipe == "smoke"
    assert config.sft.max_steps == compose([SMOKE]).sft.max_steps != Config().sft.max_steps


def test_a_missing_or_unknown_recipe_lists_the_recipes():
    with pytest.raises(RequestError, match="recipe=smoke"):
        compose(["seed=1"])
    with pytest.raises(RequestError, match=r"unknown recipe 'smok'; did you mean smoke\?; available: .*smoke"):
        compose(["recipe=smok"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("cpt.learning_rte=1e-3", "unknown key cpt.learning_rte; did you mean cpt.learning_rate?"),
        ("data.documents=[{name: a, pth: b}]", "documents[0] has no key pth; did you mean path?; its keys:"),
        ("rum.name=x", "unknown key rum.name; did you mean run.name?"),
        ("data.mask.keep.ehco=0.5", "unknown key data.mask.keep.ehco; did you mean data.mask.keep.echo?"),
        ("max_steps=3", "cpt.max_steps or sft.max_steps or rl.max_steps"),
        ("cpt={max_stps:3}", "max_stps"),
        ("hydra.run.dir=x", "unknown key hydra.run.dir"),
        ("engine=zero4", "unknown engine 'zero4'"),
        ("engine=zero4", "available: zero1, zero2, zero3"),
        ("cpt.max_steps=abc", "cpt.max_steps: expected an integer, found 'abc'"),
        ("cpt.max_steps=1.5", "cpt.max_steps: expected an integer, found '1.5'"),
        ("cpt.learning_rate=fast", "cpt.learning_rate: expected a number, found 'fast'"),
        ("resume=perhaps", "resume: expected true or false, found 'perhaps'"),
        ("seed=null", "seed: expected an integer, found 'null'"),
        ("data.trajectories=my.jsonl", "data.trajectories=[my.jsonl]"),
        ("cpt=3", "cpt is a section"),
        ("+new.key=1", "cannot be added"),
        ("++seed=1", "cannot be added"),
        ("~seed", "cannot be added or removed"),
        ("seed=1,2", "sweeps are not supported"),
        ("engine@other=zero1", "packages cannot be overridden"),
        ("seed", "no key=value override"),
        ("dry_run=true", "`agentworld submit recipe=NAME dry_run=true` writes the scripts"),
        ('wandb.project="a', "quote special characters: wandb.project='"),
        ("run.root=${oc.env:AGENTWORLD_NO_SUCH_VARIABLE}", "AGENTWORLD_NO_SUCH_VARIABLE"),
    ],
)
def test_a_wrong_override_is_named_with_the_way_out(override, said):
    assert said in refusal(override)


@pytest.mark.parametrize(
    ("key", "typed", "meant"),
    [
        ("cluster.extra", "[--constraint=h200]", ["--constraint=h200"]),
        ("cluster.extra", "--constraint=h200", ["--constraint=h200"]),
        ("cluster.extra", "[--gres=gpu:h200:8, --exclusive]", ["--gres=gpu:h200:8", "--exclusive"]),
        ("cluster.extra", "[--mail-type=END,FAIL,--nodelist=n[1-3]]", ["--mail-type=END,FAIL", "--nodelist=n[1-3]"]),
        ("cluster.extra", '[--comment="a b",--constraint=a|b]', ['--comment="a b"', "--constraint=a|b"]),
        ("cluster.setup", "[module load cuda && true, \"export A='b'\"]", ["module load cuda && true", "export A='b'"]),
        ("data.trajectories", "[a=b.jsonl,c.jsonl]", ["a=b.jsonl", "c.jsonl"]),
    ],
)
def test_a_list_that_cannot_be_read_is_answered_with_one_that_can_be_copied(key, typed, meant):
    _, _, hint = refusal(f"{key}={typed}").partition("in those of the shell: ")
    (override,) = shlex.split(hint)
    section, _, name = key.partition(".")
    assert getattr(getattr(compose([SMOKE, override]), section), name) == meant


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["resume=true", "overwrite=true", "run.name=a"], ["resume", "overwrite"]),
        (["resume=true"], ["run.name"]),
        (["run.name=a/b"], ["run.name", "run.root"]),
        (["run.name=.."], ["run.name"]),
        (["stage=stf"], ["stage", "stage=sft"]),
        (["stage=rl"], ["sft", "run.name", "model.path"]),
        (["stage=eval"], ["run.name"]),
        (["wandb.mode=of"], ["wandb.mode", "offline"]),
        (["model.dtype=float16"], ["model.dtype=float16", "bfloat16"]),
        (["data.on_bad=ignore"], ["data.on_bad", "fail, skip"]),
        (["data.record.mix=ligth"], ["data.record.mix=light"]),
        (["data.prompt_set=breif"], ["data.prompt_set=brief"]),
        (["cpt.warmup_steps=601", "cpt.max_steps=600"], ["cpt.warmup_steps=601", "cpt.max_steps=600"]),
        (["sft.max_steps=0"], ["sft.max_steps", "greater than 0"]),
        (["rl.learning_rate=-1e-4"], ["rl.learning_rate", "greater than 0"]),
        (["cpt.learning_rate=nan"], ["cpt.learning_rate", "finite"]),
        (["rl.save_total_limit=1"], ["rl.save_total_limit=1", "at least 2"]),
        (["rl.num_generations=1"], ["rl.num_generations=1", "at least 2"]),
        (["rl.mini_batches=3"], ["rl.prompts_per_rollout", "64", "rl.mini_batches=3"]),
        (["rl.epsilon=0.5"], ["rl.epsilon=0.5", "rl.epsilon_high"]),
        (["rl.temperature=0"], ["rl.temperature"]),
        (["data.split.cpt=0.6"], ["data.split.cpt", "1.05"]),
        (["data.split.cpt=0.61", "data.split.eval=0"], ["data.split.eval"]),
        (["data.record.min_turns=9"], ["data.record.min_turns=9", "data.record.max_turns=6"]),
        (["data.min_turns=7"], ["data.min_turns=7", "data.record.max_turns=6"]),
        (["data.mask.keep.echo=1.5"], ["data.mask.keep.echo"]),
        (["data.tokenizer_vocab_size=200"], ["data.tokenizer_vocab_size=200"]),
        (["eval.prompt_tokens=-1"], ["eval.prompt_tokens must not be negative"]),
        (["eval.reward_draws=3"], ["eval.reward_draws=3", "at least 4"]),
        (["engine.expert_parallel=3", "nproc=3"], ["engine.expert_parallel=3", "model.architecture.num_experts=8"]),
        (["engine.expert_parallel=2", "nproc=1"], ["engine.expert_parallel=2", "nproc=2"]),
        (["nproc=-1"], ["nproc"]),
    ],
)
def test_a_contradiction_names_its_keys(overrides, said):
    text = refusal(*overrides)
    for part in said:
        assert part in text, text


def test_processes_must_divide_the_rl_mini_batch_and_the_advice_works():
    config = compose([SMOKE, "rl.completions_per_device=16"])  # 16 completions a mini-batch: one process only
    with pytest.raises(RequestError, match=r"rl\.completions_per_device=8") as caught:
        validate_processes(config, 2)
    advised = str(caught.value).rpartition("set ")[2]
    with pytest.raises(RequestError, match=advised):  # at once: the search for the advice ends at the mini-batch
        validate_processes(compose([SMOKE, "rl.completions_per_device=10000000000000"]), 2)
    rl = compose([SMOKE, "nproc=2", advised]).rl
    assert rl.prompts_per_rollout * rl.num_generations // rl.mini_batches == rl.completions_per_device * 2 == 16
    assert accepted(compose([SMOKE, advised]), 2) and not accepted(config, 2)
    assert accepted(replace(config, stage="cpt"), 2)  # the other stages have no mini-batch


def accepted(config: Config, nproc: int) -> bool:
    try:
        validate_processes(config, nproc)
    except RequestError:
        return False
    return True


def test_the_schema_defaults_do_not_contradict_each_other():
    values = dict(leaves(Config()))
    assert all(values[key] in known for key, known in CHOICES.items())
    assert all(values[key] > 0 for key in POSITIVE) and all(values[key] >= 0 for key in NOT_NEGATIVE)
    validate(Config())  # and the pairs
    with pytest.raises(RequestError, match="resume=true and overwrite=true"):
        validate(replace(Config(), resume=True, overwrite=True))


@pytest.mark.parametrize("path", ["/tmp/a b=c", "it's", "back\\slash\\", "x\\'y", "1e5", "null", "[a]", "a,b"])
def test_a_text_reaches_the_config_as_it_was_typed(path):
    assert compose([SMOKE, f"run.root={path}"]).run.root == path


def test_a_resolved_recipe_reads_back_equal(tmp_path):
    config = compose([SMOKE, "data.trajectories=[a.jsonl,b.jsonl]", "run.name=1e5", "data.mask.keep.echo=0.25"])
    (tmp_path / "recipe.yaml").write_text(to_yaml(config))
    assert load_recipe(tmp_path) == config


def test_a_folder_without_a_readable_recipe_is_no_run(tmp_path):
    with pytest.raises(RequestError, match="not a run directory"):
        load_recipe(tmp_path)
    (tmp_path / "recipe.yaml").write_text("cpt:\n  unknown: 1\n")
    with pytest.raises(RequestError, match=r"recipe\.yaml: .*unknown"):
        load_recipe(tmp_path)


def test_composing_imports_no_torch_and_writes_nothing(tmp_path):
    code = (
        "import sys\n"
        "from agentworld.train import cli\n"
        "from agentworld.train.compose import compose\n"
        "compose(['recipe=smoke'])\n"
        "assert cli.main(['train', 'recipe=smoke', 'cpt.max_steps=x']) == 2\n"
        "print([name for name in ('torch', 'transformers', 'trl', 'deepspeed') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == []  # Hydra's outputs/ above all


@pytest.mark.parametrize(
    ("overrides", "weights"),
    [
        (["data.domain_weights={terminal:0.5,mcp:1}"], {"terminal": 0.5, "mcp": 1.0}),
        (["data.domain_weights.terminal=0.5", "data.domain_weights.mcp=1"], {"terminal": 0.5, "mcp": 1.0}),
        ([], {}),
    ],
)
def test_names_are_added_to_a_mapping(overrides, weights):
    found = compose(["recipe=smoke", *overrides, "data.source_shares={tau-bench:0.3}", "data.mask.keep={echo:0.2}"])
    assert found.data.domain_weights == weights
    assert found.data.source_shares == {"tau-bench": 0.3}
    assert found.data.mask.keep["echo"] == 0.2 and found.data.mask.keep["other"] == 1.0
    with pytest.raises(RequestError, match=r"data\.domain_weights\.terminal: expected a number, found 'half'"):
        compose(["recipe=smoke", "data.domain_weights.terminal=half"])
    with pytest.raises(RequestError, match=r"data\.domain_weights\.terminals: no such domain"):
        compose(["recipe=smoke", "data.domain_weights={terminals:0.5}"])
