"""Both languages say everything, with the same parameters."""

from __future__ import annotations

import re
from string import Formatter

import pytest

from conftest import ROOT
from crosszone.errors import Notice
from crosszone.text import LANGUAGES, detect_language, label, load_texts

SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "crosszone").rglob("*.py"))


def flat(node, path=()):
    if isinstance(node, dict):
        return {key: value for name, inner in node.items() for key, value in flat(inner, (*path, name)).items()}
    return {path: node}


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_both_languages_have_the_same_keys_and_parameters():
    english, chinese = flat(load_texts("en")), flat(load_texts("zh"))
    assert english.keys() == chinese.keys()
    differs = {key for key in english if placeholders(english[key]) != placeholders(chinese[key])}
    assert differs == set()


def test_chinese_sentences_are_chinese_and_english_ones_are_not():
    english = flat(load_texts("en")["notice"])
    for path, text in flat(load_texts("zh")["notice"]).items():
        explains = path[-1] == "hint" and text == english[path] == ""  # nothing is wrong, so there is nothing to do
        assert re.search(r"[\u4e00-\u9fff]", text) or text == "{reason}" or explains, path
    for path, text in flat(load_texts("en")).items():
        assert not re.search(r"[\u4e00-\u9fff]", text) or path[-1] in ("chinese", "language_zh"), path


def test_every_code_in_the_source_has_its_sentence():
    codes = set(re.findall(r'code="(\w+)"', SOURCE)) | set(
        re.findall(r'(?:refuse|make_error|_fail|_broken|_notice)\(\s*"(\w+)"', SOURCE)
    )
    codes |= set(re.findall(r'refused\((?:\d+, )?"(\w+)"', SOURCE))
    codes |= set(re.findall(r'_cannot\(framework, "(\w+)"', SOURCE)) | set(re.findall(r'"(must_be_\w+)"', SOURCE))
    assert codes <= set(load_texts("en")["notice"])
    assert len(codes) > 80


def test_every_sentence_is_used():
    built = re.findall(r'(?:code=|_note\()f"(\w+_)\{[\w.]+\}(\w*)"', SOURCE)
    parts = [re.compile(rf"{before}[a-z]+{after}") for before, after in built]
    named = {code for code in load_texts("en")["notice"] if any(part.fullmatch(code) for part in parts)}
    unused = {code for code in load_texts("en")["notice"] if f'"{code}"' not in SOURCE} - named
    assert unused == set()


def test_every_label_the_source_asks_for_is_there():
    asked = set(re.findall(r'\b(?:label|build_fact|text\.build_line|print_line)\(\s*"(\w+)"', SOURCE))
    # the columns of a table stand in one string, `>` before those that are aligned right
    columns = re.findall(r'(?:columns \+?= |build_\w*table\(\s*|_title", )f?"([\w >]+)"', SOURCE)
    asked |= {key.removeprefix(">") for keys in columns for key in keys.split()}
    assert len(asked) > 300
    assert asked <= set(load_texts("en")["label"])


def test_a_sentence_takes_its_parameters():
    notice = Notice(
        code="ranks_over_gpus", params={"tp": 8, "pp": 4, "cp": 1, "dp": 2, "ranks": 64, "gpus": 14, "legal": 0}
    )
    assert notice.message("en") == "tp 8 x pp 4 x cp 1 x dp 2 = 64 ranks, but the cluster has 14 GPUs."
    assert "64 个 rank" in notice.message("zh")


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "en_US.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"CROSSZONE_LANG": "zh", "LANG": "en_US.UTF-8"}, "zh"),
        ({"LC_ALL": "C"}, "en"),
        ({}, "en"),
    ],
)
def test_the_language_follows_the_users_locale(environment, language):
    assert detect_language(environment) == language


def test_an_unknown_language_is_refused():
    with pytest.raises(ValueError, match="not one of en, zh"):
        label("name", "fr")
    assert LANGUAGES == ("en", "zh")


def test_values_in_sentences_are_short_and_on_one_line():
    notice = Notice(code="must_be_whole", field="job.seq_len", value="x" * 10_000 + "\n\x1b[31m")
    assert len(notice.message()) < 200
    assert "\x1b" not in notice.message()
    assert "\n" not in notice.message()
