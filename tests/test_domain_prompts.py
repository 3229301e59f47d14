"""The prompt set `domains`: 84 prompts, distinct and complete, that say of each domain what the importer writes."""

import json
import re
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from recorded import needs_corpora, recorded

from agentworld.data import system_prompts
from agentworld.data.formats import android_world
from agentworld.data.render import CLOSE_TAG, OPEN_TAG
from agentworld.data.schema import DOMAINS, System, Trajectory, Turn
from agentworld.data.system_prompts import COMPONENTS, SFT_VERSIONS, VERSIONS, system_prompt
from agentworld.data.tokenizer import CONTROL_TOKENS

FULL = {name: f"<{name.upper()}>" for name in COMPONENTS}
FOLDER = Path(system_prompts.__file__).parent / "prompts" / "domains"
CELLS = list(product(DOMAINS, VERSIONS))
SECTIONS = ["environment", "action_heading", "action_form", "observation_form", "state", "exact", "plausible"]
SECTIONS += ["runtime", "errors", "never", "mistakes", "cases", "demonstrations"]


def of_domain(domain: str, version: str, **components) -> str:
    made = Trajectory("t", domain, "test", "g", System(**(FULL | components)), [Turn("a", "b")])
    return system_prompt(made, version, "domains")


def specification(domain: str) -> dict[str, list[str]]:
    """Section name to its items, read without the code under test."""
    text = (FOLDER / domain / "specification.txt").read_text(encoding="utf-8")
    names = [line[4:-4] for line in text.splitlines() if line.startswith("=== ")]
    assert names == SECTIONS
    bodies = [body.strip("\n") for body in re.split(r"^=== \w+ ===$", text, flags=re.MULTILINE)[1:]]
    return {
        name: body.split("\n---\n" if name == "demonstrations" else "\n")
        for name, body in zip(names, bodies, strict=True)
    }


