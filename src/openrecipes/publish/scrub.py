"""Takes out of what is published what belongs to one machine or one person.

Host names, IP and MAC addresses, e-mail addresses, user names, home paths, GPU serials and access
tokens. Names are learned from the record itself (its hosts, home paths, ``user@host``) and from the
machine that publishes; words that the recipe needs (model, data set, engine) are never taken out.
"""

from __future__ import annotations

import getpass
import ipaddress
import re
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_HOME = re.compile(
    r"(?:(?<![\w./~])|(?<=//))(?:/(?:[\w.-]+/)*?(?:home\d*|Users)/)([A-Za-z0-9._-]+)"
    r"|\b[A-Za-z]:[\\/]+Users[\\/]+([A-Za-z0-9._-]+)"
    r"|(?<![\w./~$-])~([A-Za-z_][\w.-]*)(?=/)"
    r"|(?<![\w./])/root\b"
)
#: An absolute path, or one from a home; an address (https://...) is none.
_ABSOLUTE = re.compile(r"(?<![\w.~/$}-])(?!//)(?:~?/[^\s'\"=:,;]*|~[\w.-]+/[^\s'\"=:,;]*)")
_EMAIL = re.compile(r"\b[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b")
_LOGIN = re.compile(r"\b([a-z_][a-z0-9_.-]*)@([A-Za-z][A-Za-z0-9.-]*)\b(?!:[0-9a-f]{16})")
_USER_WORD = re.compile(
    r"\b(?:USER|LOGNAME|USERNAME|user|username)=['\"]?([A-Za-z][A-Za-z0-9._-]*)"
)
#: Places that name a host: what schedulers and launchers set and print, and their addresses.
_HOST_WORD = re.compile(
    r"\b((?:MASTER_ADDR|(?:RAY_)?HEAD_(?:NODE|ADDR)|HOSTNAME|SLURMD_NODENAME|SLURM_TOPOLOGY_ADDR"
    r"|SLURM_LAUNCH_NODE_IPADDR|SLURM_SUBMIT_HOST|hostname|nodename|master_addr)[\"']?\s*[=:]\s*"
    r"[\"']?|\b(?:tcp|ssh|ucx|rdma|c10d|etcd|ray|grpc)://|\bhttps?://(?=[\w-]+:\d))"
    r"([A-Za-z][A-Za-z0-9.-]*)"
)
_NODE_LIST = re.compile(r"\b(SLURM_(?:JOB_|STEP_)?NODELIST=[\"']?)[^\s\"']+")
_CLOUD_HOST = re.compile(r"\bip-\d{1,3}(?:-\d{1,3}){3}(?:\.[A-Za-z0-9.-]+)?\b")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])")
_MAC = re.compile(r"\b[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}\b")
_SERIAL = re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|A(?:KI|SI)A[0-9A-Z]{16}"
    r"|sk-[A-Za-z0-9_-]{20,}|nvapi-[\w-]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
#: Values of what is named as a secret; the name stays.
_SECRET = re.compile(
    r"(\b[A-Z][A-Z0-9_]*(?:API_?KEY|ACCESS_KEY(?:_ID)?|(?:SECRET|PRIVATE|AUTH|ACCOUNT)_KEY|_TOKEN"
    r"|SECRET|PASSWORD|PASSWD|CREDENTIALS)[\"']?\s*[=:]\s*[\"']?"
    r"|\b(?i:api[_-]?key|wandb-key|(?:access|auth|hf|secret)[_-](?:token|key)|password|passwd)"
    r"[\"']?\s*[=:]\s*[\"']?"
    r"|\b(?i:bearer|basic)\s+(?=[A-Za-z0-9._~+/=-]{16}))"
    r"([A-Za-z0-9._~+/=!@#$%^&*-]{4,})"
)
_LOGIN_IN_ADDRESS = re.compile(r"(?<=://)[^\s/@:]+:[^\s/@]+(?=@)")
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]+-----"
    r"(?:.{0,16384}?-----END [A-Z0-9 ]+-----|(?:\s*[A-Za-z0-9+/=]{16,})*)",
    re.DOTALL,
)
#: Four numbers behind one of these are a version.
_VERSION = re.compile(
    r"(?:version|release|driver|firmware|build|cu(?:dnn|blas|da|fft|sparse)|nccl|torch|fabric|efa)"
    r"[\w.+-]{0,8}[\s:=<>~(-]{1,4}v?$|\bv$",
    re.IGNORECASE,
)
#: Names that tell nothing about anybody.
_COMMON = frozenset(
    (
        "localhost",
        "localdomain",
        "root",
        "user",
        "ubuntu",
        "admin",
        "ec2-user",
        "nobody",
        "runner",
        "docker",
        "container",
        "host",
        "node",
        "worker",
        "head",
        "master",
        "main",
        "train",
        "job",
        "gpu",
        "cpu",
        "local",
        "git",
        "sha256",
        "none",
        "null",
        "true",
        "false",
        "unknown",
        "default",
    )
)
_LOCAL_ADDRESSES = frozenset(("127.0.0.1", "0.0.0.0", "::1", "::"))


