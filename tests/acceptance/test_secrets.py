from pathlib import Path

import pytest

from tests.acceptance.rows_secrets import secrets
from tests.acceptance.servers import DemoPair

pytestmark = pytest.mark.ray


def test_nothing_private_is_written_where_it_has_no_business(tmp_path: Path) -> None:
    secrets(DemoPair, tmp_path, modes=("good",))


def test_a_key_in_a_500_body_goes_nowhere(tmp_path: Path) -> None:
    secrets(DemoPair, tmp_path, modes=("echo_key_500",))


@pytest.mark.slow
def test_a_key_in_a_401_body_goes_nowhere(tmp_path: Path) -> None:
    secrets(DemoPair, tmp_path, modes=("echo_key",))
