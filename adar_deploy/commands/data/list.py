"""The command `adar-deploy data list`."""

import json

import typer

from adar_deploy.console import print_facts, print_note
from adar_deploy.extras import present
from adar_deploy.options import Json


def list_(as_json: Json = False) -> None:
    """List the sets that can be trained on by name.

    Generated ones need no network. Those of PyTorch Geometric are downloaded once, to ~/.cache/adar-deploy
    or the folder that ADAR_DATA says.

    Example: adar-deploy data list

    Example: adar-deploy train pyg:Planetoid/Cora
    """
    from adar_runtime.graph.synthetic import FAMILIES

    found = _pyg_sets()
    if as_json:
        made = {
            name: {"about": one.about, "sees": one.receptive_field, "settings": one.settings}
            for name, one in FAMILIES.items()
        }
        typer.echo(json.dumps({"generated": made, "pyg": found}))
        return
    for name, one in FAMILIES.items():
        settings = ", ".join(f"--{key} {value}" for key, value in one.settings.items())
        print_facts(f"{name}: {one.about}", {"a node has to see": one.receptive_field, "data make": settings})
    if found is None:
        print_note("the sets of PyTorch Geometric need pip install 'adar-deploy[train]'")
        return
    names = {kind: ", ".join(sets) for kind, sets in found.items()}
    print_facts("of PyTorch Geometric, such as pyg:Planetoid/Cora", names)


def _pyg_sets() -> dict[str, list[str]] | None:
    """Its classes as one types them, and the sets of each; None where it is not installed."""
    if not present("train"):
        return None
    from adar_train.data.pyg import PREFIX, SETS

    return {PREFIX + kind: list(names) for kind, names in SETS.items()}
