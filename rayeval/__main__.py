"""``python -m rayeval``."""

import sys

from rayeval.cli import main

sys.exit(main())
