"""Documents of a recipe in the rows of CPT: asked for in the command, found in rows and report."""

import json
import re

import pyarrow.parquet as pq
import pytest
from preparation import prepare_from, write_source

from agentworld.data.documents_settings import DocumentSource
from agentworld.data.errors import RequestError
from agentworld.data.manifest import is_prepared
from agentworld.data.preparation_report import format_report
from agentworld.data.render import Renderer
from agentworld.data.settings import SplitSettings
from agentworld.data.tokenizer import load_tokenizer
from agentworld.train.compose import compose, load_recipe, to_yaml


def segments(out) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of each segment of the CPT rows."""
    found = []
    for row in pq.read_table(out / "rows" / "cpt.parquet").to_pylist():
        start = 0
        for length in row["seq_lengths"]:
            found.append((row["input_ids"][start : start + length], row["labels"][start : start + length]))
            start += length
    return found


def test_documents_stand_in_the_rows_of_cpt_and_in_the_report(tmp_path):
    texts = [f"Section {number}. <|im_end|> is text, and so is <think>." for number in range(200)]
    (tmp_path / "law.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    source = write_source(tmp_path)
    law = DocumentSource("law", str(tmp_path / "law.jsonl"), share=0.1)
    reports = [prepare_from(source, tmp_path / f"out{n}", documents=[law]) for n in range(2)]
    out = tmp_path / "out0"
    assert is_prepared(out)
    assert reports[0]["sha256"] == reports[1]["sha256"]
    without = prepare_from(source, tmp_path / "without")
    (entry,) = reports[0]["documents"]["sources"]
    assert reports[0]["rows"]["cpt"]["tokens"] == without["rows"]["cpt"]["tokens"] + entry["tokens"]
    assert without["documents"]["trajectories"]["share"] == 1
    renderer = Renderer(load_tokenizer(out / "tokenizer"))
    of_texts = {tuple(renderer.document(text).input_ids) for text in texts}
    assert abs(entry["tokens"] - without["rows"]["cpt"]["tokens"] / 9) <= max(map(len, of_texts)) / 2
    found = [(ids, labels) for ids, labels in segments(out) if tuple(ids) in of_texts]
    assert len(found) == entry["documents"]
    assert all(labels == [-100, *ids[1:]] for ids, labels in found)
    shown = format_report(reports[0])
    assert re.search(rf"law +knowledge +10\.0% +{entry['share']:.1%} +.*{entry['documents']}\n", shown)
    assert "of loss" not in format_report(without)


def test_documents_without_a_cpt_pool_are_refused_before_anything_is_read(tmp_path):
    law = DocumentSource("law", str(tmp_path), share=0.1)
    with pytest.raises(RequestError, match=r"data\.documents are read by CPT, and data\.split\.cpt=0"):
        prepare_from(tmp_path / "none", tmp_path / "out", documents=[law], split=SplitSettings(0.0, 0.5, 0.4, 0.1))
    with pytest.raises(RequestError, match=r"data\.documents\[law\]\.path: /no/such: no such file or folder"):
        prepare_from(tmp_path / "none", tmp_path / "out", documents=[DocumentSource("law", "/no/such", share=0.1)])


def test_the_command_line_takes_sources_and_names_what_is_wrong(tmp_path):
    written = "data.documents=[{name:law,path:law/,share:0.1},{name:web,dataset:a/b,kind:replay,share:0.05}]"
    config = compose(["recipe=smoke", written])
    assert config.data.documents == [
        DocumentSource("law", "law/", share=0.1),
        DocumentSource("web", dataset="a/b", kind="replay", share=0.05),
    ]
    (tmp_path / "recipe.yaml").write_text(to_yaml(config))
    assert load_recipe(tmp_path) == config
    with pytest.raises(RequestError, match=r"data\.documents\[0\] has no key nam; did you mean name\?"):
        compose(["recipe=smoke", "data.documents=[{nam:law}]"])
    with pytest.raises(
        RequestError, match=r"data\.documents: expected a list of mappings of name, path, dataset, config"
    ):
        compose(["recipe=smoke", "data.documents=[law]"])
    with pytest.raises(RequestError, match=r"law 0\.6 \+ web 0\.5 = 1\.1 leaves no share"):
        compose(["recipe=smoke", "data.documents=[{name:law,path:x,share:0.6},{name:web,path:x,share:0.5}]"])
