"""A command that is also a group: `hetcli profile -o p.json` and `hetcli profile merge ...`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

__all__ = ["default_group"]


def default_group(name: str) -> type[TyperGroup]:
    """A group class that runs its command `name` when the first argument is no command.

    The group's help is that command's, with the list of commands behind it.
    """

    class DefaultGroup(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            asks_help = bool(args) and args[0] in ctx.help_option_names
            if not asks_help and (not args or args[0] not in self.commands):
                args = [name, *args]
            return super().parse_args(ctx, args)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            default: Any = self.commands[name]
            own = type(ctx)(default, info_name=ctx.info_name, parent=ctx.parent)
            default.format_usage(own, formatter)
            default.format_help_text(own, formatter)
            default.format_options(own, formatter)
            self.format_commands(ctx, formatter)

    return DefaultGroup
