from __future__ import annotations

import rayeval.store as store


def test_the_export_list_is_sorted_and_is_exactly_what_is_visible():
    from types import ModuleType

    visible = [n for n in vars(store) if not n.startswith("_") and not isinstance(getattr(store, n), ModuleType)]
    assert sorted(store.__all__) == sorted(visible)
    assert store.__all__ == sorted(store.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
