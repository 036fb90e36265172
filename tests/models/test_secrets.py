import pickle

import pytest

from rayeval.models import REDACTED, Scrubber

KEY = "sk+live/0123456789=="


@pytest.mark.parametrize("echo", [KEY, "sk%2Blive%2F0123456789%3D%3D", f"Bearer {KEY}", "bearer: other-token", "BEARER xyz"])
def test_error_texts_lose_keys_and_tokens(echo: str) -> None:
    cleaned = Scrubber(KEY).text(f"got <{echo}>, no")
    assert echo not in cleaned and REDACTED in cleaned and cleaned.endswith(", no")


def test_tokens_go_without_a_key_of_our_own() -> None:
    assert Scrubber(None).text("Authorization: Bearer abc.def") == f"Authorization: Bearer {REDACTED}"


def test_who_has_only_the_mark_of_a_key_finds_it_in_every_spelling() -> None:
    mark = pickle.loads(pickle.dumps(Scrubber(KEY).mark()))
    text = f"{KEY}\nurl?key=sk%2Blive%2F0123456789%3D%3D&x x{KEY}{KEY[:-1]}{KEY}y\n" + "w" * 1000
    assert mark.hidden_in(text) == f"{REDACTED}\nurl?key={REDACTED}&x x{REDACTED}{KEY[:-1]}{REDACTED}y\n" + "w" * 1000
    assert KEY not in repr(mark) and mark.salt != Scrubber(KEY).mark().salt


@pytest.mark.parametrize("key", [None, "EMPTY"])
def test_a_key_that_is_none_leaves_no_mark(key: str | None) -> None:
    assert Scrubber(key).mark().spellings == () and Scrubber(key).mark().hidden_in("EMPTY x") == "EMPTY x"


def test_answers_keep_ordinary_words() -> None:
    scrubber = Scrubber("EMPTY")
    text = "EMPTY cart, bearer of good news"
    assert scrubber.value({text: [text, 1, None]}) == {text: [text, 1, None]}
    assert not scrubber.suspects(b'{"content": "EMPTY"}')


def test_values_are_cleaned_at_any_depth_and_not_in_place() -> None:
    deep: object = KEY
    for _ in range(5000):
        deep = [deep]
    given = {"a": [KEY, {"b": KEY}], KEY: 1, "deep": deep}
    cleaned = Scrubber(KEY).value(given)
    assert cleaned["a"] == [REDACTED, {"b": REDACTED}] and cleaned[REDACTED] == 1 and given["a"][0] == KEY  # type: ignore[index]
    level = cleaned["deep"]
    while isinstance(level, list):
        level = level[0]
    assert level == REDACTED


def test_is_neither_shown_nor_pickled() -> None:
    scrubber = Scrubber(KEY)
    assert KEY not in repr(scrubber)
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(scrubber)
