from pathlib import Path

import pytest

from tests.acceptance.rows_lives import drain, signals
from tests.acceptance.servers import DemoPair

pytestmark = pytest.mark.ray


def test_sigterm_drains(tmp_path: Path) -> None:
    drain(DemoPair, tmp_path)


@pytest.mark.slow
def test_the_second_signal_ends_at_once_and_the_run_goes_on_later(tmp_path: Path) -> None:
    signals(DemoPair, tmp_path, 48)