@dataclass(frozen=True)
class Scrubber:
    """Replaces what it has learned, and what looks like an address, in any text.

    Attributes:
        hosts: host names, longest first.
        users: user names, longest first.
    """

    hosts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()

    @classmethod
    def learn(
        cls,
        texts: Iterable[str],
        *,
        hosts: Iterable[str] = (),
        needed: Collection[str] = (),
        here: bool = True,
    ) -> Scrubber:
        """Learn names from ``texts``.

        Args:
            texts: everything that will be scrubbed.
            hosts: host names that are known.
            needed: texts whose words must stay.
            here: learn this machine's host and user too.
        """
        named, users = set(hosts), set[str]()
        if here:
            named |= {socket.gethostname()}
            users |= {_me()}
        for text in texts:
            users |= {name for match in _HOME.finditer(text) for name in match.groups() if name}
            users |= {match[1] for match in _USER_WORD.finditer(text)}
            named |= {match[2] for match in _HOST_WORD.finditer(text)}
            for match in _LOGIN.finditer(text):
                if _is_login(match, named, users):
                    users.add(match[1])
                    named.add(match[2])
        named |= {host.partition(".")[0] for host in named}
        return cls(_telling(named, needed), _telling(users, needed))

    def text(self, text: str) -> str:
        """``text`` with everything telling replaced."""
        text = _PEM.sub("<token>", text)
        text = _LOGIN_IN_ADDRESS.sub("<token>", text)
        text = _TOKEN.sub("<token>", text)
        text = _SECRET.sub(_secret, text)
        text = _SERIAL.sub("<gpu>", text)
        text = _HOME.sub("~", text)
        text = _EMAIL.sub("<address>", text)
        text = _HOST_WORD.sub(_host, text)
        text = _NODE_LIST.sub(r"\1<host>", text)
        text = _CLOUD_HOST.sub("<host>", text)
        text = _MAC.sub("<address>", text)
        text = _IPV6.sub(_address, text)
        text = _IPV4.sub(_address, text)
        for host in self.hosts:
            text = _word(host).sub("<host>", text)
        for user in self.users:
            text = _word(user).sub("<user>", text)
        return text

    def value(self, value: Any) -> Any:
        """``value`` with every text in it scrubbed; keys stay."""
        return each_text(value, self.text)


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` with every text in it changed; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: each_text(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [each_text(item, change) for item in value]
    return value


def portable(text: str) -> str:
    """``text`` with each absolute path in it cut to what another machine has, too.

    That is the last part of it; a model in the hub's cache keeps its id and revision, and our own
    program, started as a module, its name.
    """
    return _ABSOLUTE.sub(_relative, text)


def _relative(match: re.Match[str]) -> str:
    path = match.group().rstrip("/")
    hub = path.find("/models--")
    if hub >= 0:
        return path[hub + 1 :]
    if path.endswith("/openrecipes/__main__.py"):
        return "openrecipes"
    return path.rpartition("/")[2] or "."


def strings(value: Any) -> Iterator[str]:
    """Every text inside ``value``."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings(item)


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _is_login(match: re.Match[str], hosts: Collection[str], users: Collection[str]) -> bool:
    """Whether ``user@host`` is one: a part is known, or it looks like a shell's or a copy's.

    Logs also hold products such as ``weights@hidden``, whose words must not be taken out.
    """
    user, host = match[1], match[2]
    follows = match.string[match.end() : match.end() + 1]
    return user in users or host in hosts or follows == ":" or bool(re.search(r"[\d.]", host))


def _telling(names: Iterable[str], needed: Collection[str]) -> tuple[str, ...]:
    """The names that tell something and that no needed text holds, longest first."""
    found = set()
    for name in {name.strip(".") for name in names}:
        common = len(name) < 3 or name.isdigit() or name.lower() in _COMMON
        if not common and not any(_word(name).search(text) for text in needed):
            found.add(name)
    return tuple(sorted(found, key=lambda name: (-len(name), name)))


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", re.IGNORECASE)


def _host(match: re.Match[str]) -> str:
    return match[1] + (match[2] if match[2].lower() in _COMMON else "<host>")


def _secret(match: re.Match[str]) -> str:
    return match[1] + (match[2] if match[2].lower() in _COMMON else "<token>")


def _address(match: re.Match[str]) -> str:
    text = match.group()
    if _VERSION.search(match.string[max(0, match.start() - 24) : match.start()]):
        return text
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return text
    return text if text in _LOCAL_ADDRESSES else "<address>"
