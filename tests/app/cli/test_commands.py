"""ask, read and doctor on a real file with real (tiny, untrained) models."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from app.cli.main import main
from engine.errors import plain
from tests.app.scripted import wait_for
from tests.nursery import Nursery
from tests.processes import begun

LIMIT_S = 180
# In bfloat16 two tokens of a random model are often equally likely but for rounding, which differs with the lengths of
# rounds, and those follow measured times.
EXACT = ("--dtype", "float32")


def test_ask_json_is_one_object_with_the_figures(
    book_file: Path, pair: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", str(book_file), "Who lit it?", *pair, "--max-tokens", "16", "--json"]) == 0
    said = capfd.readouterr()
    report = json.loads(said.out)  # nothing else may be there
    assert report["answer_tokens"] == len(report["token_ids"]) <= 16
    assert report["mode"] == "hierarchical"
    assert report["stop_reason"] in ("end", "length")
    assert report["prompt_tokens"] > report["book_tokens"] > 300
    assert report["prefilled_tokens"] == report["prompt_tokens"] - report["book_tokens"]
    assert report["kv_bytes"]["device"] + report["kv_bytes"]["host"] > 0
    assert report["ttft_s"] > 0
    assert all(found["sentence"] in report["answer"] for found in report["evidence"])
    assert "Reading" in said.err


def test_ask_streams_the_words_and_then_the_figures(
    book_file: Path, pair: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    line = ["ask", str(book_file), "Who lit it?", *pair, "--max-tokens", "16", *EXACT]
    assert main([*line, "--json"]) == 0
    expected = json.loads(capfd.readouterr().out)
    assert main(line) == 0
    said = capfd.readouterr()
    assert said.out == plain(expected["answer"]) + "\n"  # a random model says controls too
    assert f"{expected['answer_tokens']} tokens" in said.err
    assert "tokens/s" in said.err


def test_both_modes_give_the_same_greedy_answer_and_a_seed_repeats_a_sampled_one(
    book_file: Path, pair: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    def token_ids(*options: str) -> list[int]:
        assert main(["ask", str(book_file), "Who?", *pair, "--max-tokens", "12", "--json", *EXACT, *options]) == 0
        ids: list[int] = json.loads(capfd.readouterr().out)["token_ids"]
        return ids

    assert token_ids("--mode", "plain") == token_ids("--mode", "hierarchical", "--gamma1", "2", "--gamma2", "5")
    sampled = ("--temperature", "1", "--seed", "7")
    assert token_ids(*sampled) == token_ids(*sampled)


def test_ask_without_draft_model(book_file: Path, pair: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    line = ["ask", str(book_file), "Who?", *pair[:2], "--draft", "none", "--max-tokens", "8", "--json"]
    assert main(line) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["draft"] is None
    assert report["acceptance"]["middle"] is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--pages", "5-9"], "not in this book"),
        (["--context", "300"], "too long for this model"),
        (["--context", "100000"], "at most 4,096 tokens"),
        (["--top-p", "7"], "between 0.000001 and 1"),
        (["--draft", "/no/such/folder"], "/no/such/folder"),
        (["--device", "gpu9"], "gpu9"),
    ],
)
def test_ask_refuses_in_a_sentence(
    options: list[str], words: str, book_file: Path, pair: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", str(book_file), "Who?", *pair, *options]) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert words in said.err
    assert "Traceback" not in said.err


def test_too_long_book_is_read_as_far_as_it_fits_when_asked_to(
    tmp_path: Path, pair: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "long.md"
    chapters = (f"# Chapter {number}\n\n" + "The lamp stood on the sill. " * 40 for number in range(1, 11))
    book.write_text("\n\n".join(chapters), encoding="utf-8")
    line = ["ask", str(book), "Who?", *pair, "--context", "2048", "--max-tokens", "4"]
    assert main(line) == 2
    assert "--fit" in capfd.readouterr().err
    assert main([*line, "--fit", "--json"]) == 0
    said = capfd.readouterr()
    first, last = json.loads(said.out)["pages"]
    assert first == 1
    assert 1 <= last < 10
    assert f"sections 1-{last} fit and were read; {10 - last} of 10 sections are left out" in said.err
    assert main([*line, "--pages", "2-3", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["pages"] == [2, 3]


def test_an_empty_question_is_refused_before_any_work(
    book_file: Path, pair: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", str(book_file), " ", *pair]) == 2
    assert capfd.readouterr().err == "The question is empty. Type a question.\n"


@pytest.mark.parametrize("name", ["missing.pdf", "empty.pdf"])
def test_unusable_file_is_refused_before_a_model_is_loaded(
    name: str, tmp_path: Path, pair: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.pdf").touch()
    assert main(["ask", str(tmp_path / name), "Who?", *pair]) == 2
    said = capfd.readouterr()
    assert name in said.err
    assert "Loading" not in said.err


def test_read_shows_the_text_of_every_page_to_the_letter(
    tmp_path: Path, pair: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [f"Port {at} | {at},50 °C" for at in range(300)]
    file = tmp_path / "stock.tsv"
    file.write_text("\n".join(row.replace(" | ", "\t") for row in ["Port | Heat", *rows]), encoding="utf-8")
    assert main(["read", str(file), "--json", *pair[:2]]) == 0
    texts = json.loads(capfd.readouterr().out)["page_texts"]
    assert [text["page"] for text in texts] == list(range(1, len(texts) + 1))
    assert [row for text in texts for row in text["text"].split("\n")[1:]] == rows
    assert main(["read", str(file), "--text"]) == 0
    said = capfd.readouterr()
    assert said.out == "".join(f"=== {text['label']} ===\n{text['text']}\n" for text in texts)
    assert said.err == ""


def test_read_says_what_was_found(book_file: Path, pair: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["read", str(book_file), *pair[:2], "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["pages"] >= 1
    assert report["characters"] == pytest.approx(len(book_file.read_text(encoding="utf-8")), rel=0.05)
    assert report["tokens"] > 300
    assert report["warnings"] == []
    assert main(["read", str(book_file), *pair[:2]]) == 0
    assert f"{report['tokens']:,} tokens" in capfd.readouterr().out


def test_read_shows_the_file_even_without_a_model(book_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["read", str(book_file), "--model", "/no/such/model", "--json"]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out)["tokens"] is None
    assert "not counted" in said.err


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process there")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_the_middle_ends_quietly(
    book_file: Path, endless_pair: tuple[str, ...], how: signal.Signals, tmp_path: Path, nursery: Nursery | None
) -> None:
    line = ["ask", str(book_file), "Who?", *endless_pair, "--max-tokens", "100000", "--temperature", "4"]
    said, answer = tmp_path / "said", tmp_path / "answer"
    answer.touch()
    process = begun([sys.executable, "-m", "app.cli", *line], said, os.environ, nursery=nursery, out=answer)
    try:
        wait_for(lambda: bool(answer.read_bytes()) or process.poll() is not None, LIMIT_S)  # the answer has begun
        process.send_signal(how)
        begin = time.monotonic()
        assert process.wait(LIMIT_S) == 130, said.read_text(encoding="utf-8")
    finally:
        process.kill()
    assert "Traceback" not in said.read_text(encoding="utf-8")
    assert time.monotonic() - begin < 60  # at once on a machine that has time
