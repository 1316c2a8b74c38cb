"""Words, comments and names of files hold whatever a user typed and never let it out."""

from __future__ import annotations

import re
import subprocess

from hypothesis import given
from hypothesis import strategies as st

from crosszone.deploy.shell import Raw, format_command, format_comment, make_slug, quote_word
from effort import examples

NASTY = [
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"',
    "a\nb",
    "ÄÖ 北京 ☃",
    "-rf",
    "~",
    "*",
    "\\",
    "a b",
    "x" * 300,
]
text = st.one_of(
    st.sampled_from(NASTY), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
)


@examples(60)
@given(st.lists(text, min_size=1, max_size=5))
def test_a_command_line_gives_every_word_back_as_it_was(words):
    shown = subprocess.run(["bash", "-c", f"printf '%s\\0' {format_command(words)}"], capture_output=True, check=True)
    assert shown.stdout.decode().split("\0")[:-1] == words


def test_raw_words_are_left_to_the_shell():
    assert (
        format_command(["torchrun", "--master-addr", Raw('"$MASTER_ADDR"')]) == 'torchrun --master-addr "$MASTER_ADDR"'
    )


def test_a_long_command_is_folded_before_a_flag():
    lines = format_command(["torchrun", *(word for n in range(20) for word in (f"--flag-{n}", "value"))]).split("\n")
    assert len(lines) > 1
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert all(line.lstrip().startswith("--flag") for line in lines[1:])


@given(text)
def test_a_comment_never_ends(words):
    assert all(line.startswith("#") for line in format_comment(words).splitlines())


@given(text)
def test_a_slug_is_a_name_of_rfc_1123(name):
    made = make_slug(name)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", made)
    assert len(made) <= 40


@given(text, text)
def test_different_names_have_different_slugs(one, other):
    assert (make_slug(one) == make_slug(other)) == (one == other)


def test_a_plain_name_is_its_own_slug():
    assert make_slug("beijing-a") == "beijing-a"
    assert quote_word("beijing-a") == "beijing-a"
