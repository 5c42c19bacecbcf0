"""Learning rates by epochs and by iterations, and runs whose length is a number of steps."""

import pytest
import torch

from foveate.training.config import ScheduleSection, TrainConfig, override
from foveate.training.learning_rate import build_lr_scheduler, last_step, run_epochs

STEPS_PER_EPOCH = 5


def rates(section, steps, lr=1.0):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule = build_lr_scheduler(section, optimizer, STEPS_PER_EPOCH)
    found = []
    for step in range(steps):
        schedule.step_update(step)
        found.append(optimizer.param_groups[0]["lr"])
    return found


def test_poly_falls_by_its_power_after_a_linear_warmup():
    section = ScheduleSection("poly", steps=20, warmup_epochs=0, warmup_steps=4, warmup_lr=0.0, min_lr=0.0, power=0.9)
    expected = [step / 4 if step < 4 else (1 - step / 20) ** 0.9 for step in range(20)]
    assert rates(section, 20) == pytest.approx(expected)


def test_steps_fall_at_milestones_of_epochs_or_of_iterations():
    common = {"warmup_epochs": 0, "gamma": 0.1}
    by_epochs = ScheduleSection("step", epochs=4, milestones=(2, 3), **common)
    by_steps = ScheduleSection("step", steps=20, milestones=(10, 15), **common)
    expected = [1.0] * 10 + [0.1] * 5 + [0.01] * 5
    assert rates(by_epochs, 20) == pytest.approx(expected)
    assert rates(by_steps, 20) == pytest.approx(expected)


def test_a_run_may_be_a_number_of_steps():
    config = TrainConfig(schedule=ScheduleSection(steps=12, warmup_epochs=0))
    assert (run_epochs(config.schedule, 5), last_step(config, 5)) == (3, 12)
    assert last_step(override(config, ["run.steps=7"]), 5) == 7
    assert last_step(TrainConfig(schedule=ScheduleSection(epochs=3, cycles=2)), 5) == 30


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"kind": "step"}, "needs them"),
        ({"milestones": (2,)}, "only step"),
        ({"kind": "step", "milestones": (2, 4), "epochs": 4}, "beyond the end of the run of 4 epochs"),
        ({"warmup_epochs": 1, "warmup_steps": 3}, "both set"),
        ({"steps": 10, "warmup_steps": 10}, "below the 10 steps"),
        ({"epochs": 2, "warmup_epochs": 2.0}, "below the 2 epochs"),
    ],
)
def test_schedules_that_contradict_themselves_are_refused(section, words):
    with pytest.raises(ValueError, match=words):
        rates(ScheduleSection(**{"warmup_epochs": 0, **section}), 1)


def test_milestones_rise():
    config = TrainConfig(schedule=ScheduleSection("step", milestones=(3.0, 2.0)))
    with pytest.raises(ValueError, match=r"schedule\.milestones must be rising"):
        config.check()
