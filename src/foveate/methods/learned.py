"""Methods with modules of their own: learned weights, or values fitted on images."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from foveate.methods.base import BlockView, Method, StepShape


@dataclass(frozen=True)
class LearnedMethod(Method):
    """A method that has a module in each block where it acts."""

    @abstractmethod
    def build(self, step: StepShape, block: int) -> nn.Module | None:
        """The module of one block, passed to ``assign`` and ``combine`` as ``view.module``; None for no module.

        Called once for every block that reduces. Its parameters are in the model's state dict under ``foveate.``.
        Parameters that the module lists in an attribute ``no_weight_decay`` are exempt from weight decay, as the
        model's own are.
        """

    def resize(self, old: nn.Module, new: nn.Module) -> None:
        """Copy what ``old`` has learned to ``new``, which was built for images of another size."""
        try:
            new.load_state_dict(old.state_dict())
        except RuntimeError as error:
            raise ValueError(
                f"What {self.name} has learned belongs to one image size and cannot be used at another. "
                "Build the model for that size, reduce it, and train it there."
            ) from error

    def soft_blocks(self, depth: int) -> tuple[int, ...]:
        """Blocks in which it acts although no token goes. Read only if it fixes its own counts."""
        return ()

    def free_slice(self) -> Method | None:
        """The upper limit of its speed, if a blind cut (``FreeSlice``) would leave out a part of its work."""
        return None


@dataclass(frozen=True)
class MaskTrainedMethod(LearnedMethod):
    """A method whose training keeps all tokens and masks attention by ``decide`` instead of removing tokens."""

    @abstractmethod
    def decide(self, view: BlockView, kept: Tensor | None) -> Tensor:
        """In training: which patch tokens stay, (B, N) of ones and zeros with gradients.

        ``kept``: the decision of the stage before, None at the first.
        """
