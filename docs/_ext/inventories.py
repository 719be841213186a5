"""Inventories of other projects' documentation, where they can be had."""

import os
import shutil
from urllib.error import URLError
from urllib.request import urlopen

# Environment variable that asks for them: builds don't depend on the network otherwise.
WANTED = "DOCS_INVENTORIES"
# Seconds that one inventory may take.
TIMEOUT = 20


def fetch(addresses, folder):
    """Fetch the inventories of projects and return those that came.

    Parameters
    ----------
    addresses : dict of str to str
        Addresses of the projects' documentation, by name.
    folder : pathlib.Path
        Folder that keeps them.

    Returns
    -------
    dict of str to (str, str)
        Value of `intersphinx_mapping`.
    """
    mapping = {}
    if not os.environ.get(WANTED):
        return mapping
    folder.mkdir(parents=True, exist_ok=True)
    for name, address in addresses.items():
        path = folder / f"{name}.inv"
        try:
            with urlopen(f"{address}objects.inv", timeout=TIMEOUT) as source:
                with path.open("wb") as target:
                    shutil.copyfileobj(source, target)
        except (URLError, OSError) as error:
            print(f"No links to {name}: {error}")
            continue
        mapping[name] = (address, str(path))
    return mapping
