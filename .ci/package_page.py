"""The text about the package that an index shows: README.md, with links that lead somewhere from there.

A reader of an index has no tree beside the text, so a link such as `docs/first-steps.md` would be broken. `Source`, in
`[project.urls]` of pyproject.toml, is the address where the tree can be read. Links lead there, to the files of the
same version. Without that address the text has no links into the tree: their words stay, and a last paragraph says
where the pages are. Hatchling asks for the text whenever it builds the package.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_BLOCK = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")
"""An image or a link to a file of the tree."""
_WITHOUT_LINKS = "The pages that are named here are in the source distribution, in its folder `docs/`."


class PackagePage(MetadataHookInterface):
    """Gives the distribution its `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text("utf-8")
        source = metadata.get("urls", {}).get("Source")
        text = page(readme, version=metadata["version"], source=source)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def page(readme: str, *, version: str, source: str | None) -> str:
    """Return the text for an index. `source` is the address of the tree, None if it has none.

    The files of a version are expected below `blob/v<version>/` and, as they are, below `raw/v<version>/`.
    """

    def replaced(link: re.Match[str]) -> str:
        mark, words, target = link.groups()
        if source is None:
            return words
        return f"{mark}[{words}]({source.rstrip('/')}/{'raw' if mark else 'blob'}/v{version}/{target})"

    parts = _BLOCK.split(readme)  # every second one is a block of code
    parts[::2] = [_LINK.sub(replaced, part) for part in parts[::2]]
    text = "".join(parts)
    return text if source is not None else f"{text}\n{_WITHOUT_LINKS}\n"
