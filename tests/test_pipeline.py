"""The order of a run, what a second start skips, and how a stop or a failure ends it.

The workers are replaced by a function that leaves behind what they would; the rest is the real pipeline.
"""

import json
import signal
from pathlib import Path

import pytest

from agentworld.data.errors import ContentError, RequestError
from agentworld.train import checkpoint, pilot_groups, pipeline
from agentworld.train.compose import compose
from agentworld.train.launch import Outcome

ALL = ["base", "evaluate:base", "cpt", "evaluate:cpt", "sft", "evaluate:sft", "rl", "evaluate:rl"]


def write_weights(folder: Path) -> dict:
    (folder / "model.safetensors").write_bytes(b"weights")
    return {}


class Workers:
    """Stands where `launch` stood: writes the hand-off or the evaluation of a step and notes the step."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.steps: list[str] = []
        self.ranks: dict[str, int] = {}
        self.ending: dict[str, Outcome] = {}  # step -> how it ends instead of being done
        self.prepared = 0
        self.prompts = 8
        self.environment = {"DS_ACCELERATOR": "cpu"}
        self.given: list[str] = []  # the recipe, where a worker needs it

    def launch(self, arguments, nproc, log_dir, environment) -> Outcome:
        run_dir, step = Path(arguments[2]), arguments[3]
        self.steps.append(step)
        self.ranks[step] = nproc
        assert environment == self.environment
        if step in self.ending:
            return self.ending[step]
        stage = step.removeprefix("evaluate:")
        export = run_dir / stage / "export"
        if step == "pilot":
            settings = pilot_groups.settings_of(compose(self.given), run_dir, run_dir / "sft" / "export")
            pilot_groups.directory(run_dir).mkdir(parents=True, exist_ok=True)
            report = {"settings": settings, "dropped": {"solved": [], "hopeless": []}}
            (pilot_groups.directory(run_dir) / "report.json").write_text(json.dumps(report))
        elif step == stage:
            checkpoint.write_handoff(
                export,
                stage=stage,
                step=1,
                parent=None,
                recipe_sha256="",
                data_sha256=None,
                tokenizer=self.root,
                write_weights=write_weights,
            )
        else:
            handoff = export / "handoff.json"
            content = {"handoff_sha256": checkpoint.sha256_file(handoff) if handoff.exists() else None}
            (run_dir / stage).mkdir(exist_ok=True)
            (run_dir / stage / "evaluation.json").write_text(json.dumps(content))
        return Outcome(0)

    def prepare(self, settings, seed, out, teacher, tokenizer, say) -> dict:
        self.prepared += 1
        out.mkdir()
        count = {"given": 9, "kept": self.prompts, "too_long": 9 - self.prompts, "shortest_tokens": 77}
        (out / "report.json").write_text(json.dumps({"rl": count}))
        (out / "manifest.json").write_text('{"sha256": "d"}')
        return {}


@pytest.fixture
def workers(tmp_path, monkeypatch) -> Workers:
    (tmp_path / "tokenizer.json").write_text("{}")
    made = Workers(tmp_path)
    monkeypatch.setattr(pipeline, "launch", made.launch)
    monkeypatch.setattr(pipeline.prepare, "prepare", made.prepare)
    monkeypatch.setattr(pipeline.prepare, "is_prepared", lambda out: (out / "manifest.json").exists())
    monkeypatch.setattr(pipeline, "format_report", lambda report: "prepared")
    monkeypatch.setattr(pipeline.report, "write", lambda run_dir: (run_dir / "report.json").write_text("{}"))
    monkeypatch.setattr(pipeline.report, "render", lambda content: "the table")
    return made


def run(workers: Workers, *overrides: str) -> int:
    given = ["recipe=smoke", "run.name=a", *overrides]
    return pipeline.run(compose([*given, f"run.root={workers.root}/runs"]), given)


def test_a_run_goes_through_its_stages_and_reports(workers, capsys):
    assert run(workers, "cpt.max_steps=600", "sft.max_steps=60", "rl.max_steps=61") == 0
    assert workers.steps == ALL
    assert workers.prepared == 1
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.startswith("[")] == [
        "[1/8] base: a model with random weights",
        "[2/8] evaluate base",
        "[3/8] cpt: 600 steps",
        "[4/8] evaluate cpt",
        "[5/8] sft: 60 steps",
        "[6/8] evaluate sft",
        "[7/8] rl: 61 steps",
        "[8/8] evaluate rl",
    ]
    assert shown[-1] == "the table"


@pytest.mark.parametrize(("gpus", "said"), [(0, True), (2, False)])
def test_a_run_that_looked_for_a_gpu_says_that_there_is_none(workers, monkeypatch, capsys, gpus, said):
    monkeypatch.setattr(pipeline, "visible_gpus", lambda: gpus)
    workers.environment = {} if gpus else workers.environment
    assert run(workers, "engine.device=auto", "nproc=2") == 0
    assert ("no GPU is visible" in capsys.readouterr().out) == said


def test_more_ranks_than_gpus_are_refused_but_for_tasks_of_srun(workers, monkeypatch):
    monkeypatch.setattr(pipeline, "visible_gpus", lambda: 1)
    with pytest.raises(RequestError, match="nproc=2, and 1 GPUs are visible here: set nproc=1, submit"):
        run(workers, "engine.device=auto", "nproc=2")
    assert not (workers.root / "runs").exists()
    monkeypatch.setattr(pipeline.srun, "is_launcher", lambda: True)
    workers.environment = {}
    assert run(workers, "engine.device=auto", "nproc=2") == 0


@pytest.mark.parametrize("stopped_in", ALL)
def test_a_run_stopped_anywhere_continues_where_it_was(workers, stopped_in, capsys):
    workers.ending[stopped_in] = Outcome(3)
    assert run(workers) == 3
    assert capsys.readouterr().out.endswith(
        "stopped; continue with:\n  agentworld train recipe=smoke run.name=a resume=true\n"
    )
    workers.ending.clear()
    workers.steps.clear()
    assert run(workers, "resume=true") == 0
    assert workers.steps == ALL[ALL.index(stopped_in) :]
    assert workers.prepared == 1
    workers.steps.clear()
    assert run(workers, "resume=true") == 0  # nothing is left to do
    assert workers.steps == []


@pytest.mark.parametrize("stopped_in", ["pilot", "rl"])
def test_the_pilot_comes_right_before_rl_and_is_done_once(workers, stopped_in, capsys):
    workers.given = ["recipe=smoke", "rl.pilot_completions=4"]
    expected = [*ALL[:6], "pilot", *ALL[6:]]
    workers.ending[stopped_in] = Outcome(3)
    assert run(workers, "rl.pilot_completions=4") == 3
    assert "[7/9] pilot: 4 completions of each RL prompt\n" in capsys.readouterr().out
    workers.ending.clear()
    workers.steps.clear()
    assert run(workers, "rl.pilot_completions=4", "resume=true") == 0
    assert workers.steps == expected[expected.index(stopped_in) :]
    workers.steps.clear()
    assert run(workers, "rl.pilot_completions=4", "resume=true", "eval.batch_size=8") == 0
    (workers.root / "runs" / "a" / "rl" / "pilot" / "report.json").write_text('{"settings": {}, "dropped": {}}')
    assert run(workers, "rl.pilot_completions=4", "resume=true") == 0
    assert workers.steps == [], "RL is exported: another pilot would change nothing"


@pytest.mark.parametrize(
    ("given", "again"),
    [
        (["rl.learning_rate=1e-6", "rl.mini_batches=1"], []),
        (["rl.drop_solved=false"], ["pilot"]),  # the report; test_pilot.py: nothing is sampled
        (["rl.temperature=0.9"], ["pilot"]),
    ],
)
def test_overwriting_rl_keeps_a_pilot_that_still_holds(workers, given, again):
    workers.given = ["recipe=smoke", "rl.pilot_completions=4"]
    assert run(workers, "rl.pilot_completions=4") == 0
    workers.steps.clear()
    assert run(workers, "rl.pilot_completions=4", "stage=rl", "overwrite=true", *given) == 0
    assert workers.steps == [*again, "rl", "evaluate:rl"]


def test_rl_that_has_begun_does_not_go_on_with_another_pilot(workers):
    """Verifiers may change under their path; then the pilot would leave other prompts."""
    workers.given = ["recipe=smoke", "rl.pilot_completions=4"]
    workers.ending["rl"] = Outcome(3)
    assert run(workers, "rl.pilot_completions=4") == 3
    folder = workers.root / "runs" / "a" / "rl"
    (folder / "pilot" / "report.json").write_text(json.dumps({"settings": {"reward_sha256": "other"}, "dropped": {}}))
    (folder / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    with pytest.raises(ContentError, match="RL has begun from it; put those files back, or start RL anew"):
        run(workers, "rl.pilot_completions=4", "resume=true")


def test_the_printed_command_keeps_the_overrides(workers, capsys):
    workers.ending["cpt"] = Outcome(3)
    run(workers, "cpt.max_steps=30", "data.mask.keep={echo: 0.5}", "overwrite=true")
    last = capsys.readouterr().out.splitlines()[-1]
    assert (
        last == "  agentworld train recipe=smoke cpt.max_steps=30 'data.mask.keep={echo: 0.5}' run.name=a resume=true"
    )


@pytest.mark.parametrize("signals", [("SIGTERM",), ("SIGUSR1",), ("SIGTERM", "SIGUSR1"), ("SIGUSR1", "SIGTERM")])
def test_an_interrupt_while_preparing_can_be_resumed(workers, monkeypatch, capsys, signals):
    """SLURM may send SIGTERM beside the SIGUSR1 of a job's script: the second one does not cut the way out."""

    def interrupted(*_):
        try:
            signal.raise_signal(signal.Signals[signals[0]])
        finally:
            for name in signals[1:]:
                signal.raise_signal(signal.Signals[name])

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.prepare, "prepare", interrupted)
        assert run(workers) == 3
    assert "resume=true" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert run(workers, "resume=true") == 0


