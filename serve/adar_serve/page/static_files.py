"""The files of the page, read once, with a content security policy that allows nothing else."""

import hashlib
import json
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from adar_serve.compression import packed
from adar_serve.refusals import RefusedError

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
INDEX = "index.html"
EMPTY = "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="  # a style element before it has its text
LIBRARIES = "vendor/libraries.json"  # versions, licences and hashes of the vendored libraries


class StaticFiles:
    """All files of the page, in memory. Only their names are accepted, so no path can leave the folder."""

    def __init__(self) -> None:
        self._files = dict(_read(files("adar_serve.page").joinpath("static"), ""))
        styles = [
            one for library in json.loads(self._files[LIBRARIES]) for one in library.get("inline_styles", [])
        ]
        self._headers = {
            "content-security-policy": policy(styles),
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "cache-control": "no-cache",
        }

    async def index(self, request: Request) -> Response:
        """The page."""
        return self._response(request, INDEX)

    async def file(self, request: Request) -> Response:
        """A file that the page loads."""
        return self._response(request, request.path_params["file"])

    def _response(self, request: Request, name: str) -> Response:
        content = self._files.get(name)
        if content is None:
            raise RefusedError(404, "there is no such address")
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = self._headers | {"etag": tag, "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        body, encoding = packed(content, request.headers.get("accept-encoding"))
        if encoding is not None:
            headers["content-encoding"] = encoding
        return Response(body, headers=headers, media_type=TYPES["." + name.rpartition(".")[2]])


def policy(inline_styles: list[str]) -> str:
    """The content security policy. force-graph adds style elements, which are allowed by their hashes."""
    hashes = "".join(f" '{one}'" for one in (EMPTY, *inline_styles))
    return (
        "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self'; "
        f"style-src 'self'{hashes}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _read(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found = []
    for each in folder.iterdir():
        name = prefix + each.name
        found += _read(each, name + "/") if each.is_dir() else [(name, each.read_bytes())]
    return found
