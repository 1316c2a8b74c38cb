"""`crosszone serve`: the page and the HTTP API on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from crosszone.cli.output import print_json, said

HOST = "127.0.0.1"
PORT = 8000


def serve(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = PORT,
    file: Annotated[str | None, typer.Argument(help="Scenario to open; default: the three-cities example.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as one JSON document.")] = False,
) -> None:
    """Serve the page and the API on 127.0.0.1.

    Example: crosszone serve examples/mixed-gpus.yaml --port 8080
    """
    from crosszone.web.server import run

    def tell(address: str) -> None:
        if as_json:
            print_json({"address": address})
        else:
            typer.echo(said("serving", address=address))

    run(host=HOST, port=port, file=file, started=tell)
