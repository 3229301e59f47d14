"""Tokenizers: control tokens as in the Qwen family, the same bytes for the same texts, and nothing lost on disk."""

import hashlib
import os
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.tokenizer import (
    CONTROL_TOKENS,
    END_THINK,
    IM_END,
    IM_START,
    MIN_VOCAB_SIZE,
    PAD,
    THINK,
    adapt,
    load_tokenizer,
    train_tokenizer,
)

TEXTS = ["cat notes.txt\nalpha beta", "echo alpha beta\nalpha beta", 'user@box:~$ [{"keystrokes": "ls"}]'] * 20


def test_control_tokens_come_last_and_only_chat_markers_are_special():
    tokenizer = train_tokenizer(TEXTS, 300)
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    assert sorted(added) == list(range(len(tokenizer) - 5, len(tokenizer)))
    assert [added[number].content for number in sorted(added)] == list(CONTROL_TOKENS)
    assert {token.content: token.special for token in added.values()} == {
        PAD: True,
        IM_START: True,
        IM_END: True,
        THINK: False,
        END_THINK: False,
    }
    assert len(tokenizer) <= 300
    assert (tokenizer.eos_token, tokenizer.pad_token) == (IM_END, PAD)
    assert tokenizer.eos_token_id != tokenizer.pad_token_id
    # Think tags survive a decoder that skips special tokens, as a server's does.
    ids = tokenizer(f"{IM_START}a{THINK}b{END_THINK}{IM_END}").input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == f"a{THINK}b{END_THINK}"


def test_training_learns_the_corpus():
    tokenizer = train_tokenizer(TEXTS, 400)
    assert len(tokenizer(" alpha beta").input_ids) == 2
    assert len(train_tokenizer([], 400)) == MIN_VOCAB_SIZE


def test_same_texts_give_the_same_bytes_in_another_process():
    digest = hashlib.sha256(train_tokenizer(TEXTS, 330).backend_tokenizer.to_str().encode()).hexdigest()
    code = (
        "import hashlib\nfrom agentworld.data.tokenizer import train_tokenizer\n"
        f"print(hashlib.sha256(train_tokenizer({TEXTS!r}, 330).backend_tokenizer.to_str().encode()).hexdigest())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == digest


def test_too_small_a_vocabulary_is_refused():
    with pytest.raises(RequestError, match=r"data\.tokenizer_vocab_size=260.*261"):
        train_tokenizer(TEXTS, 260)


def test_disk_round_trip(tmp_path):
    given = train_tokenizer(TEXTS, 300)
    given.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.backend_tokenizer.to_str() == given.backend_tokenizer.to_str()
    for name in ("eos_token_id", "pad_token_id", "padding_side", "chat_template"):
        assert getattr(loaded, name) == getattr(given, name), name
    assert loaded.padding_side == "left"


def test_adapting_keeps_the_ids_and_the_original(tmp_path):
    base = train_tokenizer(TEXTS, 300)
    base.chat_template, base.eos_token, base.padding_side = "{{ 'foreign' }}", PAD, "right"
    base.save_pretrained(tmp_path / "base")
    original = load_tokenizer(tmp_path / "base")
    adapted = adapt(original)
    assert (original.eos_token, original.chat_template) == (PAD, "{{ 'foreign' }}")
    assert adapted.get_vocab() == original.get_vocab()
    adapted.save_pretrained(tmp_path / "adapted")
    loaded = load_tokenizer(tmp_path / "adapted")
    assert (loaded.eos_token, loaded.pad_token, loaded.padding_side) == (IM_END, PAD, "left")
    messages = [{"role": "user", "content": "x"}]
    text = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == f"{IM_START}user\nx{IM_END}\n{IM_START}assistant\n"
    # What is written names no directory of this machine.
    assert str(tmp_path) not in "".join(p.read_text() for p in (tmp_path / "adapted").iterdir())


def test_unusable_directories_are_named(tmp_path):
    with pytest.raises(RequestError, match="nowhere"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(ContentError, match=r"tokenizer\.json is missing"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "trunc')
    with pytest.raises(ContentError, match=str(tmp_path)):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_control_tokens_is_refused(tmp_path):
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.train_from_iterator(TEXTS, trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    plain.add_special_tokens(list(CONTROL_TOKENS[:-1]))
    PreTrainedTokenizerFast(tokenizer_object=plain).save_pretrained(tmp_path)
    with pytest.raises(ContentError, match=f"{tmp_path}.*lacks {END_THINK};"):
        load_tokenizer(tmp_path)
