import pytest

from rayeval.demo.options import DemoOptions, parse_options
from rayeval.exceptions import ConfigurationError


def test_a_command_line_round_trips() -> None:
    options = DemoOptions(slots=7, fault_429=0.25, model_latency="lognormal:-1,0.5", echo_key=True, request_log="-x y", model_full="429")
    assert parse_options(options.argv()) == options
    assert parse_options([]) == DemoOptions()
    assert DemoOptions().argv() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fault_500", 1.5),
        ("env_fault_hang", -0.1),
        ("slots", 0),
        ("model_slots", -1),
        ("hang_s", float("inf")),
        ("model_full", "wait"),
        ("shop_port", 70000),
        ("env_latency", "slow"),
    ],
)
def test_bad_values_name_the_field(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        DemoOptions(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_an_integer_probability_is_checked_too() -> None:
    with pytest.raises(ConfigurationError):
        DemoOptions(fault_500=2)
