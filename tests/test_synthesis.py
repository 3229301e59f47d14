"""`agentworld verifiers` against a server that writes good, bad and hostile programs; its checks and their rules."""

import hashlib
import json
from collections import Counter
from dataclasses import replace

import pytest
from judge_server import KEY, judge_server, share_of
from proposals import PROMPT, propose, trajectory

from agentworld.data.examples import example, one_turn
from agentworld.data.schema import write_jsonl
from agentworld.rewards import sandbox, synthesis_checks
from agentworld.rewards.judge_reply import ReplyError
from agentworld.rewards.sandbox import Task
from agentworld.rewards.synthesis import _eligible
from agentworld.rewards.synthesis_checks import Proposal, Rollouts, check, damaged, read_rollouts
from agentworld.rewards.synthesis_prompt import TooLongError, _parsed_choice, _parsed_code, turns_question
from agentworld.rewards.turn_verifiers import truth_hash
from agentworld.train import cli

WORDS = {
    "good": "apple7", "fooled": "salt", "always yes": "rose", "always no": "sand", "crashes": "oak",
    "crashes on the empty": "elm", "loose": "fir", "kills": "ash", "hangs": "yew", "reads": "ivy", "invents": "fig",
    "declines": "rye", "nothing to see": "hay", "chooses the clock": "oat", "talks": "pea",
}  # fmt: skip
# What becomes of each; "fooled" is kept without rollouts.
DROPPED = {
    "always yes": "a damaged truth passes",
    "always no": "the truth fails",
    "crashes": "no verdict on the truth",
    "crashes on the empty": "no verdict on a damaged truth",
    "loose": "a damaged truth passes",
    "kills": "no verdict on the truth",
    "hangs": "no verdict on the truth",
    "reads": "no verdict on the truth",
    "invents": "a fact that is not in the truth",
    "declines": "declined",
    "nothing to see": "trajectory of which no turn was chosen",
    "chooses the clock": "a turn that was not eligible",
    "talks": "request failed",
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(synthesis_checks, "CHECKED", replace(synthesis_checks.CHECKED, seconds=1.0))
    write_jsonl(tmp_path / "in.jsonl", [trajectory(kind, word) for kind, word in WORDS.items()])
    return tmp_path


def arguments(folder, server, *more: str) -> list[str]:
    named = ["verifiers", str(folder / "in.jsonl"), "--out", str(folder / "out.jsonl"), "--attempts", "2"]
    return [*named, "--base-url", server.address, "--model", "m", "--report", str(folder / "report.json"), *more]


def rollout(kind: str, observation: str, **more) -> dict:
    one = trajectory(kind, WORDS[kind])
    turn = one.turns[1]
    tagged = f"<predicted_observation>{observation}</predicted_observation>"
    row = {"id": one.id, "domain": "terminal", "turn": 1, "action": turn.action, "truth": turn.observation}
    return row | {"prediction": tagged} | more


@pytest.mark.usefixtures("sandboxed")
def test_the_verb_keeps_what_proves_itself_and_asks_nothing_twice(files, capsys, monkeypatch) -> None:
    monkeypatch.setenv("VERIFIER_KEY", KEY)
    monkeypatch.setattr("agentworld.rewards.judge_client.backoff_seconds", lambda *_: 0.0)
    with judge_server(answer=propose) as server:
        # The request of "talks" fails for good, so the code is 1; what was answered is written all the same.
        assert cli.main(arguments(files, server, "--key-variable", "VERIFIER_KEY")) == 1
        shown = capsys.readouterr()
        assert "1 requests failed" in shown.err and "asks for the rest" in shown.err
        asked = Counter(request.user for request in server.requests)
        talk = [user for user in asked if "kind: talks" in user]
        assert sorted(asked.values()) == [1] * (len(asked) - 1) + [2] and asked[talk[0]] == 2
        assert len(asked) == len(WORDS) + len(WORDS) - 3  # of three no program is asked
        assert {request.authorization for request in server.requests} == {f"Bearer {KEY}"}
        first, number = (files / "out.jsonl").read_bytes(), len(server.requests)
        assert cli.main(arguments(files, server, "--key-variable", "VERIFIER_KEY")) == 1
        assert len(server.requests) == number + 2, "only what failed is asked again"
        assert (files / "out.jsonl").read_bytes() == first
    rows = [json.loads(line) for line in first.splitlines()]
    assert [row["id"] for row in rows] == ["good apple7", "fooled salt"]
    truth = f"cat a.txt\napple7\n{PROMPT}"
    wanted = {"turn": 1, "axis": "long_context", "facts": ["apple7"], "domain": "terminal", "model": "m", "rollouts": 0}
    assert rows[0].items() >= {**wanted, "truth_sha256": hashlib.sha256(truth.encode()).hexdigest()}.items()
    assert sandbox.run([Task(rows[0]["code"], [truth, truth.replace("7", "8")])]) == [[True, False]]
    found = json.loads((files / "report.json").read_text())
    assert found["dropped"] == Counter(DROPPED.values())
    assert (found["trajectories"], found["kept"], found["kept_by_domain"]) == (15, {"long_context": 2}, {"terminal": 2})
    assert found["requests"]["cached"] == len(asked) - 1 and KEY not in json.dumps(found) + shown.err + shown.out


@pytest.mark.usefixtures("sandboxed")
def test_rollouts_decide_by_the_rubric_and_a_bad_server_costs_nothing(files, capsys, monkeypatch) -> None:
    monkeypatch.setattr("agentworld.rewards.judge_client.backoff_seconds", lambda *_: 0.0)
    kinds = ("good", "fooled")
    write_jsonl(files / "in.jsonl", [trajectory(kind, WORDS[kind]) for kind in kinds])
    rows = [rollout(kind, trajectory(kind, WORDS[kind]).turns[1].observation) for kind in kinds]
    rows += [rollout("good", f"cat a.txt\npear\n{PROMPT}"), rollout("good", "x", prediction="no tag")]
    rows += [rollout("good", f"cat a.txt\npear\n{PROMPT}", rubric=None)]
    rows += [rollout("fooled", "All is well: salt", rubric=5.0), rollout("fooled", "pear", rubric=5.0)]
    rows += [rollout("good", "of another truth", truth="x", rubric=25.0)]
    (files / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = ("--rollouts", str(files / "rollouts.jsonl"), "--agreement", "0.9", "--attempts", "20", "--limit", "2")
    faults = share_of(0.4, ("429", "500", "garbage", "html", "half-json", "empty"))
    with judge_server(answer=propose, fault=faults) as server:
        assert cli.main(arguments(files, server, *more)) == 0
    kept = [json.loads(line) for line in (files / "out.jsonl").read_text().splitlines()]
    assert [(row["id"], row["rollouts"], row["agreed"]) for row in kept] == [("good apple7", 2, 2)]
    found = json.loads((files / "report.json").read_text())
    assert found["dropped"] == {"the rubric disagrees": 1} and found["rollouts"]["unusable"] == 2
    assert found["examples"] == {"the rubric disagrees": ["fooled salt#1: 2 of 3 rollouts"]}
    assert found["requests"]["retries"] > 0


@pytest.mark.usefixtures("sandboxed")
def test_an_endpoint_that_refuses_everything_ends_the_verb(files, capsys) -> None:
    with judge_server(answer=propose, fault=lambda request: "401") as server:
        assert cli.main(arguments(files, server)) == 1
        assert len(server.requests) == len(WORDS)
    assert "none of the first 15 requests succeeded: m: HTTP 401" in capsys.readouterr().err
    assert not (files / "out.jsonl").exists() and not list(files.glob(".*"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--base-url", "https://user:secret@host/v1"], "--base-url must be"),
        (["--base-url", "http://host:99999/v1"], "--base-url must be"),
        (["--temperature", "nan"], "--temperature nan"),
        (["--key-variable", "sk-secret"], "--key-variable must be the name"),
        (["--key-variable", "NO_SUCH_KEY_HERE"], "not set or empty"),
        (["--out", "{folder}/in.jsonl"], "would be replaced"),
        (["--rubric-yes", "25"], "no mean from 1 to 5"),
        (["--rollouts", "{folder}/nowhere.jsonl"], "no such file"),
    ],
)
def test_wrong_requests_are_refused_without_their_secrets(files, capsys, more, said) -> None:
    base = [
        "verifiers",
        str(files / "in.jsonl"),
        "--out",
        str(files / "o"),
        "--base-url",
        "http://h/v1",
        "--model",
        "m",
    ]
    assert cli.main([*base, *(text.replace("{folder}", str(files)) for text in more)]) == 2
    shown = capsys.readouterr().err
    assert said in shown and "secret" not in shown


def proposal(code: str = "", facts: tuple[str, ...] = ("apple7",)) -> Proposal:
    return Proposal(example(trajectory("good", "apple7"), 1), "long_context", facts, code)


def test_a_damaged_truth_lacks_a_fact_and_damage_elsewhere_is_free() -> None:
    texts = damaged(proposal())
    stale = [text for name, text in texts if name == "stale state"]
    assert stale == [f"echo apple7 > a.txt\n{PROMPT}"], "it holds the fact, and is the wrong answer all the same"
    assert all("apple7" not in text for _, text in texts if text not in stale)
    names = {name for name, _ in texts}
    assert {"empty", "gap in a fact", "wrong number in a fact", "typo in a fact"} <= names
    assert ("typo in a fact", f"cat a.txt\npaple7\n{PROMPT}") in texts
    assert ("wrong number in a fact", f"cat a.txt\napple8\n{PROMPT}") in texts
    assert "praise added" not in names and not any(text == proposal().example.observation for _, text in texts)
    two = damaged(proposal(facts=("apple7", "box")))  # each fact is damaged by itself
    assert ("gap in a fact", "cat a.txt\napple7\nuser@:~$ ") in two


@pytest.mark.usefixtures("sandboxed")
def test_no_rollouts_of_another_truth_count_and_short_facts_are_refused() -> None:
    good = "def verify(p):\n    return p.split('\\n')[1:2] == ['apple7']\n"
    assert [one.reason for one in check([proposal(good), proposal(good, (" 7",))], Rollouts(), 1.0)] == [
        "",
        "a fact too short",
    ]


def test_rollouts_of_the_wrong_shape_name_their_line(tmp_path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(rollout("good", "x")) + '\n{"id": "a", "turn": 1}\n')
    with pytest.raises(ValueError, match=r"r\.jsonl:2: a rollout needs"):
        read_rollouts(path, "tagged", 4.0)


def test_replies_are_read_strictly() -> None:
    def block(language: str, body: str) -> str:
        return f"```{language}\n{body}\n```\n"

    with pytest.raises(ReplyError, match="turns"):
        _parsed_choice(block("json", '{"turns": [{"turn": 1, "axis": "speed"}]}'))
    with pytest.raises(ReplyError, match="no fenced block of JSON"):
        _parsed_choice('{"turns": []}')
    assert json.loads(_parsed_choice(block("", '{"turns": []}')))["turns"] == []
    with pytest.raises(ReplyError, match="defines verify"):
        _parsed_code(block("json", '{"facts": ["a"]}') + block("python", "def check(p): return True"))
    with pytest.raises(ReplyError, match="list of texts"):
        _parsed_code(block("json", '{"facts": "a"}'))
    one, other = "def verify(p):\n    return False", "def verify(p):\n    return 'x' in p"
    reply = f"<think>{block('python', one)}</think>" + block("json", '{"facts": ["x"]}') + block("python", other)
    assert json.loads(_parsed_code(reply.replace("\n", "\r\n"))) == {"facts": ["x"], "code": other + "\n"}


def test_questions_fit_their_budget_or_are_refused() -> None:
    long = trajectory("good", "apple" * 20_000)
    question = turns_question(long, [0, 1], 4000)
    assert question.tokens < 6000 and "characters left out" in question.user
    with pytest.raises(TooLongError):
        turns_question(long, [0, 1], 100)


def test_the_hash_is_of_the_text_as_it_stands() -> None:
    assert truth_hash("a\n") == hashlib.sha256(b"a\n").hexdigest() != truth_hash("a")
    assert len(truth_hash("\ud800")) == 64


def test_a_seed_leaves_the_turn_that_rl_asks() -> None:
    found = [_eligible(trajectory("good", word), seed) for word in ("a1", "b2", "c3", "d4") for seed in range(8)]
    for number, word in enumerate(("a1", "b2", "c3", "d4")):
        for seed in range(8):
            turn = one_turn(trajectory("good", word), seed)
            assert found[8 * number + seed] == ([turn] if turn < 2 else []), "the third turn depends on the clock"
    assert _eligible(trajectory("good", "a1"), None) == [0, 1] and [] in found


def test_rollouts_of_a_judge_of_pairs_are_refused(tmp_path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(rollout("good", "x", rubric=25.0, scores={"win": 1.0})) + "\n")
    with pytest.raises(ValueError, match=r"r\.jsonl:1: scored by a judge of pairs"):
        read_rollouts(path, "tagged", 4.0)
