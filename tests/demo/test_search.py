from hypothesis import given
from hypothesis import strategies as st

from rayeval.demo.catalogue import demo_catalogue
from rayeval.demo.search import MAX_RESULTS, SearchIndex

INDEX = SearchIndex(demo_catalogue())


def test_a_title_finds_its_product_first() -> None:
    for asin, product in demo_catalogue().products.items():
        assert INDEX.search(product.title)[0] == asin


def test_a_query_without_known_terms_finds_nothing() -> None:
    assert INDEX.search("！！！") == ()
    assert INDEX.search("zzzz") == ()


def test_a_common_word_fills_more_than_one_page() -> None:
    assert len(INDEX.search("旗舰店")) == 60


def test_a_category_lists_exactly_its_products() -> None:
    category = "家用电器›照明›台灯"
    found = INDEX.in_category(category)
    assert {demo_catalogue().products[a].category for a in found} == {category}
    assert len(found) == 4
    assert INDEX.in_category("无") == ()


@given(st.text(alphabet="保温杯台灯静音 USB大容量！]", max_size=20))
def test_rankings_are_repeatable_unique_and_bounded(query: str) -> None:
    found = INDEX.search(query)
    assert found == SearchIndex(demo_catalogue()).search(query)
    assert len(set(found)) == len(found) <= MAX_RESULTS