def test_a_stop_file_ends_the_run_and_does_not_end_the_next_start(workers):
    original = workers.launch

    def and_ask_to_stop(arguments, *rest):
        (workers.root / "runs" / "a" / "stop").write_text("")
        return original(arguments, *rest)

    pipeline.launch, kept = and_ask_to_stop, pipeline.launch
    try:
        assert run(workers) == 3
    finally:
        pipeline.launch = kept
    assert workers.steps == ["base"]
    assert run(workers, "resume=true") == 0
    assert workers.steps == ALL


def test_a_failed_stage_is_named_with_its_log(workers, capsys):
    workers.ending["sft"] = Outcome(1, 1)
    assert run(workers, "nproc=2", "rl.completions_per_device=8") == 1
    assert workers.steps[-1] == "sft"
    error = capsys.readouterr().err.splitlines()
    assert error == [
        f"agentworld: error: sft failed on rank 1; its error stands in {workers.root}/runs/a/sft/rank1.log"
    ]
    assert workers.ranks == {step: 1 if step == "base" else 2 for step in workers.steps}


def test_a_failure_of_which_srun_names_the_task_says_where_to_look(workers, capsys):
    workers.ending["sft"] = Outcome(1, killed_by=9)
    assert run(workers) == 1
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1 and "sft failed" in error[0] and f"{workers.root}/runs/a/sft/rank<task>.log" in error[0]


