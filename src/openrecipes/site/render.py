"""Templates to text: one environment, escaping on, undefined names refused."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from openrecipes import __version__
from openrecipes.site import words

#: What a page may load: its own files and nothing else. No inline script or style runs.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
STATIC = (
    "site.css",
    "site.js",
    "index.js",
    "compare.js",
    "live.js",
    "icon.svg",
    "inter.woff2",
    "inter-LICENSE.txt",
)


@cache
def environment() -> Environment:
    """The Jinja environment of all pages."""
    made = Environment(
        loader=PackageLoader("openrecipes.site"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters["on_machine"] = words.on_machine
    made.globals.update(policy=POLICY, version=__version__, assets=assets())
    return made


@cache
def static(name: str) -> bytes:
    """A style sheet, script or picture of the site."""
    return files("openrecipes.site").joinpath("static", name).read_bytes()


@cache
def assets() -> str:
    """A name for the static files' content, so that a browser never mixes versions."""
    digest = hashlib.sha256()
    for name in STATIC:
        digest.update(static(name))
    return digest.hexdigest()[:8]


@cache
def fingerprint() -> str:
    """Changes when anything that shapes a page changes: templates, static files, this code."""
    digest = hashlib.sha256(f"{__version__} {assets()}".encode())
    package = files("openrecipes.site")
    names = sorted(entry.name for entry in package.iterdir() if entry.name.endswith(".py"))
    for name in names:
        digest.update(package.joinpath(name).read_bytes())
    folder = package.joinpath("templates")
    for name in sorted(entry.name for entry in folder.iterdir()):
        digest.update(folder.joinpath(name).read_bytes())
    return digest.hexdigest()


def page(template: str, address: str, here: str, scripts: tuple[str, ...], **values: Any) -> str:
    """Render one page.

    Args:
        template: its file.
        address: where the page will lie, below the site's root; links lead up from there.
        here: the entry of the site's navigation that is current.
        scripts: names of its static scripts.
        values: what the template shows.
    """
    root = "../" * address.count("/")
    made = environment().get_template(template)
    return made.render(root=root, here=here, scripts=scripts, **values) + "\n"
