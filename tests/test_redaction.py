"""Redaction: every kind goes and keeps its form, what only looks like one stays, and equal values stay equal."""

import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from agentworld.data import importing
from agentworld.data.redaction import KINDS, redact
from agentworld.data.schema import System, Trajectory, Turn, read_jsonl

# None of these was ever valid; written in two parts so that no scanner takes them for real ones.
R36 = "q7Rt2LmX9vKd4NzW8pYb3HcF6sJg1TuQ5eAo"  # 36 letters and digits
HEX = "9f3c1b7ae24d8056c9e1f7a2b3d40586"
PEM_LINE = "MIIEowIBAAKCAQEAx7Gk2LmX9vKd4NzW8pYb3HcF6sJg1TuQ5eAoR7t2LmX9vKd4"  # 64


def one(text: str) -> Trajectory:
    return Trajectory("t", "terminal", "s", "g", System("task", "actions"), [Turn("cat x", text)])


def redacted(text: str) -> tuple[str, Counter[str]]:
    trajectory, counts = redact(one(text))
    return trajectory.turns[0].observation, counts


KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{PEM_LINE}\n{PEM_LINE[::-1]}\nc0FfEe==\n-----END RSA PRIVATE KEY-----"
KEY_REDACTED = (
    f"-----BEGIN RSA PRIVATE KEY-----\nREDACTED1{'x' * 55}\n{'x' * 64}\nxxxxxx==\n-----END RSA PRIVATE KEY-----"
)
FOUND = [
    ("email", "by Ann <ann.lee+x@mail.corp.org>.", "by Ann <redacted-1@example.com>."),
    ("email", "+Reply: to=bob@corp.co.uk,", "+Reply: to=redacted-1@example.com,"),
    ("email", r"{\"a\": \"x\nbob@corp.io\ncc\u003cbob@corp.io\"}",
     r"{\"a\": \"x\nredacted-1@example.com\ncc\u003credacted-1@example.com\"}"),
    ("email", "-bob@corp.org\n+eve@corp.org", "-redacted-1@example.com\n+redacted-2@example.com"),
    ("email", "\x1b[32mbob@corp.org\x1b[0m", "\x1b[32mredacted-1@example.com\x1b[0m"),
    ("email", "邮箱bob@corp.cn。mailto:bob@corp.cn", "邮箱redacted-1@example.com。mailto:redacted-1@example.com"),
    ("token", f"token ghp_{R36}", f"token ghp_REDACTED1{'x' * 27}"),
    ("token", rf"{{\"log\": \"a\nghp_{R36}\"}}", rf"{{\"log\": \"a\nghp_REDACTED1{'x' * 27}\"}}"),
    ("token", f"github_pat_{R36}_{R36}", f"github_pat_REDACTED1{'x' * 27}_{'x' * 36}"),
    ("token", "AKIA" + "Q7RT2LMX5VKD4NZW", "AKIAREDACTED1xxxxxxx"),
    ("token", "glpat-" + R36[:20] + "\n", f"glpat-REDACTED1{'x' * 11}\n"),
    ("token", "xoxb-" + "2314567890-Q7rT2LmX9vKd", "xoxb-REDACTED1x-xxxxxxxxxxxx"),
    ("token", f"sk-ant-api03-{R36}", f"sk-ant-REDACTED1{'x' * 33}"),
    ("token", f"OPENAI_API_KEY=sk-{R36}{R36[:12]}", f"OPENAI_API_KEY=sk-REDACTED1{'x' * 39}"),
    ("token", f"AIza{R36[:35]}", f"AIzaREDACTED1{'x' * 26}"),
    ("token", f"sk_live_{R36[:24]}", f"sk_live_REDACTED1{'x' * 15}"),
    ("token", f"hf_{R36[:34]}", f"hf_REDACTED1{'x' * 25}"),
    ("token", f"//registry/:_authToken=npm_{R36}", f"//registry/:_authToken=npm_REDACTED1{'x' * 27}"),
    ("token", f"SG.{R36[:22]}.{R36}{R36[:7]}", f"SG.REDACTED1{'x' * 13}.{'x' * 43}"),
    ("token", f"https://hooks.slack.com/services/T02{R36[:6]}/B03{R36[:6]}/{R36[:24]}",
     "https://hooks.slack.com/services/REDACTED1/xxxxxxxxx/xxxxxxxxxxxxxxxxxxxxxxxx"),
    ("token", f"bot 123456789:AA{R36[:33]}", f"bot 123456789:REDACTED1{'x' * 26}"),
    ("token", f"eyJhbGciOiJIUzI1NiJ9.eyJ{R36}.{R36[:20]}", f"eyJREDACTED1xxxxxxxx.{'x' * 39}.{'x' * 20}"),
    ("token", f"Authorization: Bearer {HEX}", f"Authorization: Bearer REDACTED1{'x' * 23}"),
    ("token", f'"api_key": "{HEX}"', f'"api_key": "REDACTED1{"x" * 23}"'),
    ("token", f"curl 'h?apikey={HEX}&q=1'", f"curl 'h?apikey=REDACTED1{'x' * 23}&q=1'"),
    ("private_key", KEY, KEY_REDACTED),
    ("private_key", KEY.replace("\n", "\\n"), KEY_REDACTED.replace("\n", "\\n")),
    ("private_key", f"{KEY[:-38]}exit code 0", f"{KEY_REDACTED[:-38]}exit code 0"),  # cut before the last line
    ("private_key", KEY.replace("\n", "\n    "), KEY_REDACTED.replace("\n", "\n    ")),
    ("url_password", "psql postgres://ann:Zq8Lm2vT@db.corp.org/x", "psql postgres://ann:REDACTED1@db.corp.org/x"),
    ("url_password", "https://:Zq8Lm2vTxK3@h", "https://:REDACTED1xx@h"),
    ("card", "card 4539 1488 0343 6467.", "card 0000 0000 0000 0001."),
    ("card", '"4539148803436467"', '"0000000000000001"'),
    ("card", "amex 3787-344936-71000", "amex 0000-000000-00001"),
    ("phone", 'text="+1 932-802-0043"', 'text="+1 000-000-0001"'),
    ("phone", "(212) 270-6000, 212-270-6001x12", "(000) 000-0001, 000-000-0002x12"),
    ("phone", "+44 20 7946 0958", "+44 00 0000 0001"),
]  # fmt: skip