def test_a_wrong_request_found_by_a_worker_keeps_its_code(workers):
    workers.ending["cpt"] = Outcome(2, 0)
    assert run(workers) == 2


def test_a_stage_alone(workers):
    assert run(workers, "stage=data") == 0
    assert workers.steps == []
    assert run(workers, "stage=cpt", "resume=true") == 0
    assert workers.steps == ALL[:4]
    workers.steps.clear()
    with pytest.raises(RequestError, match="exists"):
        run(workers, "stage=sft")
    assert run(workers, "stage=sft", "resume=true") == 0
    assert workers.steps == ["sft", "evaluate:sft"]
    workers.steps.clear()
    assert run(workers, "stage=sft", "overwrite=true", "sft.max_steps=50") == 0
    assert workers.steps == ["sft", "evaluate:sft"]
    workers.steps.clear()
    assert run(workers, "stage=eval", "resume=true", "sft.max_steps=50") == 0
    assert workers.steps == ["evaluate:base", "evaluate:cpt", "evaluate:sft"]
    assert workers.prepared == 1


def test_a_missing_hand_off_before_a_stage_is_refused_before_anything_is_deleted(workers):
    run(workers, "stage=cpt")
    (workers.root / "runs" / "a" / "cpt" / "export" / "handoff.json").unlink()
    kept = sorted((workers.root / "runs").rglob("*"))
    with pytest.raises(RequestError, match=r"stage=sft needs the hand-off .*cpt/export.*stage=cpt first"):
        run(workers, "stage=sft", "overwrite=true")
    assert sorted((workers.root / "runs").rglob("*")) == kept


