"""The sandbox of verifiers against hostile code: no verdict and why, nothing harmed, and the good ones still answer."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentworld.rewards import sandbox
from agentworld.rewards.sandbox import Limits, Task

GOOD = "import re\ndef verify(prediction):\n    return re.search(r'^exit 7$', prediction, re.M) is not None\n"
ANOTHER_USER = 61001
LIMITS = Limits(seconds=1.0, batch_seconds=4.0, memory_bytes=256 << 20)


pytestmark = pytest.mark.usefixtures("sandboxed")


def body(*lines: str) -> str:
    return "def verify(prediction):\n" + "".join(f"    {line}\n" for line in lines)


# Each with what the reason must hold. Those that go on after the attack would say yes: the attack must not help them.
HOSTILE = {
    "infinite loop": (body("while True: pass"), "no answer within 1 s"),
    "sleeps": (body("import time", "time.sleep(100)"), "no answer within 1 s"),
    "memory bomb": (body("x = []", "while True: x.append(bytes(10**7))"), "MemoryError"),
    "one huge number": (body("return 10**10**8 > 1"), ""),
    "fork bomb": (body("import os", "while True: os.fork()"), "PermissionError"),
    "starts a program": (body("import os", "os.execv('/bin/sh', ['sh', '-c', 'true'])"), "PermissionError"),
    "thread that hangs": (
        body("import threading, time", "threading.Thread(target=time.sleep, args=(99,)).start()", "return True"),
        "",
    ),
    "raw thread": (
        body("import _thread, time", "_thread.start_new_thread(time.sleep, (99,))", "return True"),
        "RuntimeError",
    ),
    "socket": (body("import _socket", "_socket.socket().connect(('127.0.0.1', 22))", "return True"), ""),
    "reads a file": (body("return 'root' in open('/etc/passwd').read()"), "PermissionError"),
    "lists home": (body("import os", "return bool(os.listdir(os.path.expanduser('~')))"), "PermissionError"),
    "reads its parent": (body("return bool(open('/proc/1/environ').read())"), "PermissionError"),
    "writes": (body("open('{outside}', 'w').write('x')", "return True"), "PermissionError"),
    "prints a result": (body("print('[true, true]', flush=True)", "import os", "os._exit(0)"), "without an answer"),
    "writes to descriptors": (
        body("import os", "for d in range(9):", "    try: os.write(d, b'1')", "    except OSError: 0", "os._exit(0)"),
        "pipe of its answer",
    ),
    "fills descriptors": (
        body("import os", "for d in range(64):", "    try: os.write(d, b'1' * 10**6)", "    except OSError: pass"),
        "pipe of its answer",
    ),
    "huge output": (body("while True: print('x' * 10**6)"), "no answer within 1 s"),
    "sys.exit": (body("import sys", "sys.exit(0)"), "SystemExit"),
    "os._exit": (body("import os", "os._exit(0)"), "exit status 0"),
    "at import": ("import os\nos._exit(3)\n", "exit status 3"),
    "kills its parent": (
        body("import os", "import _signal", "os.kill(os.getppid(), _signal.SIGKILL)", "return True"),
        "PermissionError",
    ),
    "kills everything": (body("import os", "os.kill(-1, 9)", "return True"), "PermissionError"),
    "segmentation fault": (body("import ctypes", "ctypes.string_at(0)"), "killed by signal 11"),
    "deep recursion": (body("return verify(prediction)"), "RecursionError"),
    "no function": ("def check(prediction): return True\n", "no function verify"),
    "no Python": ("def verify(prediction:\n", "SyntaxError"),
    "not a bool": (body("return 'yes'"), "answered str"),
    "huge exception": (body("raise ValueError('x' * 10**7)"), "ValueError: xxx"),
    "raw socket": (body("import ctypes", "return ctypes.CDLL(None).socket(2, 1, 0) >= 0"), ""),
    "raw signal": (body("import ctypes", "return ctypes.CDLL(None).kill(1, 9) == 0"), ""),
}  # fmt: skip


def test_hostile_verifiers_get_no_verdict_and_harm_nothing(tmp_path) -> None:
    """One sandbox runs all of them, a good verifier after each: none takes another's verdict or its time."""
    outside = tmp_path / "written"
    tasks = []
    for source, _ in HOSTILE.values():
        tasks += [Task(source.replace("{outside}", str(outside)), ["x"]), Task(GOOD, ["exit 7", "exit 70"])]
    start = time.monotonic()
    answers = sandbox.run(tasks, LIMITS, workers=1)
    assert time.monotonic() - start < 60
    for name, (answer,), good in zip(HOSTILE, answers[::2], answers[1::2], strict=True):
        assert good == [True, False], name
        if name.startswith("raw "):
            assert answer is False or isinstance(answer, str), name  # refused: the call answers -1
            continue
        assert isinstance(answer, str) and HOSTILE[name][1] in answer and len(answer) < 300, (name, answer)
    assert not outside.exists()


