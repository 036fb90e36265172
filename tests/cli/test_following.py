"""What is printed of a job's log."""

from hypothesis import given
from hypothesis import strategies as st

from rayeval.cli.following import Hiding

SECRETS = ["abcabcd", "hunter2secret", "short"]


@given(st.lists(st.sampled_from(["abc", "abcabcd", "hunter2", "secret", "short", " x ", "a", "]"]), max_size=12).map("".join), st.data())
def test_pieces_lose_the_same_secrets_as_the_whole_and_nothing_else(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    hiding = Hiding(SECRETS)
    shown = "".join(hiding.feed(text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)) + hiding.rest()
    assert shown == hiding.hidden(text)
    assert "abcabcd" not in shown and "hunter2secret" not in shown and shown.count("short") == text.count("short")


def test_only_what_may_be_the_beginning_of_a_secret_is_held_back():
    hiding = Hiding(SECRETS)
    assert hiding.feed("key: hunter2") == "key: "
    assert hiding.feed("secret\nline\n") == "[redacted]\nline\n"
    assert (hiding.feed("ends with hunt"), hiding.rest(), hiding.rest()) == ("ends with ", "hunt", "")
