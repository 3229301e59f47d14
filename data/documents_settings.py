"""Settings of the documents that CPT reads beside trajectories: knowledge of the domains, general text as replay."""

from dataclasses import dataclass

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