@pytest.mark.parametrize("damage", ["cut", "missing", "altered"])
def test_a_damaged_hand_off_is_refused_by_the_next_stage_and_by_resume(workers, damage):
    run(workers, "stage=cpt")
    weights = workers.root / "runs" / "a" / "cpt" / "export" / "model.safetensors"
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(b"weight" if damage == "cut" else b"WEIGHTS")
    workers.steps.clear()
    for overrides in (["stage=sft", "overwrite=true"], ["stage=all", "resume=true"]):
        with pytest.raises(ContentError, match=r"model\.safetensors"):
            run(workers, *overrides)
    assert workers.steps == []


def given_model(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (directory / name).write_text("{}")
    return directory


@pytest.mark.parametrize(
    ("missing", "reason"),
    [("model.safetensors", "holds neither model.safetensors"), ("tokenizer.json", "no tokenizer")],
)
def test_a_given_model_that_is_not_whole_is_refused_before_the_data_are_prepared(workers, tmp_path, missing, reason):
    model = given_model(tmp_path / "given")
    (model / missing).unlink()
    with pytest.raises(RequestError, match=reason):
        run(workers, f"model.path={model}")
    assert not (workers.root / "runs" / "a").exists()


def test_a_given_model_is_evaluated_and_not_built(workers, tmp_path, monkeypatch):
    model = given_model(tmp_path / "given")
    monkeypatch.setattr(pipeline, "load_tokenizer", lambda path: path)
    assert run(workers, f"model.path={model}") == 0
    assert workers.steps == ALL[1:]
    workers.steps.clear()
    (model / "model.safetensors").unlink()  # a resumed run has what it needs
    assert run(workers, f"model.path={model}", "resume=true") == 0
    assert workers.steps == []


def test_a_stage_may_start_from_a_given_model(workers, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "load_tokenizer", lambda path: path)
    assert run(workers, f"model.path={given_model(tmp_path / 'given')}", "stage=rl") == 0
    assert workers.steps == ["rl", "evaluate:rl"]


def test_too_few_prompts_for_a_rollout_stop_before_any_stage(workers):
    workers.prompts = 7
    with pytest.raises(ContentError, match=r"7 of 9 prompts are left, 2 .*shortest has 77.*_rollout=8"):
        run(workers)
    assert workers.steps == []
    assert run(workers, "resume=true", "stage=cpt") == 0


def test_overwrite_refuses_to_delete_its_own_inputs(workers):
    assert run(workers) == 0
    kept = workers.root / "runs" / "a" / "data" / "recorded.jsonl"
    kept.write_text("{}\n")
    with pytest.raises(RequestError, match=r"data\.trajectories.*lies in.*overwrite=true deletes"):
        run(workers, "overwrite=true", f"data.trajectories=[{kept}]")
    assert kept.exists() and (workers.root / "runs" / "a" / "rl" / "export").exists()


def test_a_damaged_base_keeps_what_overwrite_would_delete(workers):
    assert run(workers) == 0
    export = workers.root / "runs" / "a" / "base" / "export"
    (export / "model.safetensors").write_bytes(b"altered")
    with pytest.raises(ContentError, match=r"model\.safetensors"):
        run(workers, "overwrite=true", "stage=cpt")
    assert (workers.root / "runs" / "a" / "rl" / "export").exists()


def test_a_damaged_evaluation_is_made_again(workers):
    assert run(workers) == 0
    workers.steps.clear()
    (workers.root / "runs" / "a" / "sft" / "evaluation.json").write_text('{"stage": "sf')
    assert run(workers, "resume=true") == 0
    assert workers.steps == ["evaluate:sft"]
