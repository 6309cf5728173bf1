"""The command `adar-deploy serve`."""

import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from adar_deploy.console import err, print_facts, print_note
from adar_deploy.environment import available_cores, require
from adar_deploy.option_groups import OptionGroup, with_groups
from adar_deploy.options import AllowUnknownModel, Backend, Threads, is_typed
from adar_deploy.paths import BUNDLE, PRETRAINED, named_bundle
from adar_runtime.loop.registry import settings_of
from adar_serve.limits import Limits

BACKEND = Backend("auto")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class AddressOptions(OptionGroup):
    """Where the server listens, and what it offers there."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Port of HTTP; 0 chooses a free one.", min=0, max=65535)] = 8080
    grpc_port: Annotated[int, typer.Option(help="Port of gRPC; 0 chooses a free one.", min=0, max=65535)] = (
        8081
    )
    no_grpc: Annotated[bool, typer.Option("--no-grpc", help="Serve HTTP only.")] = False
    no_page: Annotated[bool, typer.Option("--no-page", help="Do not serve the web page at /.")] = False

    def settings(self) -> dict[str, Any]:
        """As settings of the server."""
        grpc_port = None if self.no_grpc else self.grpc_port
        return {"host": self.host, "port": self.port, "grpc_port": grpc_port, "page": not self.no_page}


@dataclass(frozen=True)
class AccessOptions(OptionGroup):
    """Who may use the server. The fields are settings of the server."""

    tokens: Annotated[
        Path | None, typer.Option(help="File with the accepted bearer tokens, one per line.", readable=False)
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate chain for TLS, a PEM file.", readable=False)
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(help="Private key of the certificate, a PEM file.", readable=False)
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(help="Certificates that sign those of the clients (mutual TLS).", readable=False),
    ] = None

    @property
    def is_open(self) -> bool:
        """Whether everybody may use the server."""
        return self.tokens is None and self.tls_client_ca is None


@dataclass(frozen=True)
class LimitOptions(OptionGroup):
    """One option for each limit of the server: a limit that is added there needs no change here."""

    limits: Limits

    @classmethod
    def options(cls) -> Iterator[inspect.Parameter]:
        for one in settings_of(Limits):
            yield inspect.Parameter(
                one.option.replace("-", "_"),
                inspect.Parameter.KEYWORD_ONLY,
                default=one.default,
                annotation=Annotated[int, typer.Option(f"--{one.option}", help=f"{one.help}.")],
            )

    @classmethod
    def take(cls, given: dict[str, Any]) -> Self:
        return cls(
            Limits(**{one.name: given.pop(one.option.replace("-", "_")) for one in settings_of(Limits)})
        )


@with_groups
def serve(
    *,
    ctx: typer.Context,
    bundles: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders or .adar files of bundles, or pretrained. "
            "NAME=FOLDER or NAME:VERSION=FOLDER names the model.",
            show_default="bundle",
        ),
    ] = None,
    address: AddressOptions,
    max_steps: Annotated[int, typer.Option(help="Budget of requests that name none.")] = 300,
    backend: Annotated[Backend, typer.Option(help="Backend to run on.")] = BACKEND,
    threads: Threads = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Server processes that share the ports; with --ray, the most replicas.",
            min=1,
            show_default="1; with --ray, the CPUs of this machine",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Serve HTTP on Ray Serve: auto or a number of CPUs starts a cluster here; ray://HOST:PORT."
        ),
    ] = None,
    allow_unknown_model: AllowUnknownModel = False,
    access: AccessOptions,
    model_control: Annotated[
        bool, typer.Option("--model-control", help="Let clients load and unload the models.")
    ] = False,
    isolate: Annotated[
        bool,
        typer.Option("--isolate", help="Run graphs in child processes with limits of memory and time."),
    ] = False,
    drain_seconds: Annotated[
        float,
        typer.Option(
            help="After SIGTERM: seconds in which ready is 503 and requests are still taken.", min=0
        ),
    ] = 2.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the addresses as one JSON object, when the server listens.")
    ] = False,
    limits: LimitOptions,
) -> None:
    """Serve bundles over HTTP and gRPC, with the Open Inference Protocol.

    Requests are logged to stderr as JSON lines. SIGTERM and Ctrl-C drain: running requests are finished. A
    second signal stops at once. SIGHUP loads the bundles again.

    Exit codes: 0 stopped by a signal after the drain; 2 an error.

    Example: adar-deploy serve bundle --port 8080

    Example: adar-deploy serve spam=bundle spam:2=newer --tokens tokens.txt

    Example: adar-deploy serve bundle --workers 4 --threads 1

    Example: adar-deploy serve bundle --ray auto --threads 1
    """
    require("serve")
    from adar_runtime.backends import TENSORRT
    from adar_serve.server import Settings
    from adar_serve.server import serve as run_server

    settings = Settings(
        **address.settings(),
        **vars(access),
        max_steps=max_steps,
        limits=limits.limits,
        model_control=model_control,
        isolate=isolate,
        drain_seconds=drain_seconds,
        workers=workers or (available_cores() if ray is not None else 1),
    )
    if address.host not in LOOPBACK and access.is_open:
        print_note(f"everybody who can reach {address.host} can use the server: add --tokens FILE", to=err)
    folders = [_with_folder(one) for one in bundles or [str(BUNDLE)]]
    on_ready = _print_json if as_json else _show
    options = {
        "backend": str(backend),
        "threads": threads,
        "trust_engines": backend == TENSORRT and is_typed(ctx, "backend"),
        "allow_unknown_model": allow_unknown_model,
    }
    if ray is None:
        run_server(folders, settings, on_ready, **options)
    else:
        from adar_serve.ray_serve import serve_on_ray

        serve_on_ray(ray, folders, settings, options, on_ready)


def _with_folder(text: str) -> str:
    """FOLDER or NAME=FOLDER, with the folder of the pretrained bundle for its name."""
    name, equals, folder = text.rpartition("=")
    found = named_bundle(Path(folder))
    return text if found == Path(folder) else f"{name or PRETRAINED}{equals or '='}{found}"


def _print_json(addresses: dict[str, Any]) -> None:
    typer.echo(json.dumps(addresses))


def _show(addresses: dict[str, Any]) -> None:
    print_facts("serving", addresses | {"stop": "Ctrl-C"})
