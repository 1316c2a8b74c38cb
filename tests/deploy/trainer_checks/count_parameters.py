"""Counts parameters: JSON lines of models in, one count a line out; run by the training environment's python.

python count_parameters.py TRAINER_FOLDER < models.jsonl
"""

from __future__ import annotations

import json
import sys

sys.path.insert(0, sys.argv[1])

import torch
from model import build

# Only shapes count: filling modules on device meta with values is most of the time.
for kind in (torch.nn.Linear, torch.nn.Embedding, torch.nn.LayerNorm):
    kind.reset_parameters = lambda module: None

for line in sys.stdin:
    print(sum(parameter.numel() for parameter in build(json.loads(line)).parameters()))
