"""Finds the other project named `penstock`, whose files and ours would share one folder.

Ours is the distribution `penstock-workflow`. A leaf, and light: importing `penstock` imports it. The packages that
users import first (`client`, `worker`, `durable`, `testing`, `cli`) import it too: `penstock/__init__.py` may be the
other project's.
"""

from __future__ import annotations

import os
import sys

NAME = "penstock-workflow"
OTHER = "penstock"
REPAIR = f"pip uninstall {OTHER} {NAME}, then install {NAME} again"


def find_other(package: str) -> str | None:
    """Return the metadata directory of the other distribution, where it is installed into the folder that holds this
    package directory; None where it is not. One that is installed elsewhere shares no file with ours."""
    folder = os.path.dirname(package)
    try:
        names = os.listdir(folder)
    except OSError:  # inside of an archive, or the folder is closed to us
        return None
    of_other = (name for name in names if name.startswith(f"{OTHER}-") and name.endswith((".dist-info", ".egg-info")))
    return next((os.path.join(folder, name) for name in sorted(of_other)), None)


def report_other(package: str) -> None:
    """Warn where the other distribution is installed too. Raises ImportError where its `__init__.py` has replaced ours:
    then other files of ours may be missing."""
    if getattr(sys.modules[OTHER], "DISTRIBUTION", None) != NAME:
        raise ImportError(
            f"{package}/__init__.py does not belong to {NAME}, although other modules of {NAME} are there: the "
            f"distribution `{OTHER}`"
            f" is another project and has replaced files of ours. {REPAIR}",
            name="penstock",
        )
    if found := find_other(package):
        import warnings

        warnings.warn(
            f"the distribution `{OTHER}` is another project, and is installed too ({found}): its files and those of"
            f" {NAME} replace each other. {REPAIR}",
            stacklevel=2,
        )


report_other(os.path.dirname(os.path.abspath(__file__)))
