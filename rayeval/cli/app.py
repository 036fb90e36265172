"""Assembles the verbs and turns every ending into an exit code: the one place where errors become text."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from rayeval.cli import configuration, control, doctor, leases, logs, project, running, runs, sharding, submit, verifying
from rayeval.cli.output import PipeClosedError, error_object, one_line, stdout_to_nowhere, write_error, write_json, write_out
from rayeval.exceptions import InputError, PlanMismatchError, RayevalError
from rayeval.schemas import ExitCode

_EXIT_CODES = {
    ExitCode.OK: "all done",
    ExitCode.FAILED_EPISODES: "the work ended, but more than --max-failed episodes failed for good",
    ExitCode.BAD_INPUT: "bad configuration or input; one line says field, value and what to give",
    ExitCode.FINGERPRINT: "the run directory holds another plan, or other weights",
    ExitCode.REFUSED: "refused, or a condition not met: test guard, second driver, a cap, control, verify, doctor",
    ExitCode.STOPPED: "stopped by the machine: disk full, unwritable, endpoints out",
    ExitCode.INTERNAL: "an internal error, with its traceback",
    ExitCode.SIGINT: "ended by SIGINT, drained",
    ExitCode.SIGPIPE: "nobody reads stdout any more, and there was no outcome yet",
    ExitCode.SIGTERM: "ended by SIGTERM, drained",
}
# A backspace alone on a line keeps typer from filling the paragraph.
_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code:<4d}{text}" for code, text in _EXIT_CODES.items())

app = typer.Typer(
    name="rayeval",
    help="Run LLM-agent episodes on Ray and say, with numbers that hold, which agent is better.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("init")(project.init)
app.command("doctor")(doctor.doctor)
app.add_typer(configuration.app, name="config")
app.command("plan")(running.plan)
app.command("run")(running.run)
app.command("submit")(submit.submit)
app.command("runs")(runs.runs)
app.command("status")(runs.status)
app.command("summarize")(runs.summarize)
app.command("logs")(logs.logs)
app.command("verify")(verifying.verify)
app.command("shards")(sharding.shards)
app.command("control")(control.control)
app.add_typer(leases.app, name="leases")
app.command("demo", context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})(project.demo)


def _show_version(wanted: bool) -> None:
    if wanted:
        from rayeval import __version__

        write_out(f"rayeval {__version__}")
        raise typer.Exit(ExitCode.OK)


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")] = False,
) -> None: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: ``sys.argv``). -> its exit code; raises nothing."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    code = _main(arguments)
    submission_id = os.environ.get("RAYEVAL_SUBMISSION_ID")
    if submission_id and arguments[:1] == ["run"]:
        from rayeval.submission import end_line

        write_error(end_line(submission_id, code))
    return code


def _main(arguments: list[str]) -> int:
    as_json = "--json" in arguments
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="rayeval", standalone_mode=False)
        _flush()
        return int(code or ExitCode.OK)
    except PipeClosedError:
        return ExitCode.SIGPIPE
    except KeyboardInterrupt:
        return ExitCode.SIGINT
    except SystemExit as ending:
        if isinstance(ending.__context__, BrokenPipeError):  # typer's way with one, also where it writes its own help text
            stdout_to_nowhere()
            return ExitCode.OK if {"-h", "--help"} & set(arguments) else ExitCode.SIGPIPE
        return ending.code if isinstance(ending.code, int) else ExitCode.OK if ending.code is None else ExitCode.INTERNAL
    except RayevalError as error:
        return _report_known(error, as_json)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            stdout_to_nowhere()
            return ExitCode.SIGPIPE
        return _report_os_error(error, as_json)
    except typer.Abort:
        return ExitCode.SIGINT
    except Exception as error:
        if hasattr(error, "format_message"):  # the parser's own, whichever parser this typer brings
            return _report_usage(error, as_json)
        return _report_unknown(error, as_json)


def _report_known(error: RayevalError, as_json: bool) -> int:
    if as_json:
        if isinstance(error, InputError):
            answer = error_object(error.exit_code, error.field, error.value, error.hint)
        else:
            answer = error_object(error.exit_code, None, None, str(error))
        if isinstance(error, PlanMismatchError):
            answer["error"]["field"] = "plan"
            answer["error"]["hint"] = error.message
            answer["error"]["differences"] = [{"key": key, "old": _plain(old), "new": _plain(new)} for key, old, new in error.differences]
        write_json(answer)
    text = str(error) if isinstance(error, PlanMismatchError) else one_line(str(error))
    write_error(f"error: {text}")
    if error.exit_code is ExitCode.INTERNAL:
        write_error("".join(traceback.format_exception(error)).rstrip())
    return error.exit_code


def _report_os_error(error: OSError, as_json: bool) -> int:
    """A path that is not there is bad input; a path or disk that cannot be written is the machine's."""
    machine = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.EACCES, errno.EPERM)
    wrong = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG):
        write_error(f"error: standard output cannot be written: {(error.strerror or 'failed').lower()}")
        return ExitCode.STOPPED
    if error.filename is None or error.errno not in machine + wrong:
        return _report_unknown(error, as_json)
    code = ExitCode.STOPPED if error.errno in machine else ExitCode.BAD_INPUT
    reason = (error.strerror or "cannot be used").lower()
    hint = f"{reason}; " + ("free or unlock it" if code is ExitCode.STOPPED else "give a path that exists")
    if as_json:
        write_json(error_object(code, "path", str(error.filename), hint))
    write_error(f"error: {one_line(str(InputError('path', str(error.filename), hint)))}")
    return code


def _report_usage(error: Any, as_json: bool) -> int:
    message = str(error.format_message())
    context = getattr(error, "ctx", None)
    if not message or type(error).__name__ == "NoArgsIsHelpError":
        if as_json:
            write_json(error_object(ExitCode.BAD_INPUT, None, None, "give a verb; see rayeval --help"))
        if context is not None:
            write_error(context.get_help())
        return ExitCode.BAD_INPUT
    if as_json:
        parameter = getattr(error, "param", None)
        field = parameter.name if parameter is not None else getattr(error, "option_name", None)
        write_json(error_object(ExitCode.BAD_INPUT, field, None, message))
    path = context.command_path if context is not None else "rayeval"
    write_error(f"error: {one_line(message)} (see '{path} --help')")
    return ExitCode.BAD_INPUT


def _report_unknown(error: BaseException, as_json: bool) -> int:
    if as_json:
        write_json(error_object(ExitCode.INTERNAL, None, None, f"{type(error).__name__}: {error}"))
    write_error("".join(traceback.format_exception(error)).rstrip())
    write_error(f"error: internal: {type(error).__name__}: {one_line(str(error))}")
    return ExitCode.INTERNAL


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None), list, dict)) else str(value)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        stdout_to_nowhere()
