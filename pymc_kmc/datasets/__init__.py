"""Small data sets that the examples and tests use, shipped with the package.

Glass Identification data: B. German (1987). *Glass Identification* [Dataset]. UCI Machine Learning
Repository, https://doi.org/10.24432/C5WW2P. Licence: Creative Commons Attribution 4.0 International
(CC BY 4.0), https://creativecommons.org/licenses/by/4.0/. Changes: the identifier column is left
out and the numbers of the types are replaced by the abbreviations of W. N. Venables and B. D.
Ripley (2002), *Modern Applied Statistics with S*, whose R package `MASS` has the same rows in the
same order as `fgl` (with the refractive index rescaled, RI_fgl = 1000 (RI - 1.518)).
"""

import csv
from dataclasses import dataclass
from importlib import resources

import numpy as np

__all__ = ["Glass", "load_glass"]

# Types of window glass, of a building or a vehicle, float-processed or not.
_WINDOW_TYPES = ("WinF", "WinNF", "Veh")


@dataclass(frozen=True)
class Glass:
    """The Glass data: chemical analyses of 214 fragments of glass, for forensic use.

    Attributes
    ----------
    data : numpy.ndarray of float, shape (214, 9)
        Refractive index, then the content of eight elements, in weight per cent of their oxides.
    feature_names : tuple of str
        Names of the columns of `data`: RI, Na, Mg, Al, Si, K, Ca, Ba, Fe.
    target : numpy.ndarray of str, shape (214,)
        Type of each piece: WinF and WinNF (building windows, float-processed or not), Veh (vehicle
        windows), Con (containers), Tabl (tableware), Head (headlamps).
    y : numpy.ndarray of float, shape (214,)
        Binary label: +1 for window glass (WinF, WinNF, Veh), -1 for the rest.
    """

    data: np.ndarray
    feature_names: tuple[str, ...]
    target: np.ndarray
    y: np.ndarray


def load_glass() -> Glass:
    """Load the UCI Glass Identification data: 214 pieces of glass, nine measurements, six types.

    Returns
    -------
    Glass
        With `data`, `feature_names`, `target` and `y`.

    References
    ----------
    B. German (1987). Glass Identification. UCI Machine Learning Repository,
    https://doi.org/10.24432/C5WW2P. CC BY 4.0.

    Examples
    --------
    >>> glass = load_glass()
    >>> glass.data.shape
    (214, 9)
    >>> int((glass.y > 0).sum())
    163
    """
    source = resources.files(__package__).joinpath("glass.csv")
    header, *rows = csv.reader(source.read_text(encoding="utf-8").splitlines())
    target = np.array([row[-1] for row in rows])
    return Glass(
        data=np.array([row[:-1] for row in rows], dtype=float),
        feature_names=tuple(header[:-1]),
        target=target,
        y=np.where(np.isin(target, _WINDOW_TYPES), 1.0, -1.0),
    )