@pytest.mark.parametrize("kind,text,expected", FOUND)
def test_each_kind_goes_and_keeps_its_form_and_the_rest_stays(kind, text, expected) -> None:
    found, counts = redacted(text)
    assert found == expected
    assert set(counts) == {kind}
    assert redacted(found) == (found, Counter())  # twice is once


STAYS = [
    "commit 4f70707ad0c6be2f6a1d3b9a8f7c5e4d3b2a1f00",
    "sha256-q7Rt2LmX9vKd4NzW8pYb3HcF6sJg1TuQ5eAoR7t2LmX=",
    '"integrity": "sha512-q7Rt2LmX9vKd4NzW8pYb3HcF6sJg1TuQ5eAoq7Rt2LmX9vKd4NzW8pYb3HcF6sJg1TuQ5eAo/+abc=="',
    "id 123e4567-e89b-42d3-a456-426614174000 etag W/\"9f3c1b7ae24d8056c9e1f7a2b3d40586\"",
    "numpy==1.26.4 lodash@4.17.21 node@18.2.0-rc.1 react@npm:18 actions/checkout@v4",
    "\\n@click.command(help='x')\n    @pytest.mark.parametrize\nself.W@x.T a@b.size A@B.to(device) @app.route('/')",
    "icon@2x.png conftest@main.py x@y.rs.bak root@box:~# user@host.local ann@localhost",
    "git clone git@github.com:corp/repo.git ssh://ann@corp.org/x https://user@corp.org/",
    "mia.li3818@example.com a@sub.example.org you@test.com john@yourcompany.com me@foo.com your.name@gmail.com",
    "AKIAIOSFODNN7EXAMPLE ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx hf_your_token sk-toggleable__control",
    "export API_KEY=$OPENAI_API_KEY api_key=settings.OPENAI_API_KEY_2 api_key='<your-api-key-goes-here-1234>'",
    "access_token = get_access_token_from_environment_v2() secret_key: my-very-long-name-2024",
    f"digest = {HEX} key: {HEX} cache_key={HEX}",
    "Authorization: Bearer $TOKEN and Bearer authentication_is_required_here",
    "postgres://postgres:postgres@localhost:5432/x http://user:password@host.com/ redis://:${REDIS_PASS}@h",
    "http://localhost:8000/@scope/x https://host:443/a@b time 12:30:45 @ 10:00",
    "-----BEGIN PUBLIC KEY-----\n" + PEM_LINE + "\n-----END PUBLIC KEY-----",
    "grep -r 'BEGIN RSA PRIVATE KEY' . found -----BEGIN PRIVATE KEY----- in no file that we looked at",
    "4539148803436468 4111 1111 1111 1111 -4539148803436467 0.4539148803436467 4539148803436467*t id_4539148803436467",
    "5425-2334-3010-9903-1 https://orcid.org/0000-0002-1825-0097 1234-5678-1234-5678 2024-01-02 4539148803436467000",
    "133-1396352-0284759 +2024-01-01 12:00 +1 -1 555-0100 (555) 555-0123 1.800.123 978-0-306-40615-7 123-456-7890",
    "[64,383][319,509] 10.0.0.1:8080 3600000000000 3.14159265358979 bounds=[0,10][90,40] 212-270-60001",
]  # fmt: skip


