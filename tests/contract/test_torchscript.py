"""``torch.jit.trace`` records every method; the recorded graph gives the model's outputs for batches of that shape."""

import warnings

import pytest
import torch

import foveate as fv
from zoo import defaults, fits, images, reduced, variants

FAMILY = "timm-cls"
METHODS = [method for method in [*defaults(), *variants()] if fits(method, FAMILY)]


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_traced_model_gives_the_same_outputs(method: fv.Method) -> None:
    model, x = reduced(FAMILY, method).eval(), images()
    other = torch.randn(x.shape, generator=torch.Generator().manual_seed(6))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sizes become constants, which is what a trace is
        traced = torch.jit.trace(model, x, check_trace=False)
        for batch in (x, other):
            torch.testing.assert_close(traced(batch), model(batch))
