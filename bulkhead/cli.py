"""The command `bulkhead`: what it takes, and which part of the toolkit answers.

Exit statuses: 0 well; 1 `doctor` or `config` found something that needs doing, or `cells diff` a move; 2 wrong use, or
something that is needed is not there; 128 + n ended by signal n.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bulkhead.console import cells_arguments
from bulkhead.errors import BulkheadError

if TYPE_CHECKING:
    from collections.abc import Sequence

DEMO = """\
Starts a private Redis, a private PostgreSQL and a local HTTP service on free
loopback ports, and plays two scenes, each twice with the same load and the
same time-outs: without and with protection.

  cache      Redis stops answering in the middle of the run (SIGSTOP); the
             application has a fallback. Watch the requests that do not need
             Redis at all.
  database   One tenant floods the database with slow queries. Watch the
             quiet tenants.

The application is 16 threads of this process. Requests arrive on a schedule,
whether or not the earlier ones were answered, and a request's time begins when
it arrives. On a terminal the run is shown live. It ends with one table, a
picture of every request, and the options that made the difference. Every
number is measured in the run.

All servers end with it, also on Ctrl-C. It takes about 40 seconds, and needs
the extra `demo`: pip install "bulkhead-toolkit[demo]"."""


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="bulkhead", description="Keep one slow dependency or noisy tenant to itself.")
    top.add_argument("--version", action=_Version, help="say which version this is")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="say what is patched, from which file, in which versions, and which clients are configured",
        description="Says what is patched, from which file, which driver versions are supported, and which clients "
        "are configured. Lines that begin with !! need doing something; exit status 1 if there are any.",
    )
    doctor.add_argument("module", nargs="?", help="the application's module, imported first (myapp.wsgi)")
    demo = commands.add_parser(
        "demo",
        help="the same load without and with protection, on real servers of its own (extra: demo)",
        description=DEMO,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument("--seconds", type=_seconds, default=5.0, help="length of each of the four runs (default 5)")
    demo.add_argument("--only", choices=("cache", "database"), help="play one scene only")
    demo.add_argument(
        "--picture",
        type=_picture,
        default=Path("bulkhead-demo.svg"),
        metavar="FILE",
        help="where to put the picture, .svg, .png or .pdf (default bulkhead-demo.svg)",
    )
    demo.add_argument("--no-picture", dest="picture", action="store_const", const=None, help="no picture")
    options = commands.add_parser(
        "options",
        help="print the table of all options",
        description="Prints the table of all options, as it is in the README.",
    )
    options.add_argument("--defaults", action="store_true", help="the process-wide values of bulkhead.defaults()")
    _config_parser(commands.add_parser("config", help="check a settings file, or show what it amounts to"))
    cells_arguments.add_parser(commands)
    return top


class _Version(argparse.Action):
    """As argparse's own, but the version is looked for when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:  # noqa: A002  argparse's name
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib import metadata  # noqa: PLC0415  slow to import

        try:
            told = metadata.version("bulkhead-toolkit")
        except metadata.PackageNotFoundError:
            told = "of a version that is not known: it is not installed"
        print(f"{parser.prog}{',' if ' ' in told else ''} {told}")  # noqa: T201
        parser.exit()


def _config_parser(config: argparse.ArgumentParser) -> None:
    config.description = (
        "What the settings say: one TOML file (bulkhead.toml, or a pyproject.toml with a table [tool.bulkhead]) and "
        "BULKHEAD_SECTION__KEY variables over it. Without a file named: the one of BULKHEAD_SETTINGS, else the one in "
        "the current folder. Secrets are not shown."
    )
    parts = config.add_subparsers(dest="part", required=True, metavar="WHAT")
    check = parts.add_parser(
        "check",
        help="find all that is wrong with a file",
        description="Lists all that is wrong, with file and key, in lines that begin with !!; exit status 1 if there "
        "are any.",
    )
    check.add_argument("file", nargs="?", help="the settings file")
    show = parts.add_parser(
        "show",
        help="print the values in force and where each comes from",
        description="Prints the values that would be in force here and where each comes from: the file, a variable "
        "of the environment, or the default. Exit status 1 if they cannot be used.",
    )
    show.add_argument("--file", help="the settings file")
    show.add_argument(
        "--json", action="store_true", help="for programs; with the options of resources that have defaults"
    )


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    given = parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to stop
    try:
        status = _run(given)
        sys.stdout.flush()
    except BulkheadError as error:
        _complain(str(error))
        return 2
    except KeyboardInterrupt as stopped:
        number = stopped.args[0] if stopped.args else signal.SIGINT
        _complain("stopped; all servers are ended" if given.command == "demo" else "stopped")
        return 128 + int(number)
    except BrokenPipeError:  # `bulkhead options | head`
        with contextlib.suppress(OSError):
            sys.stdout.close()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_ROOM or given.command == "demo":
            raise
        with contextlib.suppress(OSError):
            sys.stdout.close()  # what is left in it would fail again when the interpreter ends
        _complain(f"standard output: {error.strerror}")
        return 2
    return status


def _run(given: argparse.Namespace) -> int:
    if given.command == "doctor":
        return _doctor(given.module)
    if given.command == "demo":
        return _demo(given)
    if given.command == "config":
        return _config(given)
    if given.command == "cells":
        return _cells(given)
    from bulkhead.option_set import process_table, table  # noqa: PLC0415  each command loads what it needs

    print(process_table() if given.defaults else table(), end="")  # noqa: T201
    return 0


def _doctor(module: str | None) -> int:
    from bulkhead.console.doctor import report  # noqa: PLC0415

    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: the application is in the folder one is in
    text, well = report(module)
    print(text, flush=True)  # noqa: T201
    return 0 if well else 1


def _config(given: argparse.Namespace) -> int:
    from bulkhead.console import config  # noqa: PLC0415

    text, well = config.check(given.file) if given.part == "check" else config.show(given.file, as_json=given.json)
    print(text, file=sys.stdout if well or given.part == "check" else sys.stderr, flush=True)
    return 0 if well else 1


def _cells(given: argparse.Namespace) -> int:
    from bulkhead.console import cells, cells_serving  # noqa: PLC0415

    if given.part in ("haproxy", "serve"):
        return cells_serving.haproxy(given) if given.part == "haproxy" else cells_serving.serve(given)
    return cells.run(given)


def _demo(given: argparse.Namespace) -> int:
    try:
        from bulkhead.console.demo.run import run  # noqa: PLC0415
    except ImportError as error:
        _complain(f"the demo needs the extra `demo` ({error}): pip install 'bulkhead-toolkit[demo]'")
        return 2
    return run(given.seconds, given.picture, given.only)


def _complain(text: str) -> None:
    print(f"bulkhead: {text}", file=sys.stderr)  # noqa: T201


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 1 to 600")
    return value


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise argparse.ArgumentTypeError(f"{text!r} ends neither in .svg nor in .png nor in .pdf")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.absolute().parent)!r}")
    return path


if __name__ == "__main__":
    sys.exit(main())