def pairs(domain: str) -> list[tuple[str, str]]:
    """Action and observation of the demonstrations, in order."""
    text = "\n".join(specification(domain)["demonstrations"])
    found = re.findall(r"^>>> (.*?)\n<<< (.*?)(?=\n>>> |\n[A-Z][^\n]*[.:]\n>>> |\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(found) == len(re.findall(r"^>>> ", text, re.MULTILINE)) >= 3
    return found


def test_the_84_are_distinct():
    texts = {cell: of_domain(*cell) for cell in CELLS}
    assert len(texts) == len(set(texts.values())) == 84
    opening = {cell: text.split("\n\n")[0] for cell, text in texts.items() if cell[1] in ("v0", "v1")}
    assert len(set(opening.values())) == 14  # v0 and v1 are written for each domain
    for domain in DOMAINS:  # styles do not share their sentences: at most what the specification gives them
        frames = {v: set((FOLDER / f"{v}.txt").read_text(encoding="utf-8").splitlines()) for v in SFT_VERSIONS}
        for one, other in product(SFT_VERSIONS, SFT_VERSIONS):
            shared = {line for line in frames[one] & frames[other] if "[[" not in line and "{{" not in line and line}
            assert one == other or len(shared) <= 2, (domain, one, other, shared)


@pytest.mark.parametrize(("domain", "version"), CELLS)
def test_each_of_the_84_is_complete(domain, version):
    text = of_domain(domain, version)
    assert [text.count(value) for value in FULL.values()] == [1] * len(COMPONENTS)
    assert not re.search(r"\{\{\w+\}\}|\[\[\w+( \w+)*\]\]|===|TODO", text)
    for string in (*CONTROL_TOKENS, "<|", "|>", "<think", "</think"):
        assert string not in text, string
    assert all(char.isprintable() or char in "\n\t" for char in text)
    tags = 0 if version == "v1" else 1
    assert (text.count(OPEN_TAG), text.count(CLOSE_TAG)) == (tags, tags)
    assert bool(re.search(r"\b[Tt]hink", text)) == (version != "v1")
    for absent in product((None, "here"), repeat=2):
        less = of_domain(domain, version, initial_state=absent[0], simulation_instruction=absent[1])
        kept = [p for p in text.split("\n\n") if absent[0] or "<INITIAL_STATE>" not in p]
        kept = [p for p in kept if absent[1] or "<SIMULATION_INSTRUCTION>" not in p]
        expected = "\n\n".join(kept)
        assert less == re.sub("<INITIAL_STATE>|<SIMULATION_INSTRUCTION>", "here", expected)
        assert less.count(OPEN_TAG) == tags, "the answer's form went with an optional component"


@pytest.mark.parametrize("domain", DOMAINS)
def test_styles_tell_the_specification(domain):
    items = specification(domain)
    bare = {"initial_state": None, "simulation_instruction": None, "demonstrations": ""}
    texts = {version: of_domain(domain, version, **bare) for version in SFT_VERSIONS}
    for name, lines in items.items():  # the long one leaves nothing out
        shown = [line for line in "\n".join(lines).replace("---", "").splitlines() if line]
        shown = [re.sub(r"^(>>>|<<<) ", "", line) for line in shown]
        assert all(line in texts["v3"] for line in shown), name
    for version, text in texts.items():  # each says what an observation is, what carries over, errors, no commentary
        for name in ("observation_form", "state", "errors", "never", "demonstrations"):
            assert items[name][0].splitlines()[-1].removeprefix("<<< ") in text, (version, name)
    short = {version: of_domain(domain, version) for version in ("v0", "v1")}
    assert all(word in short["v0"] for word in ("exact", "plausible", "format and", "range")), domain
    assert "right format and" in short["v1"]


@pytest.mark.parametrize("domain", DOMAINS)
def test_lengths_run_from_tens_of_lines_to_hundreds(domain):
    lines = {version: len(of_domain(domain, version).splitlines()) for version in VERSIONS}
    assert 24 <= lines["v1"] < 36 <= lines["v0"] < 70
    assert 40 <= lines["v2"] < 75
    assert 220 <= lines["v3"] < 320
    assert all(40 < lines[version] < 160 for version in SFT_VERSIONS if version != "v3")
    words = {version: len(of_domain(domain, version).split()) for version in SFT_VERSIONS}
    assert min(words, key=words.get) == "v2" and max(words, key=words.get) == "v3" and words["v3"] > 6 * words["v2"]


@pytest.mark.parametrize(("domain", "version"), CELLS)
def test_tools_and_demonstrations_are_those_of_the_trajectory(domain, version):
    tools = '{"name": "lamp", "parameters": {"type": "object"}}\n\n{"name": "bell"}\\1 {{initial_state}}'
    one = of_domain(domain, version, action_space=tools, demonstrations="")
    assert one.count(tools) == 1
    assert one.replace(tools, "<ACTION_SPACE>") == of_domain(domain, version, demonstrations=" \n")
    assert "<DEMONSTRATIONS>" not in one and "of this session:\n\n" not in one


ANDROID_TEXTS = "".join(rf'(?: ?{name}="(?:[^"\\]|\\.)*")?' for name in ("text", "desc", "hint", "res"))
ANDROID_LINE = re.compile(
    rf"\[ *(\d+)\] \| [\w.$]+(?: \| {ANDROID_TEXTS})? \| bounds=(?:\[-?\d+,-?\d+\]){{2}}(?: \| ([\w, ]+))?"
)
WEB_NODE = re.compile(r"""\t+(?:\[\w+\] )?\w+(?: (?:'.*'|".*"))?(?: value=(?:'.*?'|".*?"))?(?:, .*)?""")
WEB_VALUE = re.compile(r"['\"], value=")
FLAGS = [flag for flag, _, _ in android_world.FLAGS]


def has_form(domain: str, observation: str) -> bool:
    """Whether an observation of Android, web or a desktop has the form that the prompts describe."""
    rows = observation.split("\n")
    if domain == "android":
        found = [ANDROID_LINE.fullmatch(row) for row in rows]
        flags = [match[2].split(", ") if match and match[2] else [] for match in found]
        return all(match and int(match[1]) == i for i, match in enumerate(found)) and all(
            names == sorted(names, key=FLAGS.index) for names in flags
        )
    if domain == "os":
        head = "tag\tname\ttext\tclass\tdescription\tposition (top-left x&y)\tsize (w&h)"
        return rows[0] == head and {row.count("\t") for row in rows} == {6}
    tabs, _, tree = observation.partition("\n\nAccessibility tree:\n")
    nodes = tree.split("\n")
    return (
        re.match(r"Open tabs:\n- Tab \d+.*\n  - Title: .*\n  - URL: .*", tabs) is not None
        and nodes[0].startswith("RootWebArea '")
        and all(WEB_NODE.fullmatch(node) and not WEB_VALUE.search(node) for node in nodes[1:])
    )


def test_demonstrations_have_the_forms_that_the_importer_writes():
    for domain in ("mcp", "android"):
        for action, _ in pairs(domain):
            assert json.loads(action).keys() >= ({"name", "arguments"} if domain == "mcp" else {"action_type"})
    assert all(json.loads(action)["action_type"] in android_world.ACTION_SPACE for action, _ in pairs("android"))
    assert all(re.fullmatch(r"\w+\(.*\)", action) for action, _ in pairs("web"))
    for domain in ("android", "os", "web"):
        assert all(has_form(domain, observation) for _, observation in pairs(domain))
    typed = [json.loads(action) for action, _ in pairs("terminal") if action.startswith("[")]
    assert len(typed) >= 6 and all(step.keys() == {"keystrokes", "duration"} for steps in typed for step in steps)
    assert all(re.match(r"(Search|Lookup|Finish)\[.*\]$", action) for action, _ in pairs("search"))


@needs_corpora
def test_recorded_trajectories_render_in_every_version():
    seen, formed = Counter(), Counter()
    for made in recorded():
        seen[made.domain] += 1
        if made.domain in ("android", "os", "web"):  # the demonstrations and the recordings pass the same test
            targets = [turn.observation for turn in made.turns if "context_only" not in turn.meta]
            formed[made.domain] += sum(has_form(made.domain, observation) for observation in targets)
            formed[made.domain, "all"] += len(targets)
        if seen[made.domain] > 40:
            continue
        for version in VERSIONS:
            text = system_prompt(made, version, "domains")
            for name in COMPONENTS:
                assert (getattr(made.system, name) or "") in text
            assert text.count(OPEN_TAG) == (version != "v1")
    assert seen.keys() == set(DOMAINS)
    assert [formed[d] / formed[d, "all"] for d in ("android", "os", "web")] == [1.0, 1.0, 1.0]