@pytest.mark.parametrize("text", STAYS)
def test_what_only_looks_like_one_stays(text) -> None:
    assert redacted(text) == (text, Counter())


def test_one_value_has_one_placeholder_in_system_actions_and_observations() -> None:
    given = Trajectory(
        "t", "web", "s", "g",
        System("Mail of ann@corp.org", "send(to)", "demo: bob@corp.org", "inbox of ANN@corp.org", "as bob@corp.org"),
        [Turn("send('bob@corp.org')", "sent to bob@corp.org", {"family": "x"}), Turn("id", "eve@corp.org", {"n": 1})],
    )  # fmt: skip
    found, counts = redact(given)
    a, b, e = (f"redacted-{n}@example.com" for n in (1, 2, 3))
    assert found == Trajectory(
        "t", "web", "s", "g",
        System(f"Mail of {a}", "send(to)", f"demo: {b}", f"inbox of {a}", f"as {b}"),
        [Turn(f"send('{b}')", f"sent to {b}", {"family": "x"}), Turn("id", e, {"n": 1})],
    )  # fmt: skip
    assert counts == {"email": 7}


def test_absent_parts_of_the_system_prompt_stay_absent() -> None:
    found, _ = redact(one("bob@corp.org"))
    assert (found.system.initial_state, found.system.simulation_instruction) == (None, None)
    clean = one("nothing")
    assert redact(clean)[0] is clean


def test_a_group_that_is_named_by_a_request_loses_its_name_and_stays_a_group() -> None:
    """Placeholders are numbered for each trajectory, so equal groups would part; a hash keeps them together."""
    first, counts = redact(replace(one("eve@corp.org"), split_group="s:write to bob@corp.org"))
    second, _ = redact(replace(one("nothing"), split_group="s:write to bob@corp.org"))
    other, _ = redact(replace(one("nothing"), split_group="s:write to ann@corp.org"))
    assert first.split_group == second.split_group != other.split_group
    assert "bob" not in first.split_group and first.split_group.startswith("s:")
    assert counts == Counter(email=2)
    assert redact(first)[0] == first
    assert redact(one("nothing"))[0].split_group == "g"


