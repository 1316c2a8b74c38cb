"""Samplers that run on the machine to be measured: each is one file with few needs, so that it can be copied there."""
