"""Errors in the words of a command, as one line like every other error. Typer would draw a box."""

import re
from copy import copy
from typing import Any

import typer
from typer.core import TyperCommand

from adar_deploy.console import err, print_note
from adar_deploy.help_layout import compact

TyperUsageError: Any = typer.BadParameter.__mro__[1]  # its name and module differ between versions of typer

REWORDED = (
    (r"^No such option: ", "no such option "),
    (r" \(Possible options: (.+)\)$", r" (did you mean \1?)"),
    (r"\. Did you mean (.+)\?$", r" (did you mean \1?)"),
    (r"\. Choose from:\s", ": choose from "),
    (r"^Got unexpected extra arguments?(?:\(s\))? \((.+)\)$", r"unexpected extra arguments: \1"),
    (r"^Invalid value for ", ""),
    (r": Value error, ", ": "),
    (r": Input should be (.+?)(?:, unable to parse .+)?$", r" should be \1"),
    (r"'(--?[\w-]+)'", r"\1"),
    (r"\.$", ""),
)
"""Typer's wording (a regular expression), and ours."""


class NamedCommand(TyperCommand):
    """A command that adds its context to every usage error (some of typer's lack it), with a compact help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        shown = copy(self)
        shown.get_params = lambda ctx: [compact(one) for one in self.get_params(ctx)]  # type: ignore[method-assign]
        shown.collect_usage_pieces = lambda ctx: [  # type: ignore[method-assign]
            re.sub("[{}]", "", piece) for piece in TyperCommand.collect_usage_pieces(shown, ctx)
        ]
        TyperCommand.format_help(shown, ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            given = self.make_parser(ctx).parse_args(list(args))[2]  # as often as they were typed
            done = super().parse_args(ctx, args)
        except TyperUsageError as error:
            error.ctx = error.ctx or ctx
            raise
        if ctx.resilient_parsing:  # the shell asks for a completion
            return done
        for option in dict.fromkeys(one for one in given if given.count(one) > 1 and _takes_one_value(one)):
            print_note(f"{option.opts[0]} is given more than once: the last one counts", to=err)
        return done


def _takes_one_value(option: Any) -> bool:
    return not (option.multiple or option.is_flag)


def reworded(error: Any) -> str:
    """What is wrong, in our words."""
    message: str = error.format_message()
    for theirs, ours in REWORDED:
        message = re.sub(theirs, ours, message)
    return message


def usage_message(error: Any) -> str:
    """The command, what is wrong, and where to look; empty where typer has already printed the help."""
    message = reworded(error)
    if not message:
        return ""
    command = error.ctx.command_path if error.ctx else "adar-deploy"
    return f"{command}: {message[0].lower()}{message[1:]}; see {command} --help"
