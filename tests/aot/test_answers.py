"""Answers to requests: where sources are looked for, and what is noted."""

from pathlib import Path

from precast.aot.answers import remember_answer, search_path
from precast.aot.reference import parse_reference
from precast.cache.lookup import Request
from precast.cache.requests import candidates
from precast.cache.store import Store


def test_sources_are_looked_for_in_the_model_s_folder_first(tmp_path: Path) -> None:
    (tmp_path / "m.py").touch()
    assert search_path(parse_reference(f"{tmp_path}/m.py:f"))[0] == str(tmp_path)


def test_an_answer_is_noted_for_its_request_alone(tmp_path: Path) -> None:
    (tmp_path / "m.py").touch()
    store, asked = Store(tmp_path / "root"), Request(())
    remember_answer(store, parse_reference(f"{tmp_path}/m.py:f"), {"api_token": "abc"}, asked, "0" * 64)
    assert list(candidates(store, asked.digest)) == ["0" * 64]
    assert not list(candidates(store, "1" * 64))
    assert not any(b"abc" in path.read_bytes() for path in (tmp_path / "root").rglob("*") if path.is_file())
