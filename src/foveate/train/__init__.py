"""Training, distillation and evaluation: one loop, and recipes that say what it does."""
