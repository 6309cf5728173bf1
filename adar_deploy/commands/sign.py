"""The command `adar-deploy sign`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy import bundle_signatures
from adar_deploy.console import print_facts, print_next
from adar_deploy.environment import require
from adar_deploy.options import BundleArgument, Json, SignatureOption
from adar_deploy.paths import check_output


def sign(
    bundle: BundleArgument = Path("bundle"),
    private_key: Annotated[
        Path | None, typer.Option("--private-key", help="Elliptic-curve private key, a PEM file.")
    ] = None,
    password: Annotated[
        str | None,
        typer.Option(help="Password of the private key; the variable ADAR_SIGN_PASSWORD hides it."),
    ] = None,
    sigstore: Annotated[
        bool, typer.Option("--sigstore", help="Sign with Sigstore instead of a key; needs a network.")
    ] = False,
    signature: SignatureOption = None,
    as_json: Json = False,
) -> None:
    """Sign a bundle, so that others can check who made it.

    The signature covers every file of the bundle except the engines, which each machine builds itself.

    Example: adar-deploy sign bundle --private-key key.pem
    """
    require("sign")
    from adar_runtime.bundle.pack import require_folder
    from adar_runtime.bundle.reading import read_bundle
    from adar_runtime.errors import UsageError

    if (private_key is None) == (not sigstore):
        raise UsageError("choose how to sign: --private-key FILE, or --sigstore")
    require_folder(bundle, "signing")
    target = signature or bundle_signatures.default_signature(bundle)
    read_bundle(bundle, whole=True)  # sign nothing that cannot be loaded
    if target.name != bundle_signatures.SIGNATURE and target.resolve().is_relative_to(bundle.resolve()):
        raise UsageError(
            f"a signature inside the bundle is called {bundle_signatures.SIGNATURE}: {target} is not"
        )
    check_output(target, (private_key,), "--signature")
    if private_key is not None:
        bundle_signatures.sign_with_key(bundle, target, private_key, password)
    else:
        bundle_signatures.sign_with_sigstore(bundle, target)
    if as_json:
        typer.echo(json.dumps({"bundle": str(bundle), "signature": str(target)}))
        return
    print_facts("signed", {"bundle": bundle, "signature": target, "not covered": "engines"})
    if private_key is not None:
        print_next("verify", bundle, "--public-key", "PUBLIC.pem")
    else:
        print_next("verify", bundle, "--identity", "NAME", "--issuer", "ADDRESS")
