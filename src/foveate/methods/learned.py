"""Methods with modules of their own: learned weights, or values fitted on images."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from foveate.methods.base import BlockView, Method, StepShape, middle_blocks


@dataclass(frozen=True)
class LearnedMethod(Method):
    """A method that has a module in each block where it acts."""

    @abstractmethod
    def build(self, step: StepShape, block: int) -> nn.Module | None:
        """Build the module of one block, which ``assign`` and ``combine`` get as ``view.module``; None for no module.

        Called once for every block that reduces. Its parameters are in the model's state dict under ``foveate.``.
        Parameters that the module lists in an attribute ``no_weight_decay`` are exempt from weight decay.
        """

    def resize(self, old: nn.Module, new: nn.Module) -> None:
        """Copy what ``old`` has learned to ``new``, which was built for images of another size."""
        try:
            new.load_state_dict(old.state_dict())
        except RuntimeError as error:
            raise ValueError(
                f"The weights of {self.name} belong to one image size and cannot be used at another. "
                "Build the model for that size, reduce it, and train it there."
            ) from error

    def soft_blocks(self, depth: int) -> tuple[int, ...]:
        """Blocks in which the method acts without removing tokens. Read only if it fixes its own counts."""
        return ()

    def spread(self, strength: float, depth: int, n: int) -> tuple[int, ...]:
        """An equal ratio at three evenly spaced blocks, as in the papers: each of them has a module to train."""
        return self.equal_ratio(middle_blocks(depth, 3), strength, depth, n)


@dataclass(frozen=True)
class MaskTrainedMethod(LearnedMethod):
    """A method whose training keeps all tokens and masks attention by ``decide`` instead of removing tokens."""

    @abstractmethod
    def decide(self, view: BlockView, kept: Tensor | None) -> Tensor:
        """Decide in training which patch tokens stay: (B, N), ones and zeros with gradients.

        Args:
            view: what the method sees.
            kept: decision of the previous stage; None at the first.
        """
