"""`atrium engine-command`: print the command that starts a vLLM server for a trainer on another machine."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Sequence

from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser, whole
from atrium.config.compose import compose
from atrium.engines.settings import VllmSettings

_EXAMPLES = """\
examples:
  atrium engine-command rollout=vllm model=qwen3_8b rollout.tensor_parallel=2 --host 10.0.0.2
  atrium engine-command rollout=vllm_cpu model.head_dim=32 > server.sh; ATRIUM_TOKEN=SECRET sh server.sh
"""


def main(argv: Sequence[str]) -> int:
    """Print the command; raise `ConfigError` if the settings do not use vLLM."""
    arguments = _parser().parse(argv)
    config = compose(arguments.overrides)
    if not isinstance(config.rollout, VllmSettings):
        raise ConfigError(f"rollout.engine={config.rollout.engine} cannot run as a server; use rollout=vllm")
    # `assemble.servers` imports torch; import it after the checks of the settings.
    from atrium.assemble.servers import engine_command

    command, folder = engine_command(config, arguments.host, arguments.port)
    if folder is not None:
        sys.stderr.write(f"the server reads {folder}; copy this folder if it is not shared\n")
    if _is_in_use(arguments.host, arguments.port):
        sys.stderr.write(
            f"warning: port {arguments.port} at {arguments.host} is in use on this machine, where the "
            "server would exit at once; choose another port with --port\n"
        )
    sys.stdout.write(f"{command}\n")
    return 0


def _is_in_use(host: str, port: int) -> bool:
    """Return whether a process of this machine listens at the address.

    Returns False if `host` is the address of another machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _parser() -> CommandParser:
    parser = CommandParser(
        "engine-command",
        "Print the shell command that starts a vLLM server for rollout.servers, on this or another machine.\n"
        "Overrides are those of `atrium train`. The server reads its token from ATRIUM_TOKEN.",
        _EXAMPLES,
    )
    parser.add_overrides()
    parser.add_address(8000, whole(1, 65_535), meaning="8000")
    return parser
