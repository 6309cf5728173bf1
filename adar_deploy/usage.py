"""A command that was typed wrongly, as one line like every other error; typer would draw a box."""

import re
from typing import Any

import typer
from typer.core import TyperCommand

MistypedError: Any = typer.BadParameter.__mro__[1]  # its name and place differ between typer's versions

OUR_WORDS = (
    (r"^No such option: ", "no such option "),
    (r" \(Possible options: (.+)\)$", r" (did you mean \1?)"),
    (r"\. Did you mean (.+)\?$", r" (did you mean \1?)"),
    (r"\. Choose from:\s", ": choose from "),
    (r"^Got unexpected extra arguments?(?:\(s\))? \((.+)\)$", r"there is no place for \1"),
    (r"^Invalid value for ", ""),
    (r": Value error, ", ": "),
    (r": Input should be (.+?)(?:, unable to parse .+)?$", r" should be \1"),
    (r"'(--?[\w-]+)'", r"\1"),
    (r"\.$", ""),
)
"""What typer says, and what we say."""


class NamedCommand(TyperCommand):
    """A command whose errors know that they are its own: some of typer's do not."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except MistypedError as error:
            error.ctx = error.ctx or ctx
            raise


def mistake(error: Any) -> str:
    """The command, what is wrong with it, and where to look; nothing where the help was shown already."""
    said = error.format_message()
    if not said:
        return ""
    for theirs, ours in OUR_WORDS:
        said = re.sub(theirs, ours, said)
    command = error.ctx.command_path if error.ctx else "adar-deploy"
    return f"{command}: {said[0].lower()}{said[1:]}; see {command} --help"
