import os
from pathlib import Path

# Some virtual machines announce matrix instructions (AMX) that they then cannot run, and any bfloat16 layer dies
# there with an illegal instruction. Must be set before torch loads.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# No test needs a hub. Without this, a name that is not there is looked up again and again until it times out.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import settings

# one thread per worker: toy models gain nothing from more, and two workers share two cores
torch.set_num_threads(1)
settings.register_profile("suite", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def assets():
    """The folder of real weights and images; tests that need it skip, saying so, where it is not there."""
    folder = os.environ.get("FOVEATE_ASSETS")
    if not folder:
        pytest.skip("FOVEATE_ASSETS is not set: real weights and images are not here")
    return Path(folder)