def test_a_python_whose_libraries_stand_elsewhere_starts_and_the_verifier_sees_no_environment(monkeypatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere/lib")
    asks = "import os\ndef verify(prediction):\n    return len(os.environ) == 0\n"
    assert sandbox.run([Task(asks, ("",))]) == [[True]]


def test_answers_keep_their_order_and_calls_share_no_state() -> None:
    counting = "seen = []\ndef verify(prediction):\n    seen.append(prediction)\n    return len(seen) == 1\n"
    tasks = [Task(GOOD, [f"exit {n}", "exit 7"]) for n in range(5)] + [Task(counting, ["a", "b", "c"])]
    answers = sandbox.run(tasks, workers=3)
    assert answers == [[False, True]] * 5 + [[True, True, True]]
    assert sandbox.run([]) == []
    text = "\ud800 caf\u00e9 \U0001f600 \r\n\x00"
    assert sandbox.run([Task(f"def verify(prediction):\n    return prediction == {text!r}\n", [text, text + " "])]) == [
        [True, False]
    ]


SEARCH = """
import gc, sys
def verify(prediction):
    frame, found = sys._getframe(), []
    while frame:
        found += map(repr, frame.f_locals.values())
        frame = frame.f_back
    for thing in gc.get_objects() + [module.__dict__ for module in sys.modules.values()]:
        found += [repr(one) for one in thing] if type(thing) in (list, tuple) else []
        found += [repr(one) for one in thing.values()] if type(thing) is dict else []
    sought = " ".join(["OTHER", "TEXT"])
    return any(sought in one for one in found)
"""


def test_a_call_cannot_look_at_what_others_are_asked() -> None:
    """Else a verifier could say yes to the first of its predictions, which is the truth when it is validated."""
    tasks = [Task("# OTHER TEXT\n" + GOOD, ["x"]), Task(SEARCH, ["mine", "OTHER TEXT", "last"])]
    tasks.append(Task(GOOD, ["OTHER TEXT"]))
    assert sandbox.run(tasks, Limits(seconds=5.0), workers=1)[1] == [False, True, False]


def test_every_promised_module_can_be_imported_and_no_other() -> None:
    sources = [f"import {name}\ndef verify(prediction):\n    return True\n" for name in sandbox.MODULES]
    late = body("import datetime", "return datetime.datetime.strptime('2026', '%Y').year == 2026")
    answers = sandbox.run([Task(source, [""]) for source in (*sources, late)], workers=2)
    assert answers == [[True]] * len(answers)
    ((answer,),) = sandbox.run([Task("import sqlite3\n" + GOOD, ["x"])])
    assert "ModuleNotFoundError" in answer


def test_a_batch_ends_when_its_time_is_over() -> None:
    slow = "def verify(prediction):\n    while prediction == 'slow': pass\n    return True\n"
    limits = Limits(seconds=0.4, batch_seconds=0.9)
    ((first, good, *rest),) = sandbox.run([Task(slow, ["slow", "fast", *["slow"] * 4, "fast"])], limits)
    assert "no answer within 0.4 s" in first and good is True
    assert "of its batch were over" in rest[-1] and all(isinstance(answer, str) for answer in rest)


def test_a_sandbox_that_dies_or_hangs_gives_reasons(monkeypatch) -> None:
    tasks = [Task(GOOD, ["exit 7"]), Task(GOOD, ["a", "b"])]
    assert sandbox._answers(tasks, "[true]\n[fal", "Killed\n") == [[True], ["the sandbox ended early: Killed"] * 2]
    monkeypatch.setattr(sandbox, "START_SECONDS", 0.0)
    answers = sandbox.run([Task(body("while True: pass"), ["x"])], Limits(seconds=0.01), workers=1)
    assert isinstance(answers[0][0], str)


def test_an_unusable_system_is_refused_with_the_way_out() -> None:
    with pytest.raises(sandbox.UnavailableError, match=r"unshare: not permitted.*user namespaces.*reward.verifiers"):
        sandbox._answers([Task(GOOD, ["x"])], '{"failed": "unshare: not permitted"}\n', "")


def test_processes_end_with_the_one_that_started_them(tmp_path) -> None:
    """SIGKILL of the caller takes the verifier that runs with it."""
    program = (
        "from agentworld.rewards.sandbox import *\n"
        "run([Task('def verify(p):\\n    while True: pass\\n', ['x'])], Limits(60.0, 60.0))\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    children: list[int] = []
    while len(children) < 3 and caller.poll() is None:
        children = descendants(caller.pid)
        time.sleep(0.02)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    end = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < end:
        time.sleep(0.02)
    assert len(children) == 3 and not any(Path(f"/proc/{child}").exists() for child in children)


def descendants(number: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{number}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *descendants(child)]
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_without_privileges_gets_the_same_walls(tmp_path) -> None:
    """The system's Python as another user, since that of the tests may stand in a closed folder."""
    python = next((p for p in ("/usr/bin/python3", "/usr/local/bin/python3") if os.access(p, os.X_OK)), None)
    if python is None:
        pytest.skip("no Python of the system")
    worker = Path(sandbox.sandbox_worker.__file__).read_text()
    quick = {name: pair for name, pair in HOSTILE.items() if "no answer" not in pair[1] and name != "one huge number"}
    tasks = [Task(source, ["x"]) for source, _ in quick.values()]
    done = subprocess.run(
        [python, "-s", "-S", "-c", worker],
        input=sandbox.request_of([*tasks, Task(GOOD, ["exit 7", ""])], LIMITS),
        capture_output=True,
        timeout=60,
        user=ANOTHER_USER,
        group=ANOTHER_USER,
        extra_groups=[],
        env={},
        cwd="/",
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if lines and isinstance(lines[0], dict):
        pytest.skip(f"no user namespaces for users: {lines[0]['failed']}")
    assert lines.pop() == [True, False], done
    for (name, (_, reason)), (answer,) in zip(quick.items(), lines, strict=True):
        assert answer is not True and (not isinstance(answer, str) or reason in answer), (name, answer)
