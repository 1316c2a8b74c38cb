"""No launcher: the script of each node is started by hand, on that node."""

from __future__ import annotations

from crosszone.deploy.launch import Launch

NEEDS_ADDRESSES = True
MAX_SHOWN_COMMANDS = 8  # Commands listed; of the others the pattern is plain


def build_files(launch: Launch) -> dict[str, str]:
    """Nothing beside the nodes' own scripts."""
    del launch
    return {}


def list_start_commands(launch: Launch) -> tuple[str, ...]:
    """The command of each node."""
    lines = [f"bash {node.script}    # {node.name}, {node.address}" for node in launch.nodes[:MAX_SHOWN_COMMANDS]]
    more = len(launch.nodes) - len(lines)
    return (*lines, f"# ... {more} more") if more else tuple(lines)
