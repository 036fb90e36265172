from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayeval.config import check_run_name


@pytest.mark.parametrize("name", ["smoke", "运行 1", "a.b-c_d", "été", "2026", "हिन्दी"])
def test_names_of_people_pass(name: str) -> None:
    assert check_run_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", " a", "a ", ".a", "..", "-a", "a.", "a/b", "a\\b", "a\nb", "a\0", "a\x7f", "latest", "Latest", "a:b", "a*", "a\u202eb", "x" * 181],
)
def test_names_that_hurt_are_refused_with_what_to_give(name: str) -> None:
    with pytest.raises(ValueError, match="give"):
        check_run_name(name)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_what_passes_is_one_directory(name: str) -> None:
    try:
        check_run_name(name)
    except ValueError:
        return
    assert Path("runs", name).parts == ("runs", name)
    assert name.isprintable()
