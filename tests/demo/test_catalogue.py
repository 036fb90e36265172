from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.demo.catalogue import demo_catalogue, normalized, option_label, parse_catalogue, read_catalogue, terms
from rayeval.exceptions import ConfigurationError

PRODUCT = {"asin": "12345678", "title": "杯", "shop_name": "店", "category": "甲›乙›丙"}
TASK = {"task_id": 3, "task_uid": "t", "instruction": "买杯", "attributes": ["轻"]}


def test_tasks_are_0_to_47() -> None:
    assert sorted(demo_catalogue().tasks) == list(range(48))
    assert len(demo_catalogue().products) == 60


def test_every_task_can_be_fulfilled() -> None:
    catalogue = demo_catalogue()
    for task in catalogue.tasks.values():
        gold = catalogue.products[task.asin]
        labels = {label for values in gold.options.values() for label in values}
        assert set(task.attributes) <= set(gold.attributes)
        assert {option_label(o) for o in task.options} <= labels
        wanted = {option_label(o) for o in task.options}
        selected = {axis: next((v for v in vs if v in wanted), vs[0]) for axis, vs in gold.options.items()}
        price = gold.price_of(selected)
        assert price is not None
        assert task.price_upper is None or price <= task.price_upper


def test_most_tasks_have_a_persona_and_some_have_none() -> None:
    catalogue = demo_catalogue()
    with_persona = [t for t in catalogue.tasks.values() if catalogue.products[t.asin].persona]
    assert len(with_persona) == 36
    assert all("__reasoning__" in catalogue.products[t.asin].persona for t in with_persona)


def test_a_price_that_depends_on_two_axes_is_not_known() -> None:
    options = {"色": [{"value": "红", "price": 1}, {"value": "蓝", "price": 2}]}
    options["码"] = [{"value": "大", "price": 3}, {"value": "小", "price": 4}]
    raw = {**PRODUCT, "customization_options": options, "pricing": [1, 4]}
    product = parse_catalogue([raw]).products["12345678"]
    assert product.price_of({"色": "红", "码": "大"}) is None
    assert product.price_text == "1.0 to 4.0"


def test_no_price_means_one_hundred() -> None:
    assert parse_catalogue([PRODUCT]).products["12345678"].price_of({}) == 100.0


def test_an_instruction_without_attributes_is_no_task() -> None:
    raw = {**PRODUCT, "instructions": [{**TASK, "attributes": []}]}
    assert parse_catalogue([raw]).tasks == {}


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ([], "catalogue"),
        ({}, "catalogue"),
        ([{**PRODUCT, "asin": "12"}], "catalogue[0].asin"),
        ([{k: v for k, v in PRODUCT.items() if k != "title"}], "catalogue[0].title"),
        ([PRODUCT, PRODUCT], "catalogue[1].asin"),
        ([{**PRODUCT, "instructions": [TASK, TASK]}], "catalogue[0].instructions"),
    ],
)
def test_bad_catalogues_name_the_field(raw: object, field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_catalogue(raw)
    assert caught.value.field == field


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("[")
    for path in (broken, tmp_path / "missing.json"):
        with pytest.raises(ConfigurationError, match=path.name):
            read_catalogue(path)


def test_option_labels_are_stripped_lowered_and_spaced() -> None:
    assert option_label(" XL/加长 ") == "xl | 加长"


def test_terms_are_words_and_character_pairs() -> None:
    assert terms("USB供电风扇 1.5L") == ("usb", "供电", "电风", "风扇", "1.5l")
    assert terms("杯") == ("杯",)


@pytest.mark.parametrize(("text", "same"), [("！！！", ""), ("ＵＳＢ  风扇", "usb 风扇"), ("a]b", "a]b"), ("", "")])
def test_normalized(text: str, same: str) -> None:
    assert normalized(text) == same


@given(st.text())
def test_normalizing_twice_changes_nothing(text: str) -> None:
    assert normalized(normalized(text)) == normalized(text)
