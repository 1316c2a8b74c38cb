"""`crosszone serve`: the page and the HTTP API on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from crosszone.cli.output import language

HOST = "127.0.0.1"
PORT = 8000


def serve(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = PORT,
    file: Annotated[str | None, typer.Argument(help="Scenario to open; default: the three-cities example.")] = None,
) -> None:
    """Serve the page and the API on 127.0.0.1.

    Example: crosszone serve examples/mixed-gpus.yaml --port 8080
    """
    from crosszone.web.server import run

    run(host=HOST, port=port, file=file, language=language())
