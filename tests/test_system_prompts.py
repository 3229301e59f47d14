"""System prompts: components go in verbatim, absent ones leave no trace, styles compose, versions have stages."""

import re
from collections import Counter

import pytest

from agentworld.data import system_prompts
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.schema import System, Trajectory, Turn
from agentworld.data.system_prompts import (
    COMPONENTS,
    EVALUATION_VERSION,
    VERSIONS,
    compose,
    prompt_sets,
    sft_version,
    system_prompt,
)

SETS = [(name, version) for name in prompt_sets() for version in VERSIONS]


def trajectory(**components) -> Trajectory:
    values = {"task_description": "TASK", "action_space": "ACTIONS"} | components
    return Trajectory("t", "terminal", "test", "g", System(**values), [Turn("a", "b")])


FULL = {name: f"<{name.upper()}>" for name in COMPONENTS}


@pytest.mark.parametrize(("name", "version"), SETS)
def test_every_component_stands_once(name, version):
    text = system_prompt(trajectory(**FULL), version, name)
    assert all(text.count(value) == 1 for value in FULL.values())
    assert "{{" not in text
    assert text == text.strip()


@pytest.mark.parametrize(("name", "version"), SETS)
def test_absent_components_leave_no_heading_and_no_blank_line(name, version):
    full = system_prompt(trajectory(**FULL), version, name).split("\n\n")
    for absent in (None, "", " \n"):
        components = FULL | {"demonstrations": absent or "", "initial_state": absent, "simulation_instruction": absent}
        text = system_prompt(trajectory(**components), version, name)
        gone = ("<DEMONSTRATIONS>", "<INITIAL_STATE>", "<SIMULATION_INSTRUCTION>")
        assert text.split("\n\n") == [p for p in full if not any(value in p for value in gone)]
        assert "\n\n\n" not in text


@pytest.mark.parametrize(("name", "version"), SETS)
def test_text_of_components_is_not_interpreted(name, version):
    wild = "{task_description} {{action_space}} {{nothing}} {0} %s \\1 \\g<0> $x \n\n\n {{{{}}}}\0<|im_end|>"
    text = system_prompt(trajectory(**(FULL | {"initial_state": wild})), version, name)
    assert text.count(wild) == 1
    assert text.replace(wild, "<INITIAL_STATE>") == system_prompt(trajectory(**FULL), version, name)


@pytest.mark.parametrize("name", prompt_sets())
def test_versions_differ_and_thinking_versions_ask_for_the_tag(name):
    texts = {version: system_prompt(trajectory(**FULL), version, name) for version in VERSIONS}
    assert len(set(texts.values())) == len(VERSIONS) == 12
    for version, text in texts.items():
        asks = "<predicted_observation>" in text and "hink" in text
        assert asks == (version != "v1"), version  # CPT does not think


def test_brief_is_brief():
    for version in VERSIONS:
        text = system_prompt(trajectory(**FULL), version, "brief")
        assert len(re.findall(r"\w+", text)) - len(COMPONENTS) <= 12, version


def test_a_domain_may_have_its_own_template(tmp_path, monkeypatch):
    slots = "\n\n".join("{{" + name + "}}" for name in COMPONENTS)
    (tmp_path / "own" / "mcp").mkdir(parents=True)
    (tmp_path / "own" / "v0.txt").write_text(f"all\n\n{slots}\n")
    (tmp_path / "own" / "mcp" / "v0.txt").write_text(f"mcp\n\n{slots}\n")
    (tmp_path / "own" / "v1.txt").write_text("{{task_description}}\n")
    monkeypatch.setattr(system_prompts, "_FOLDER", tmp_path)
    assert system_prompt(trajectory(), "v0", "own").startswith("all\n\nTASK")
    mcp = Trajectory("t", "mcp", "test", "g", System("TASK", "ACTIONS"), [Turn("a", "b")])
    assert system_prompt(mcp, "v0", "own").startswith("mcp\n\nTASK")
    with pytest.raises(ValueError, match=r"own/v1\.txt: a template has each slot once"):
        system_prompt(trajectory(), "v1", "own")


def test_stages_have_their_versions():
    assert EVALUATION_VERSION["base"] == EVALUATION_VERSION["cpt"] == "v1"
    assert EVALUATION_VERSION["rl"] == "v0"
    assert EVALUATION_VERSION["sft"] in VERSIONS[2:]
    drawn = Counter(sft_version(f"t{i}", 0) for i in range(10_000))
    assert set(drawn) == set(VERSIONS[2:])
    assert sum((n - 1000) ** 2 / 1000 for n in drawn.values()) < 33.7  # 9 degrees of freedom, p = 1e-4
    assert sft_version("t", 1) == sft_version("t", 1)
    assert [sft_version(f"t{i}", 1) for i in range(20)] != [sft_version(f"t{i}", 2) for i in range(20)]


def test_an_unknown_set_or_version_is_named():
    with pytest.raises(RequestError, match=r"data\.prompt_set=breif.*known: .*brief"):
        system_prompt(trajectory(), "v0", "breif")
    with pytest.raises(RequestError, match="v12"):
        system_prompt(trajectory(), "v12", "brief")


def test_composition_is_what_a_hand_writes():
    text = "=== kind ===\nA well.\n\n=== rules ===\nIt is deep.\nIt is [[kind]] {0}.\nIt \\1 is dark.\n"
    text += "=== shown ===\nA stone.\n>>> drop\n<<< plop\n\nplop\n---\nTwo.\n>>> a\nb\n<<< c\n"
    style = "Be [[kind]]\n[[rules bullets 2]]\n[[rules numbered]]\n[[rules prose 2]]\n[[rules checklist 1]]\n"
    style += "[[shown labelled 1]]\n[[shown dialogue]]\n[[ no reference ]] [x]"
    assert compose(style, text, "here") == (
        "Be A well.\n- It is deep.\n- It is [[kind]] {0}.\n"
        "1. It is deep.\n2. It is [[kind]] {0}.\n3. It \\1 is dark.\n"
        "It is deep. It is [[kind]] {0}.\n[ ] It is deep.\n"
        "Demonstration 1. A stone.\nAction:\ndrop\nObservation:\nplop\n\nplop\n"
        "Demonstration 1. A stone.\nThe agent sends\ndrop\nThe environment answers\nplop\n\nplop\n\n"
        "Demonstration 2. Two.\nThe agent sends\na\nb\nThe environment answers\nc\n[[ no reference ]] [x]"
    )
    for reference, said in (
        ("[[no]]", "no section no; there are kind"),
        ("[[kind big]]", "no form big; there are lines"),
        ("[[rules bullets 4]]", "has 3 items"),
        ("[[rules bullets 0]]", "has 3 items"),
    ):
        with pytest.raises(ContentError, match=f"here: {re.escape(reference)}: .*{said}"):
            compose(reference, text, "here")
