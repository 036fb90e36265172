from pathlib import Path

from tests.acceptance.rows_faults import faults
from tests.acceptance.servers import DemoPair


def test_the_summary_counts_what_the_servers_dealt(tmp_path: Path) -> None:
    faults(DemoPair, tmp_path, 40, hang=0.02, on_ray=False)
