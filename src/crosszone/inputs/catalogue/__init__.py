"""The catalogue: GPUs, models, regions and measured links that come with CrossZone, and the user's own entries."""

from crosszone.inputs.catalogue.entries import Catalogue, catalogue, catalogue_of, home
from crosszone.inputs.catalogue.entry import KINDS, ModelEntry

__all__ = ["KINDS", "Catalogue", "ModelEntry", "catalogue", "catalogue_of", "home"]
