"""A rank's last words."""

import errno

from agentworld.train import worker


def test_a_full_disk_is_one_line_without_a_traceback(tmp_path, monkeypatch, capsys) -> None:
    """The traceback could not be written either."""

    def full(*_):
        raise OSError(errno.ENOSPC, "Error writing bytes to file")

    for name, function in (("stop.install", lambda: None), ("launch.die_with_parent", lambda: None)):
        monkeypatch.setattr(f"agentworld.train.{name}", function)
    monkeypatch.setattr(worker, "load_recipe", lambda run_dir: None)
    monkeypatch.setattr(worker, "run_stage", full)
    assert worker.main([str(tmp_path), "pilot"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "No space left on device; free space, and start again with resume=true" in error
    monkeypatch.setattr(worker, "run_stage", lambda *_: {}["a defect"])
    assert worker.main([str(tmp_path / "gone"), "pilot"]) == 1, "an unwritable traceback hides no defect"
    assert "KeyError: 'a defect' (no traceback: [Errno 2]" in capsys.readouterr().err
