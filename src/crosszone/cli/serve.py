"""`crosszone serve`: the page and the HTTP API on this machine, or with a token for others too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crosszone.cli.output import label, print_json

if TYPE_CHECKING:
    from crosszone.web.server import ServerAddress

HOST = "127.0.0.1"
PORT = 8000


def serve(
    file: Annotated[str | None, typer.Argument(help="Scenario to open; default: the three-cities example.")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's own need a token.")
    ] = HOST,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = PORT,
    db: Annotated[
        str | None, typer.Option(help="Where things are saved: a file or a database URL; default: your data folder.")
    ] = None,
    new_token: Annotated[bool, typer.Option("--new-token", help="Make a new token; the old one ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as one JSON document.")] = False,
) -> None:
    """Serve the page and the API on 127.0.0.1, or with --host for others who know the token.

    The token is printed once, when it is made; only its hash is kept. CROSSZONE_TOKEN sets one of your own.

    Example: crosszone serve examples/mixed-gpus.yaml --port 8080
    """
    from crosszone.web.server import run_server

    def print_message(serving: ServerAddress) -> None:
        if as_json:
            print_json({"address": serving.address, "token": serving.token, "token_needed": serving.guarded})
            return
        typer.echo(label("serving", address=serving.address))
        if serving.token is not None:
            typer.echo(label("serving_token", token=serving.token))
        elif serving.guarded:
            typer.echo(label("serving_guarded"))

    run_server(host=host, port=port, file=file, store=db, new_token=new_token, started=print_message)
