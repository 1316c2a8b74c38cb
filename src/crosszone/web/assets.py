"""The page's source files joined into a few assets whose names hold their hash, when they are served.

Sources stay separate ES modules without a build step. For a browser they are joined into bundles, each an ES module:

    app     app.js, the entry; nothing imports it, so it may name every other bundle
    core    what the entry imports
    view    what the first view (`_FIRST_VIEW`) needs besides
    shared  what several other places need
    <place> what one place alone needs, fetched by `import()` when one goes there

A module becomes a constant: a function runs its source in a scope of its own and returns what it exports. Lines stay
lines, so a stack trace leads to the module and to the line below its `// path` heading.

    // lib/time.js
    const lib$time = (() => { const { useState } = lib$dom;
    ...
    return { useNow };
    })();

An asset's name changes when its content does, and its content names the assets it imports, so browsers may keep each
one for good. Vendored modules are assets of their own, as published.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

FOLDER = "assets"
MIN_GZIP_BYTES = 1000  # compressing less gains nothing

_ENTRY = "app.js"
_FIRST_VIEW = ("scenario/pane.js", "plan/place.js")
_VENDOR = "vendor/"

_IMPORT = re.compile(r'^import\s*\{([^}]*)\}\s*from\s*"(\.[^"]+)";', re.MULTILINE)
_REEXPORT = re.compile(r'^export\s*\{([^}]*)\}\s*from\s*"(\.[^"]+)";', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) ([\w$]+))", re.MULTILINE)
# Only this form is followed: `import("./x.js")` also stands in comments, as the name of a type.
_DYNAMIC_IMPORT = re.compile(r'=> import\("(\.[^"]+)"\)')
_UNREADABLE = re.compile(r"^(?:import|export)\b.*|=> import\(.*|\bimport\.meta\b.*", re.MULTILINE)
_VENDORED_FILE = re.compile(r'"/(vendor/[\w.-]+)"')
_STYLESHEET = re.compile(r'<link rel="stylesheet" href="/([^"]+)">\n')
_ENTRY_SCRIPT = f'<script type="module" src="/{_ENTRY}">'
_LOCAL_FILE = re.compile(r'(href|src)="/(?!assets/)([\w.-]+)"')


@dataclass(frozen=True)
class Asset:
    """One file to serve, compressed when a browser first asks for that."""

    content: bytes
    media_type: str

    @cached_property
    def gzipped(self) -> bytes:
        """The content as gzip."""
        return gzip.compress(self.content, compresslevel=9, mtime=0)

    @property
    def is_compressible(self) -> bool:
        """Whether compressing is worth it."""
        kinds = ("text/", "application/json", "image/svg+xml")
        return len(self.content) >= MIN_GZIP_BYTES and self.media_type.startswith(kinds)


@dataclass(frozen=True)
class PageAssets:
    """`index.html` with hashed addresses, and the assets by their path."""

    index: Asset
    files: dict[str, Asset]


@dataclass(frozen=True)
class _Module:
    """A source module: what it imports, when it is loaded or later, and what it exports."""

    path: str
    source: str
    imports: list[str]
    dynamic_imports: list[str]
    exports: list[str]

    @property
    def constant(self) -> str:
        """The name of the constant that holds what the module exports."""
        return _make_constant_name(self.path)


@dataclass
class _AssetBuilder:
    folder: Path
    modules: dict[str, _Module] = field(default_factory=dict)
    files: dict[str, Asset] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)  # of the asset that holds a source file
    bundle_of: dict[str, str] = field(default_factory=dict)  # the bundle of a module

    def add_asset(self, name: str, content: bytes) -> str:
        """The address of a new asset."""
        stem, suffix = posixpath.splitext(posixpath.basename(name))
        path = f"{FOLDER}/{stem}.{hashlib.sha256(content).hexdigest()[:12]}{suffix}"
        self.files[path] = Asset(content, guess_media_type(path))
        return f"/{path}"

    def add_file(self, path: str) -> str:
        """The address of a source file that is served as it is."""
        if path not in self.addresses:
            self.addresses[path] = self.add_asset(path, (self.folder / path).read_bytes())
        return self.addresses[path]

    def read_module(self, path: str) -> _Module:
        if path not in self.modules:
            self.modules[path] = _parse_module(path, (self.folder / path).read_text("utf-8"))
        return self.modules[path]

    def order_modules(self, first: Iterable[str]) -> list[str]:
        """The modules that are loaded with the first ones, each after what it imports."""
        ordered: dict[str, None] = {}

        def visit(path: str, importers: tuple[str, ...]) -> None:
            if path in ordered or path.startswith(_VENDOR):
                return
            if path in importers:
                raise ValueError(f"modules import each other: {' -> '.join([*importers, path])}")
            for imported in self.read_module(path).imports:
                visit(imported, (*importers, path))
            ordered[path] = None

        for path in first:
            visit(path, ())
        return list(ordered)

    def group_modules(self) -> dict[str, list[str]]:
        """The modules of each bundle, a bundle after those that it imports."""
        core = self.order_modules([_ENTRY])[:-1]  # the entry comes last
        first_view = [path for path in _FIRST_VIEW if (self.folder / path).is_file()]
        view = [path for path in self.order_modules(first_view) if path not in core]
        places = [path for path in self.read_module(_ENTRY).dynamic_imports if path not in view]
        closures = {place: self.order_modules([place]) for place in places}
        users: dict[str, list[str]] = {}
        for place, closure in closures.items():
            for path in closure:
                if path not in core and path not in view:
                    users.setdefault(path, []).append(place)
        groups = {"core": core, "view": view, "shared": [path for path, of in users.items() if len(of) > 1]}
        for place in places:
            groups[place.partition("/")[0]] = [path for path, of in users.items() if of == [place]]
        return {name: paths for name, paths in {**groups, "app": [_ENTRY]}.items() if paths}

    def add_bundle(self, name: str, paths: Sequence[str]) -> str:
        """The address of a bundle; those that it imports are there."""
        inside = set(paths)
        self.bundle_of.update(dict.fromkeys(paths, name))
        outside: dict[str, dict[str, None]] = {}  # constants by the address they are imported from
        texts = []
        for module in map(self.read_module, paths):
            for imported in module.imports:
                if imported.startswith(_VENDOR):
                    outside.setdefault(self.add_file(imported), {})[f"* as {_make_constant_name(imported)}"] = None
                elif imported not in inside:
                    outside.setdefault(self.addresses[imported], {})[_make_constant_name(imported)] = None
            texts.append(self.write_module(module))
        head = []
        for address, constants in outside.items():
            names = ", ".join(constants)
            head.append(f'import {names if names.startswith("*") else f"{{ {names} }}"} from "{address}";\n')
        tail = f"export {{ {', '.join(self.read_module(path).constant for path in paths)} }};\n"
        address = self.add_asset(f"{name}.js", "".join([*head, *texts, tail]).encode())
        self.addresses.update(dict.fromkeys(paths, address))
        return address

    def write_module(self, module: _Module) -> str:
        """The module as a constant of its bundle."""
        bindings: list[str] = []

        def bind(match: re.Match[str]) -> str:
            names = ", ".join(part.strip().replace(" as ", ": ") for part in match[1].split(",") if part.strip())
            bindings.append(f"const {{ {names} }} = {_make_constant_name(_resolve(module.path, match[2]))};")
            return "\n" * match[0].count("\n")

        def load_later(match: re.Match[str]) -> str:
            path = _resolve(module.path, match[1])
            if path.startswith(_VENDOR):
                return f'=> import("{self.add_file(path)}")'
            if path not in self.addresses:
                raise ValueError(f"{module.path}: only {_ENTRY} may load {path} later, since assets name each other")
            return f'=> import("{self.addresses[path]}").then((bundle) => bundle.{_make_constant_name(path)})'

        source = _EXPORT.sub("", _REEXPORT.sub(bind, _IMPORT.sub(bind, module.source)))
        source = _DYNAMIC_IMPORT.sub(load_later, source)
        source = _VENDORED_FILE.sub(lambda match: f'"{self.add_file(match[1])}"', source)
        start = " ".join([f"const {module.constant} = (() => {{", *bindings])
        return f"// {module.path}\n{start}\n{source}\nreturn {{ {', '.join(module.exports)} }};\n}})();\n"

    def write_index(self) -> str:
        """`index.html` that asks for the assets; what the first view needs is fetched at once, not import by import."""
        text = (self.folder / "index.html").read_text("utf-8")
        sheets = _STYLESHEET.findall(text)
        if sheets:
            joined = "".join(f"/* {path} */\n{(self.folder / path).read_text('utf-8')}\n" for path in sheets)
            link = f'<link rel="stylesheet" href="{self.add_asset("style.css", joined.encode())}">\n'
            start = text.index('<link rel="stylesheet"')
            text = text[:start] + link + _STYLESHEET.sub("", text[start:])
        if _ENTRY_SCRIPT in text:
            bundles = {name: self.add_bundle(name, paths) for name, paths in self.group_modules().items()}
            links = [f'<link rel="modulepreload" href="{address}">\n' for address in self.imported_vendor_files]
            for name, priority in (("core", ""), ("view", ' fetchpriority="low"')):
                if name in bundles:
                    links.append(f'<link rel="modulepreload" href="{bundles[name]}"{priority}>\n')
            text = text.replace(_ENTRY_SCRIPT, "".join(links) + _ENTRY_SCRIPT.replace(f"/{_ENTRY}", bundles["app"]))
        return _LOCAL_FILE.sub(lambda match: f'{match[1]}="{self.add_file(match[2])}"', text)

    @property
    def imported_vendor_files(self) -> list[str]:
        """The addresses of the vendored modules that a module imports when it is loaded."""
        imported = {path for module in self.modules.values() for path in module.imports}
        return [self.add_file(path) for path in sorted(imported) if path.startswith(_VENDOR)]


def build_assets(folder: Path) -> PageAssets:
    """Join the files of a page; `ValueError` says which file cannot be joined, and why."""
    builder = _AssetBuilder(folder)
    index = builder.write_index().encode()
    return PageAssets(Asset(index, "text/html; charset=utf-8"), builder.files)


def guess_media_type(path: str) -> str:
    """The `Content-Type` of a file by its name."""
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


def _parse_module(path: str, source: str) -> _Module:
    """A module's imports and exports; `ValueError` for a form of them that is not read here."""
    bound = [*_IMPORT.finditer(source), *_REEXPORT.finditer(source)]
    reexported = [
        part.split(" as ")[-1].strip() for match in _REEXPORT.finditer(source) for part in match[1].split(",")
    ]
    remainder = source
    for pattern in (_IMPORT, _REEXPORT, _EXPORT, _DYNAMIC_IMPORT):
        remainder = pattern.sub("", remainder)
    unread = _UNREADABLE.search(remainder)
    if unread is not None:
        raise ValueError(f"{path}: cannot join {unread[0].strip()!r}; write it as the other modules do")
    return _Module(
        path=path,
        source=source,
        imports=[_resolve(path, match[2]) for match in bound],
        dynamic_imports=[_resolve(path, name) for name in _DYNAMIC_IMPORT.findall(source)],
        exports=[name for name in [*reexported, *_EXPORT.findall(source)] if name],
    )


def _resolve(importer: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), name))


def _make_constant_name(path: str) -> str:
    """The constant of a module: lib/text-errors.js is lib$text_errors."""
    return path.removesuffix(".js").replace("/", "$").replace("-", "_").replace(".", "_")


mimetypes.add_type("text/javascript", ".js")
