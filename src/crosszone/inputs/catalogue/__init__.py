"""The catalogue: GPUs, models, regions and measured links that come with CrossZone, and the user's own entries."""

from crosszone.inputs.catalogue.entries import KINDS, Catalogue, ModelEntry, catalogue, find_home, get_catalogue

__all__ = ["KINDS", "Catalogue", "ModelEntry", "catalogue", "find_home", "get_catalogue"]
