"""Fill a template bundle with addresses: python3 fill.py hosts.txt

hosts.txt has one line a node: its number, its address, and its network interface (- to find it at the start).
Every file of the bundle is written anew with them; until then the scripts refuse to run.
"""

import re
import sys
from pathlib import Path

ADDRESS = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")
INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,14}")
MARK = re.compile(r"@ADDRESS_(\d{3,})@")
HERE = Path(__file__).resolve().parent


def exit_with_error(reason):
    """End with one clear line."""
    sys.exit(f"fill.py: {reason}")


def read_hosts(path):
    """Number -> (address, interface) of every line."""
    hosts = {}
    for count, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) not in (2, 3) or not words[0].isdigit():
            exit_with_error(f"{path.name} line {count}: write NUMBER ADDRESS [INTERFACE]")
        number, address, interface = int(words[0]), words[1], words[2] if len(words) == 3 else "-"
        if not ADDRESS.fullmatch(address):
            exit_with_error(f"{path.name} line {count}: '{address}' is no host name or IP address")
        if interface != "-" and not INTERFACE.fullmatch(interface):
            exit_with_error(f"{path.name} line {count}: '{interface}' is no network interface")
        if address in {other_address for other_address, _ in hosts.values()}:
            exit_with_error(f"{path.name} line {count}: {address} belongs to another node already")
        hosts[number] = (address, interface)
    return hosts


def main():
    """Replace every mark; nothing is written unless every node has its address."""
    if len(sys.argv) != 2:
        exit_with_error("usage: python3 fill.py hosts.txt")
    hosts = read_hosts(Path(sys.argv[1]))
    texts = {
        path: path.read_text(encoding="utf-8") for path in HERE.rglob("*") if path.is_file() and path.suffix != ".py"
    }
    marked = {path: text for path, text in texts.items() if MARK.search(text)}
    needed = {int(number) for text in marked.values() for number in MARK.findall(text)}
    missing = sorted(needed - set(hosts))
    if missing:
        exit_with_error(f"{sys.argv[1]} has no address for node {missing[0]:03d} ({len(missing)} missing)")
    for path, text in marked.items():
        filled = MARK.sub(lambda match: hosts[int(match[1])][0], text)
        node_script = re.fullmatch(r"(\d{3,})\.sh", path.name) if path.parent.name == "nodes" else None
        interface = hosts[int(node_script[1])][1] if node_script else "-"
        if interface != "-":
            filled = filled.replace(" interface=''", f" interface={interface}", 1)
        path.write_text(filled, encoding="utf-8")
    print(f"filled {len(marked)} files with the addresses of {len(needed)} nodes")


if __name__ == "__main__":
    main()
