"""The command `adar-deploy verify`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy import bundle_signatures
from adar_deploy.console import print_facts, print_note
from adar_deploy.environment import require
from adar_deploy.options import BundleArgument, Json, SignatureOption


def verify(
    bundle: BundleArgument = Path("bundle"),
    public_key: Annotated[
        Path | None, typer.Option("--public-key", help="Public key of the signer, a PEM file.")
    ] = None,
    identity: Annotated[
        str | None, typer.Option(help="Sigstore identity of the signer, such as an e-mail address.")
    ] = None,
    issuer: Annotated[
        str | None, typer.Option(help="Address of the service that confirmed the identity.")
    ] = None,
    signature: SignatureOption = None,
    as_json: Json = False,
) -> None:
    """Check who signed a bundle, and that no file was added, changed or removed since.

    Exit code 2: the bundle is not what the signer signed. Engines are not covered: only those that you built
    on this machine are loaded by default.

    Example: adar-deploy verify bundle --public-key public.pem
    """
    require("sign")
    from adar_runtime.bundle.pack import require_folder
    from adar_runtime.errors import UsageError

    by_identity = identity is not None and issuer is not None
    if (public_key is not None) == by_identity or (identity is None) != (issuer is None):
        raise UsageError("name the signer: --public-key FILE, or --identity NAME and --issuer ADDRESS")
    require_folder(bundle, "the check of a signature")
    source = signature or bundle_signatures.default_signature(bundle)
    if not source.is_file():
        raise UsageError(f"{source} not found: the bundle is not signed, or give the file with --signature")
    if public_key is not None:
        bundle_signatures.verify_with_key(bundle, source, public_key)
    else:
        assert identity is not None
        assert issuer is not None
        bundle_signatures.verify_with_sigstore(bundle, source, identity, issuer)
    engines = (bundle / bundle_signatures.ENGINES).exists()
    if as_json:
        typer.echo(json.dumps({"bundle": str(bundle), "verified": True, "unsigned_engines": engines}))
        return
    print_facts("verified", {"bundle": bundle, "signer": public_key or identity, "signature": source})
    if engines:
        print_note("the engines in the bundle are not covered by the signature")
