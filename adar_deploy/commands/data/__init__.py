"""The commands `adar-deploy data …`, one per file."""

from adar_deploy.commands.data.convert import convert
from adar_deploy.commands.data.list import list_
from adar_deploy.commands.data.make import make
from adar_deploy.commands.data.shard import shard
from adar_deploy.commands.data.show import show

__all__ = ["convert", "list_", "make", "shard", "show"]
