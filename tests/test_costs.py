import orjson
import pytest

from rayeval.costs import Prices, money, prices_from, prices_of_run, tokens_spent
from rayeval.store import write_launch
from tests.helpers.runs import completed, failed, make_run, step


def launch(run_dir, prices):
    resolved = {"execution": {"prices": prices}}
    write_launch(run_dir, config_text=str(prices), resolved=resolved, origins={}, argv=["rayeval"])


def test_a_million_tokens_cost_their_price():
    prices = Prices(1.5, 6.0)
    assert prices.of({"prompt_tokens": 1_000_000, "completion_tokens": 500_000}) == 4.5
    assert prices.of({}) == 0.0


def test_cached_tokens_have_a_price_of_their_own_or_that_of_the_others():
    tokens = {"prompt_tokens": 1_000_000, "cached_tokens": 900_000}
    assert Prices(1.0, 0.0).of(tokens) == pytest.approx(1.0)
    assert Prices(1.0, 0.0, cached_prompt_per_million=0.1).of(tokens) == pytest.approx(0.19)


def test_more_cached_tokens_than_there_are_count_once():
    assert Prices(1.0, 0.0, cached_prompt_per_million=0.0).of({"prompt_tokens": 10, "cached_tokens": 50}) == 0.0


def test_the_prices_of_a_run_are_those_of_its_newest_launch(tmp_path):
    run_dir = make_run(tmp_path / "r", [])
    assert prices_of_run(run_dir) is None
    launch(run_dir, None)
    assert prices_of_run(run_dir) is None
    for price in range(1, 12):
        launch(run_dir, {"prompt_per_million": float(price), "completion_per_million": 2.0})
    assert prices_of_run(run_dir) == Prices(11.0, 2.0)
    launch(run_dir, None)
    assert prices_of_run(run_dir) is None


def test_damaged_launches_and_prices_of_another_version_are_none(tmp_path):
    run_dir = make_run(tmp_path / "r", [])
    launch(run_dir, {"by_the_word": 1})
    assert prices_of_run(run_dir) is None
    run_dir.launch.write_text("{")
    assert prices_of_run(run_dir) is None
    run_dir.launch.write_bytes(orjson.dumps({"files": {"resolved": "gone.json"}}))
    assert prices_of_run(run_dir) is None


def test_every_attempt_is_spent(tmp_path):
    run_dir = make_run(tmp_path / "r", [failed(0, steps=[step()]), completed(0, attempt=2), completed(1)])
    assert tokens_spent(run_dir) == {"tokens": 36, "prompt_tokens": 30, "completion_tokens": 6, "cached_tokens": 0}


def test_no_section_means_no_prices():
    assert prices_from(None) is None
    assert prices_from({"prompt_per_million": 1.0, "completion_per_million": 2.0, "currency": "EUR"}) == Prices(1.0, 2.0, None, "EUR")


def test_money_is_short():
    assert [money(a, "EUR") for a in (0, 12.3456, 0.0012345)] == ["0.00 EUR", "12.35 EUR", "0.001234 EUR"]
