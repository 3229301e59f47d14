"""Settings of the documents that CPT reads beside trajectories: knowledge of the domains, general text as replay."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentworld.data.errors import RequestError

KINDS = ("knowledge", "replay")  # arXiv:2606.24597 section 3.2 | general text against forgetting


@dataclass
class DocumentSource:
    """One source of `data.documents`; exactly one of `path` and `dataset` is given.

    The share is one of all CPT tokens, trajectories included: two sources of 0.1 leave 0.8 to the trajectories, all of
    which are used.
    """

    name: str = ""  # in reports and draws: another name draws other documents
    path: str = ""  # a file (.txt .md .jsonl .parquet) or a folder of them
    dataset: str = ""  # what `datasets.load_dataset` takes; read as a stream
    config: str = ""  # of the dataset; empty = its default
    split: str = "train"  # of the dataset
    revision: str = ""  # of the dataset: a tag, branch or commit; empty = its newest
    column: str = "text"  # field or column that holds the text; a .txt or .md file is one document
    kind: str = "knowledge"  # knowledge | replay: reports add them up apart
    share: float = 0.0  # of the CPT tokens; 0 = the source is not read
    epochs: int = 1  # times that a document is used at most, where the source has too few tokens for its share
    max_documents: int = 0  # read so many and no more, from the beginning (for data sets too large to read); 0 = all


def key_of(source: DocumentSource) -> str:
    """How errors name a source."""
    return f"data.documents[{source.name}]"


def check_sources(sources: Sequence[DocumentSource]) -> None:
    """Raise RequestError, naming the key and the way out, for what contradicts itself, disks and networks aside."""
    for index, source in enumerate(sources):
        if not source.name:
            raise RequestError(f"data.documents[{index}].name is empty; name the source, reports and draws go by it")
        if source.name in [other.name for other in sources[:index]]:
            raise RequestError(f"data.documents: two sources are called {source.name!r}; give each a name of its own")
        key = key_of(source)
        if bool(source.path) == bool(source.dataset):
            found = "both" if source.path else "neither"
            raise RequestError(f"{key}: give either path (file or folder) or dataset (name), found {found}")
        if source.kind not in KINDS:
            raise RequestError(f"{key}.kind={source.kind}: expected one of {', '.join(KINDS)}")
        if not source.column:
            raise RequestError(f"{key}.column is empty; name the field or column that holds the text")
        if not 0 <= source.share < 1:
            raise RequestError(f"{key}.share={source.share}: a share of the CPT tokens is a number in [0, 1)")
        if source.epochs < 1 or source.max_documents < 0:
            raise RequestError(
                f"{key}: epochs={source.epochs} must be at least 1, max_documents={source.max_documents} at least 0"
            )
    total = math.fsum(source.share for source in sources)
    if total >= 1:
        shown = " + ".join(f"{source.name} {source.share:g}" for source in sources)
        raise RequestError(f"data.documents: {shown} = {total:g} leaves no share for trajectories; keep it below 1")


def check_paths(sources: Sequence[DocumentSource]) -> None:
    """Raise RequestError for a file or folder that is not there, of the sources that will be read."""
    for source in sources:
        if source.share > 0 and source.path and not Path(source.path).exists():
            raise RequestError(f"{key_of(source)}.path: {source.path}: no such file or folder")
