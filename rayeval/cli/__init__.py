"""The command line. ``main`` is the entry point; one file holds each group of verbs.

The files import typer and little else at the top, and what a verb needs inside the verb: ``rayeval --help`` must not
wait for Ray.
"""

from rayeval.cli.app import main

__all__ = ["main"]
