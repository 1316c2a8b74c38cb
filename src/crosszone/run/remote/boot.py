"""Boot: the first lines of a request on a machine. They make modules of the texts that follow and call one function.

Standard input: a line of JSON {modules: {name: text}, call: "module.function", arguments: {...}, payload: size}, and as
many bytes as it says. Standard output: `MARK`, a line of JSON {value} or {refusal: {code, ...}}, and the bytes that a
function returned beside its value.
"""

from __future__ import annotations

import json
import sys
import types
from typing import Any

MARK = b"\x1ecrosszone "  # Before the answer: a login may print whatever it likes first
PACKAGE = "crosszone.run.remote"


def install_modules(texts: dict[str, str]) -> None:
    """Make the modules, in the order they came, under the names they import each other by."""
    for depth in range(1, 4):
        name = ".".join(PACKAGE.split(".")[:depth])
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = []
    # Under their real package names: the modules import each other exactly as they do where CrossZone is installed.
    for name, text in texts.items():
        full = PACKAGE + "." + name
        module = sys.modules[full] = types.ModuleType(full)
        exec(compile(text, "<" + name + ">", "exec"), module.__dict__)


def answer_request(request: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    """The answer to a request, and the bytes that go with it."""
    module, function = request["call"].split(".")
    arguments = dict(request["arguments"])
    if payload:
        arguments["payload"] = payload
    remote_error = sys.modules[PACKAGE + ".common"].RemoteError
    try:
        value = getattr(sys.modules[PACKAGE + "." + module], function)(**arguments)
    except remote_error as error:
        return {"refusal": dict(error.details, code=error.code)}, b""
    except (OSError, ValueError) as error:  # ValueError: a name or address that no file or host can have
        reason = getattr(error, "strerror", None) or str(error)
        path = str(getattr(error, "filename", None) or "")
        details = {"code": "machine_failed", "what": request["call"], "path": path, "reason": reason}
        return {"refusal": details}, b""
    if isinstance(value, tuple):
        return {"value": value[0], "payload": len(value[1])}, value[1]
    return {"value": value}, b""


def main() -> None:
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.buffer.readline().decode())
    install_modules(request["modules"])
    answer, data = answer_request(request, sys.stdin.buffer.read(request.get("payload", 0)))
    sys.stdout.buffer.write(MARK + json.dumps(answer).encode() + b"\n" + data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
