"""The run directory: names, refusals, resume and overwrite, the lock, and files that are whole or absent."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentworld.data.errors import RequestError
from agentworld.train.compose import compose, load_recipe
from agentworld.train.config import Config
from agentworld.train.contradictions import leaves
from agentworld.train.run_directory import new_name, open_run, update_run_json, write_json, write_text


def recipe(root: Path, *overrides: str) -> Config:
    return compose(["recipe=smoke", f"run.root={root}", *overrides])


def start(root: Path, *overrides: str) -> Path:
    """Open and leave a run, as a start that ends at once."""
    with open_run(recipe(root, *overrides), ["agentworld", "train", *overrides]) as run_dir:
        return run_dir


def fill(run_dir: Path) -> None:
    for stage in ("base", "cpt", "sft", "rl"):
        (run_dir / stage / "export").mkdir(parents=True)
        (run_dir / stage / "export" / "handoff.json").write_text("{}")
        (run_dir / stage / "evaluation.json").write_text("{}")
    (run_dir / "data").mkdir()
    (run_dir / "data" / "manifest.json").write_text("{}")
    (run_dir / "report.json").write_text("{}")
    (run_dir / "baselines.json").write_text("{}")


def entries(run_dir: Path) -> set[str]:
    return {path.name for path in run_dir.iterdir() if path.name != ".lock"}


def test_names_of_one_second_differ():
    assert len({new_name("smoke") for _ in range(200)}) > 190
    assert new_name("smoke").startswith("smoke-20")


def test_a_new_run_holds_its_recipe_and_its_identity(tmp_path):
    run_dir = start(tmp_path / "runs", "seed=7")
    assert run_dir.parent == tmp_path / "runs"
    assert load_recipe(run_dir).seed == 7
    assert load_recipe(run_dir).run.name == run_dir.name
    identity = json.loads((run_dir / "run.json").read_text())
    assert identity["argv"] == ["agentworld", "train", "seed=7"]
    assert {"id", "created", "versions", "git_commit", "python", "platform", "seed"} <= set(identity)
    assert identity["versions"]["trl"] == "1.16.0"


def test_an_existing_run_is_refused_and_left_alone(tmp_path):
    run_dir = start(tmp_path, "run.name=a")
    fill(run_dir)
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    with pytest.raises(RequestError, match=r"resume=true.*overwrite=true"):
        start(tmp_path, "run.name=a", "seed=5")
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


def test_resume_continues_starts_if_absent_and_refuses_another_recipe(tmp_path):
    run_dir = start(tmp_path, "run.name=a", "resume=true", "cpt.max_steps=600")  # absent: made
    fill(run_dir)
    identity = json.loads((run_dir / "run.json").read_text())["id"]
    start(tmp_path, "run.name=a", "resume=true", "cpt.max_steps=600", "nproc=2", "stage=cpt", "rl.save_total_limit=3")
    assert (run_dir / "rl" / "export" / "handoff.json").exists()
    assert json.loads((run_dir / "run.json").read_text())["id"] == identity
    with pytest.raises(RequestError, match=r"of cpt\.max_steps, sft\.max_steps; give cpt\.max_steps=600 sft"):
        start(tmp_path, "run.name=a", "resume=true", "cpt.max_steps=700", "sft.max_steps=9")
    assert load_recipe(run_dir).cpt.max_steps == 600
    with pytest.raises(RequestError, match=r"data\.mask\.keep"):
        start(tmp_path, "run.name=a", "resume=true", "data.mask.keep.echo=0.9")


def test_what_a_refused_resume_says_to_give_again_resumes(tmp_path):
    """Forgotten overrides, of every kind of value, copied out of the error."""
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    for name in ("a.jsonl", "b=c, d.jsonl"):
        (folder / name).write_text("")
    documents = f'data.documents=[{{name:law,path:"{folder}",share:0.1}}]'
    trajectories = f'data.trajectories=["{folder}/a.jsonl","{folder}/b=c, d.jsonl"]'
    given = [documents, trajectories, "cpt.learning_rate=3e-4", "data.mask.enabled=true", "data.mask.keep.echo=0.25"]
    given += ["data.mask.keep={other:0.5,action:0.125}", 'wandb.project=it\'s "mine"', "model.dtype=bfloat16"]
    run_dir = start(tmp_path, "run.name=a", "resume=true", *given)
    fill(run_dir)
    before = load_recipe(run_dir)
    with pytest.raises(RequestError) as caught:
        start(tmp_path, "run.name=a", "resume=true", "seed=7")
    text = str(caught.value)
    again = shlex.split(text.partition("; give ")[2].rpartition(" again, or use another run.name")[0])
    names = {word.partition("=")[0].partition(".keep")[0] for word in (*given, "seed=7")}
    assert {word.partition("=")[0].partition(".keep")[0] for word in again} == names
    start(tmp_path, "run.name=a", "resume=true", *again)
    assert load_recipe(run_dir) == before


def test_overwrite_deletes_the_run_or_the_stage_and_what_follows(tmp_path):
    run_dir = start(tmp_path, "run.name=a")
    fill(run_dir)
    start(tmp_path, "run.name=a", "overwrite=true", "stage=sft", "sft.max_steps=50")
    assert entries(run_dir) == {"recipe.yaml", "run.json", "data", "baselines.json", "base", "cpt"}
    assert load_recipe(run_dir).sft.max_steps == 50
    with pytest.raises(RequestError, match=r"cpt\.max_steps"):  # cpt stays, so must its recipe
        start(tmp_path, "run.name=a", "overwrite=true", "stage=sft", "cpt.max_steps=50")
    assert (run_dir / "cpt").exists()
    start(tmp_path, "run.name=a", "overwrite=true", "seed=3")
    assert entries(run_dir) == {"recipe.yaml", "run.json"}
    assert load_recipe(run_dir).seed == 3


def test_overwriting_rl_keeps_its_pilot_and_nothing_else_of_it(tmp_path):
    run_dir = start(tmp_path, "run.name=a")
    fill(run_dir)
    (run_dir / "rl" / "pilot").mkdir()
    (run_dir / "rl" / "completions").mkdir()
    (run_dir / "rl" / "pilot" / "settings.json").write_text("{}")
    start(tmp_path, "run.name=a", "overwrite=true", "stage=rl", "rl.mini_batches=1")
    assert entries(run_dir / "rl") == {"pilot"} and (run_dir / "rl" / "pilot" / "settings.json").exists()
    assert (run_dir / "sft" / "export").exists() and not (run_dir / "report.json").exists()
    start(tmp_path, "run.name=a", "overwrite=true", "stage=sft", "rl.mini_batches=1")
    assert not (run_dir / "rl").exists()


COLOCATED = ("rl.rollout.engine=vllm_colocate", "model.dtype=bfloat16", "engine.device=auto", "nproc=2")


@pytest.mark.parametrize(
    ("given", "lowered"),
    [
        ((), ("model.recompute=layers", "eval.batch_size=1", "eval.divided=true", "rl.rollout.batch_size=2")),
        (
            COLOCATED,
            ("rl.rollout.gpu_memory_utilization=0.2", "rl.rollout.tensor_parallel_size=2",
             "rl.rollout.enable_sleep_mode=true"),
        ),
    ],
)  # fmt: skip
def test_what_ran_out_of_memory_can_be_lowered_on_resume(tmp_path, given, lowered):
    run_dir = start(tmp_path, "run.name=a", *given)
    fill(run_dir)
    before = dict(leaves(load_recipe(run_dir)))
    start(tmp_path, "run.name=a", *given, "resume=true", *lowered)
    after = dict(leaves(load_recipe(run_dir)))
    differing = {key for key in after if after[key] != before[key]} - {"resume"}
    assert differing == {text.partition("=")[0] for text in lowered}
    with pytest.raises(RequestError, match=r"eval\.examples"):
        start(tmp_path, "run.name=a", *given, *lowered, "resume=true", "eval.examples=3")


def test_overwrite_starts_again_where_nothing_was_prepared(tmp_path):
    """A preparation that was refused leaves a recipe that the next try must be able to change, with any stage."""
    run_dir = start(tmp_path, "run.name=a", "stage=cpt")
    start(tmp_path, "run.name=a", "overwrite=true", "stage=cpt", "data.rl_prompt_tokens=5000")
    assert load_recipe(run_dir).data.rl_prompt_tokens == 5000
    fill(run_dir)
    with pytest.raises(RequestError, match=r"data\.rl_prompt_tokens"):
        start(tmp_path, "run.name=a", "overwrite=true", "stage=cpt", "data.rl_prompt_tokens=6000")


def test_overwriting_the_evaluation_keeps_the_models(tmp_path):
    run_dir = start(tmp_path, "run.name=a")
    fill(run_dir)
    start(tmp_path, "run.name=a", "overwrite=true", "stage=eval", "eval.examples=10")
    assert (run_dir / "rl" / "export" / "handoff.json").exists()
    assert not list(run_dir.glob("*/evaluation.json"))
    assert not (run_dir / "report.json").exists()


def test_a_folder_that_is_no_run_is_never_deleted(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("x")
    for flag in ("overwrite=true", "resume=true"):
        with pytest.raises(RequestError, match="not a run directory"):
            start(tmp_path, "run.name=precious", flag)
    assert entries(tmp_path / "precious") == {"thesis.txt"}


def test_an_unusable_root_leaves_nothing_behind(tmp_path):
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(RequestError, match="file"):
            start(root, "run.name=a")
    assert entries(tmp_path) == {"file"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_root_without_permission_is_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(RequestError, match="cannot make the run directory"):
        start(tmp_path / "closed" / "runs")
    assert list((tmp_path / "closed").iterdir()) == []


def test_a_start_that_fails_removes_the_folders_it_made(tmp_path, monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device", "recipe.yaml")

    monkeypatch.setattr("agentworld.train.run_directory.write_text", no_space)
    with pytest.raises(OSError, match="No space"):
        start(tmp_path / "deep" / "runs", "run.name=a")
    assert list(tmp_path.iterdir()) == []


HOLD = (
    "import sys, time\n"
    "from agentworld.train.compose import compose\n"
    "from agentworld.train.run_directory import open_run\n"
    "config = compose(['recipe=smoke', 'run.name=a', 'resume=true', f'run.root={sys.argv[1]}'])\n"
    "with open_run(config, []):\n"
    "    print('held', flush=True)\n"
    "    time.sleep(60)\n"
)


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            for flag in ("resume=true", "overwrite=true"):
                with pytest.raises(RequestError, match=f"in use by process {holder.pid} "):
                    start(tmp_path, "run.name=a", flag)
        finally:
            holder.send_signal(signal.SIGKILL)
    assert start(tmp_path, "run.name=a", "resume=true").name == "a"


def test_a_crash_while_writing_keeps_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    with pytest.raises(ValueError, match="Out of range"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")  # fails while the temporary file is written
    assert json.loads(path.read_text()) == {"a": 1}
    assert entries(tmp_path) == {"x.json"}


def test_run_json_is_extended(tmp_path):
    update_run_json(tmp_path, kernels={"a": 1})
    update_run_json(tmp_path, other=2)
    assert json.loads((tmp_path / "run.json").read_text()) == {"kernels": {"a": 1}, "other": 2}


def test_two_starts_at_once_under_one_name_make_one_run(tmp_path):
    code = HOLD.replace("'resume=true', ", "")
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        deadline = time.monotonic() + 30
        while all(process.poll() is None for process in both) and time.monotonic() < deadline:
            time.sleep(0.05)
        (winner,) = (process for process in both if process.poll() is None)
        assert winner.stdout.readline() == b"held\n"
        assert entries(tmp_path / "a") == {"recipe.yaml", "run.json"}
    finally:
        for process in both:
            process.kill()
            process.communicate()