def test_other_writings_of_a_value_follow_it() -> None:
    phone = redact(Trajectory("t", "android", "s", "g", System("t", "a"), [
        Turn('{"text": "+19328020043"}', 'text="+1 932-802-0043"'), Turn("x", "9328020043 19328020043 (932) 802-0043"),
    ]))  # fmt: skip
    assert [(turn.action, turn.observation) for turn in phone[0].turns] == [
        ('{"text": "+10000000001"}', 'text="+1 000-000-0001"'),
        ("x", "0000000001 19328020043 (000) 000-0001"),
    ]
    assert redacted("4539 1488 0343 6467 4539148803436467")[0] == "0000 0000 0000 0001 0000000000000001"
    password = redacted("pg://ann:Zq8Lm2vTxK3w@h\nPGPASSWORD=Zq8Lm2vTxK3w psql # Zq8Lm2vTxK3wy")
    assert password == ("pg://ann:REDACTED1xxx@h\nPGPASSWORD=REDACTED1xxx psql # Zq8Lm2vTxK3wy", {"url_password": 2})


def test_new_placeholders_never_take_the_number_of_one_that_is_there() -> None:
    assert redacted("redacted-1@example.com bob@corp.org")[0] == "redacted-1@example.com redacted-2@example.com"
    assert redacted(f"ghp_REDACTED3{'x' * 27} hf_{R36[:34]}")[0] == f"ghp_REDACTED3{'x' * 27} hf_REDACTED4{'x' * 25}"
    assert redacted("+1 000-000-0001 +1 932-802-0043")[0] == "+1 000-000-0001 +1 000-000-0002"


def test_many_values_and_hostile_text_take_time_in_proportion() -> None:
    many = " ".join(f"u{n}@corp.org 212-{200 + n % 800}-{n % 10000:04} ghp_{n:06}{R36[6:]}" for n in range(3000))
    hostile = [
        many, "@" * 100_000, "a." * 50_000 + "@" + "a." * 50_000, "4 " * 50_000, "-----BEGIN PRIVATE KEY-----" * 4000,
        "-----BEGIN PRIVATE KEY-----\n" + "Abc: " * 20_000, "-----BEGIN PRIVATE KEY-----" + "A" * 100_000,
        "://a:b" * 20_000, "eyJ" * 30_000, "eyJaaaaaaaaaaaa." * 8000, "api_key=" * 10_000, "Bearer " * 10_000,
        "a" * 1_000_000, "\x00\u2028" * 50_000, "+1 " * 30_000, "\\" * 100_000,
    ]  # fmt: skip
    for text in hostile:
        start = time.perf_counter()
        redacted(text)
        assert time.perf_counter() - start < 5, text[:40]  # a quadratic pattern takes minutes
    assert redacted(many)[1] == {"email": 3000, "phone": 3000 - many.count("-555-"), "token": 3000}


@pytest.mark.skipif(not os.environ.get("AGENTWORLD_CORPORA"), reason="AGENTWORLD_CORPORA names no folder of recordings")
def test_real_recordings_lose_their_phone_numbers_and_nothing_else(tmp_path) -> None:
    """Read one by one: 24 of Faker tables, clinics, companies and contacts. Addresses there are redacted already
    (to redacted@example.com), and the other digits, hashes, decorators and ids of 13 MB stay."""
    out = tmp_path / "out.jsonl"
    report = importing.import_files([Path(os.environ["AGENTWORLD_CORPORA"])], out, say=lambda _: None)
    assert report["totals"]["redacted"] == dict.fromkeys(KINDS, 0) | {"phone": 77}
    assert not any(redact(trajectory)[1] for trajectory in read_jsonl(out))
