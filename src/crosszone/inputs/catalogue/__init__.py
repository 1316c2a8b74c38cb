"""The catalogue: GPUs, models, regions and measured links that come with CrossZone, and the user's own entries."""

from crosszone.inputs.catalogue.entries import KINDS, Catalogue, ModelEntry, catalogue, catalogue_of, home

__all__ = ["KINDS", "Catalogue", "ModelEntry", "catalogue", "catalogue_of", "home"]
