"""Hand-offs and checkpoints: what is whole is taken, what is not is refused by name (faults 18, 20, 21)."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from agentworld.data.errors import ContentError
from agentworld.train import checkpoint


def write_weights(directory: Path) -> dict:
    (directory / "model-00001.safetensors").write_bytes(b"w" * 1000)
    (directory / "model-00002.safetensors").write_bytes(b"v" * 500)
    (directory / "config.json").write_text(json.dumps({"hidden_size": 64, "num_experts": 8}))
    shard = directory / "model-00001.safetensors"
    return {shard.name: {"bytes": 1000, "sha256": hashlib.sha256(b"w" * 1000).hexdigest()}}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    (directory / "tokenizer.json").write_text('{"model": 1}')
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    return directory


@pytest.fixture
def export(tmp_path: Path, tokenizer: Path) -> Path:
    path = tmp_path / "cpt" / "export"
    checkpoint.write_handoff(path, "cpt", 7, None, "recipe", "data", tokenizer, write_weights)
    return path


def test_a_handoff_says_what_made_it(export: Path, tokenizer: Path, tmp_path: Path) -> None:
    handoff = checkpoint.verify_handoff(export)
    assert handoff["stage"] == "cpt" and handoff["step"] == 7 and handoff["parent"] is None
    assert handoff["tokenizer_sha256"] == checkpoint.tokenizer_sha256(tokenizer)
    assert set(handoff["files"]) == {path.name for path in export.iterdir()} - {"handoff.json"}
    child = tmp_path / "sft" / "export"
    made = checkpoint.write_handoff(child, "sft", 1, export, "recipe", "data", tokenizer, write_weights)
    expected = {"path": str(export), "sha256": checkpoint.sha256_file(export / "handoff.json")}
    assert made["parent"] == expected


def test_an_interrupted_export_leaves_no_handoff(tmp_path: Path, tokenizer: Path) -> None:
    def cut_short(directory: Path) -> dict:
        write_weights(directory)
        raise KeyboardInterrupt

    path = tmp_path / "cpt" / "export"
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write_handoff(path, "cpt", 7, None, "recipe", "data", tokenizer, cut_short)
    assert not path.exists()
    with pytest.raises(ContentError, match="has not finished its export"):
        checkpoint.verify_handoff(path)
    checkpoint.write_handoff(path, "cpt", 7, None, "recipe", "data", tokenizer, write_weights)
    assert [entry.name for entry in path.parent.iterdir()] == ["export"]


def damage_cut(export: Path) -> str:
    (export / "model-00002.safetensors").write_bytes(b"v" * 499)
    return "model-00002.safetensors: 499 bytes"


def damage_missing(export: Path) -> str:
    (export / "model-00001.safetensors").unlink()
    return "model-00001.safetensors: missing"


def damage_altered(export: Path) -> str:
    (export / "model-00001.safetensors").write_bytes(b"x" * 1000)
    return "model-00001.safetensors: its content"


def damage_record(export: Path) -> str:
    (export / "handoff.json").write_text('{"format": "agentworld-handoff-1", "fi')
    return "handoff.json: not JSON"


def damage_format(export: Path) -> str:
    (export / "handoff.json").write_text('{"format": "other"}')
    return "not a hand-off of format"


DAMAGES = (damage_cut, damage_missing, damage_altered, damage_record, damage_format)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_handoff_is_refused_by_path_and_reason(export: Path, tokenizer: Path, damage) -> None:
    reason = damage(export)
    with pytest.raises(ContentError, match=reason):
        checkpoint.accept_parent(export, "sft", tokenizer, None)


def test_foreign_parents_are_refused(export: Path, tokenizer: Path, tmp_path: Path) -> None:
    checkpoint.accept_parent(export, "sft", tokenizer, {"hidden_size": 64})
    with pytest.raises(ContentError, match="hidden_size is 64, the recipe's model has 128"):
        checkpoint.accept_parent(export, "sft", tokenizer, {"hidden_size": 128})
    with pytest.raises(ContentError, match="made by stage cpt, which does not come before cpt"):
        checkpoint.accept_parent(export, "cpt", tokenizer, None)
    other = shutil.copytree(tokenizer, tmp_path / "other")
    (other / "tokenizer.json").write_text('{"model": 2}')
    with pytest.raises(ContentError, match="not the run's tokenizer"):
        checkpoint.accept_parent(export, "sft", other, None)


def test_a_plain_hugging_face_directory_is_a_start(tmp_path: Path, tokenizer: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    write_weights(plain)
    checkpoint.accept_parent(plain, "cpt", tokenizer, {"num_experts": 8})
    with pytest.raises(ContentError, match=r"no handoff\.json"):
        checkpoint.accept_parent(tmp_path / "absent", "cpt", tokenizer, None)


def made_checkpoint(directory: Path, step: int, complete: bool = True) -> Path:
    checkpoint.begin(directory, needed=1)
    name = f"checkpoint-{step}"
    path = (directory / checkpoint.UNFINISHED if complete else directory) / name
    (path / "global_step").mkdir(parents=True)
    (path / "trainer_state.json").write_text("{}")
    (path / "global_step" / "optimizer.pt").write_bytes(b"o" * 100)
    if complete:
        checkpoint.complete(directory, name)
    else:
        shutil.rmtree(directory / checkpoint.UNFINISHED)
    return directory / name


def test_the_newest_whole_checkpoint_wins(tmp_path: Path) -> None:
    warnings: list[str] = []
    assert checkpoint.newest_checkpoint(tmp_path, warnings.append) is None
    whole = made_checkpoint(tmp_path, 9)
    cut = made_checkpoint(tmp_path, 100)
    (cut / "global_step" / "optimizer.pt").write_bytes(b"o" * 99)
    unfinished = made_checkpoint(tmp_path, 120, complete=False)
    assert checkpoint.newest_checkpoint(tmp_path, warnings.append) == whole
    assert [str(unfinished) in warnings[0], str(cut) in warnings[1]] == [True, True]
    assert "optimizer.pt has 99 bytes instead of 100" in warnings[1] and len(warnings) == 2
    (whole / "trainer_state.json").unlink()
    assert checkpoint.newest_checkpoint(tmp_path, warnings.append) is None


def test_rotation_keeps_the_last_whole_ones(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8):
        made_checkpoint(tmp_path, step)
    made_checkpoint(tmp_path, 5, complete=False)
    newer_unfinished = made_checkpoint(tmp_path, 10, complete=False)
    checkpoint.rotate(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-6", "checkpoint-8"]
    assert newer_unfinished.exists()


def test_rotation_never_deletes_the_only_whole_one(tmp_path: Path) -> None:
    whole = made_checkpoint(tmp_path, 2)
    made_checkpoint(tmp_path, 4, complete=False)
    checkpoint.rotate(tmp_path, keep=1)
    assert checkpoint.damage(whole) is None


def test_a_save_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContentError, match="a checkpoint needs up to"):
        checkpoint.begin(tmp_path, needed=1 << 60)


def test_a_save_that_was_killed_is_no_checkpoint_and_gives_way_to_the_next(tmp_path: Path) -> None:
    whole = made_checkpoint(tmp_path, 2)
    checkpoint.begin(tmp_path, needed=1)
    killed = tmp_path / checkpoint.UNFINISHED / "checkpoint-4"
    killed.mkdir()
    (killed / "optimizer.pt").write_bytes(b"o" * 7)
    assert checkpoint.newest_checkpoint(tmp_path, pytest.fail) == whole
    newer = made_checkpoint(tmp_path, 4)
    assert not list(newer.glob("optimizer.pt")), "nothing of the killed save is in the next one"
    assert checkpoint.newest_checkpoint(tmp_path, pytest.fail) == newer
    assert not (tmp_path / checkpoint.UNFINISHED).exists()


def test_a_damaged_checkpoint_is_replaced_by_a_new_one_of_its_step(tmp_path: Path) -> None:
    damaged = made_checkpoint(tmp_path, 4)
    (damaged / "global_step" / "optimizer.pt").write_bytes(b"o")
    assert checkpoint.damage(damaged)
    assert checkpoint.damage(made_checkpoint(tmp_path, 4)) is None
