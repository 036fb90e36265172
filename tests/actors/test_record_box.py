import logging

import pytest

from actors.record_box import PER_REPLY, RECORDS, TEXT_CHARS, RecordBox
from rayeval.models import Scrubber


@pytest.fixture
def box():
    made = RecordBox(Scrubber("hunter2secret").text)
    logger = logging.getLogger("my_pkg.env")
    logger.addHandler(made)
    yield made, logger
    logger.removeHandler(made)


def test_records_travel_once_in_order_with_logger_level_and_traceback(box):
    made, logger = box
    logger.warning("slow: %s", 3)
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("broke")
    (at, level, text), (_, second, trace) = made.take()
    assert (level, text, second) == ("warning", "my_pkg.env: slow: 3", "error") and at > 1e9
    assert trace.startswith("my_pkg.env: broke\nTraceback") and trace.endswith("ValueError: no")
    assert made.take() == []


def test_the_box_is_bounded_and_says_what_it_dropped(box):
    made, logger = box
    for k in range(RECORDS + 7):
        logger.warning("%s", k)
    first = made.take()
    assert first[0][2] == "7 older records were dropped" and first[1][2] == "my_pkg.env: 7" and len(first) == PER_REPLY + 1
    rest = [line for _ in range(10) for line in made.take()]
    assert len(rest) == RECORDS - PER_REPLY and rest[-1][2] == f"my_pkg.env: {RECORDS + 6}"


def test_the_key_stays_in_the_process(box):
    made, logger = box
    logger.error("sent hunter2secret and Bearer abcdef")
    text = made.take()[0][2]
    assert "hunter2secret" not in text and "abcdef" not in text and "sent" in text


class Mute:
    def __str__(self):
        raise RuntimeError("no words, but hunter2secret")


def test_a_record_that_cannot_be_formatted_keeps_the_key_in_too(box):
    made, logger = box
    for words in (("key hunter2secret at 100% zebra", 3), ("x" * 190 + " hunter2secret %d", "no number"), (Mute(),)):
        made.handle(logging.LogRecord(logger.name, logging.WARNING, __file__, 7, words[0], words[1:], None))
    first, cut, mute = (text for _, _, text in made.take())
    assert first == "my_pkg.env: a record that cannot be formatted (key [redacted] at 100% zebra)"
    assert "hunt" not in cut and "cannot be formatted (xxx" in cut
    assert "hunter" not in mute and mute.endswith("(test_record_box.py:7)")


def test_a_slip_in_a_record_and_a_long_one_cost_nothing(box):
    made, logger = box
    made.handle(logging.LogRecord("my_pkg", logging.WARNING, "", 0, "%d", ("no number",), None))
    logger.warning("x" * 3 * TEXT_CHARS)
    slip, long = (line[2] for line in made.take())
    assert "cannot be formatted (%d)" in slip and len(long) < TEXT_CHARS + 20


def test_rays_own_words_are_left_where_they_are():
    made = RecordBox(str)
    for name, kept in (("ray", False), ("ray.data", False), ("rayeval.x", True), ("rays", True)):
        made.handle(logging.LogRecord(name, logging.WARNING, "", 0, "m", (), None))
        assert bool(made.take()) is kept
