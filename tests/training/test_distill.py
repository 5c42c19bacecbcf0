"""Distillation: retained tokens meet the teacher's tokens at their own places."""

import dataclasses

import pytest
import timm
import torch

import foveate as fv
from foveate.data.preprocessing import Preprocessing
from foveate.training.distill import Distill, mean_over, normalized, positions
from small_runs import SMALL


def vit(width=32, reduce=None, **options):
    torch.manual_seed(width)
    options = SMALL | {"embed_dim": width, "num_classes": 0} | options
    model = timm.create_model("vit_tiny_patch16_224", **options).eval()
    return model if reduce is None else fv.reduce_(model, *reduce)


EVIT = (fv.EViT(), fv.KeepRate(0.5, blocks=(1, 2)))


def photos():
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(2))


def test_losses_by_loops_over_images_and_kept_tokens():
    student, teacher = vit(reduce=EVIT), vit(48)
    objective = Distill(student, teacher, patch_weight=0.5)
    found = objective(photos(), None)
    ours = student.forward_features(photos())
    theirs = teacher.forward_features(photos())
    owner = fv.trace(student, photos()).owner(2)
    held = [torch.bincount(image[image >= 0], minlength=ours.shape[1] - 1) for image in owner]
    class_parts, patch_parts = [], []
    for image in range(3):
        target = normalized(theirs[image])
        class_parts.append((objective.class_projection(ours[image, 0]) - target[0]).square().mean())
        parts = []
        for patch, slot in enumerate(owner[image].tolist()):
            if slot >= 0 and held[image][slot] == 1:
                parts.append((objective.patch_projection(ours[image, 1 + slot]) - target[1 + patch]).square().mean())
        assert 0 < len(parts) < 16
        patch_parts.append(torch.stack(parts).mean())
    torch.testing.assert_close(found["loss"], torch.stack(class_parts).mean())
    torch.testing.assert_close(found["patches"], 0.5 * torch.stack(patch_parts).mean())


def test_a_fused_token_is_compared_with_none():
    student = vit(reduce=(fv.EViT(), fv.KeepRate(0.5, blocks=(1,))))
    encoded = fv.inspect(student).encode(photos(), record=True)
    trace = fv.trace(student, photos())
    position, single = positions(trace)
    assert position.shape == single.shape == (3, encoded.stream.tokens.shape[1] - 1)
    assert single.sum(dim=1).tolist() == [single.shape[1] - 1] * 3  # all but the fused one
    assert all(len(set(p[s].tolist())) == s.sum() for p, s in zip(position, single, strict=True))


def test_a_slot_nothing_leads_to_is_no_single_patch():
    trace = fv.trace(vit(), photos())
    slots, present = torch.tensor([[0, 1]] * 3), torch.tensor([[True, False]] * 3)
    gone = fv.Assignment(slots, slots, None, 16, 2, present=present)
    lighter = dataclasses.replace(trace, steps=(gone, None, None))
    assert positions(lighter)[1].tolist() == [[True, False]] * 3  # padding is no edge


@pytest.mark.parametrize("other", ["deit_tiny_patch16_224", "vit_tiny_patch16_224"])
def test_the_teacher_sees_its_own_colors(other):
    torch.manual_seed(48)
    teacher = timm.create_model(other, **(SMALL | {"embed_dim": 48, "num_classes": 0})).eval()
    pixels = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
    ours, theirs = Preprocessing.of(vit()), Preprocessing.of(teacher)
    found, _ = Distill(vit(), teacher)._targets(ours.normalize(pixels))
    expected = normalized(teacher.forward_features(theirs.normalize(pixels))[:, 0])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_students_classifier_waits_for_no_gradient():
    objective = Distill(vit(num_classes=5), vit(48))
    assert not any(p.requires_grad for p in objective.model.head.parameters())


def test_without_reduction_every_token_is_at_its_own_place():
    position, single = positions(fv.trace(vit(), photos()))
    assert torch.equal(position, torch.arange(16).expand(3, 16))
    assert single.all()


def test_the_class_token_alone_needs_no_patches():
    objective = Distill(vit(reduce=EVIT), vit(48), tokens="class")
    assert list(objective(photos(), None)) == ["loss"]
    assert objective.patch_projection is None


def test_the_teacher_is_frozen_and_no_part_of_the_state():
    teacher = vit(48)
    objective = Distill(vit(reduce=EVIT), teacher)
    assert not any("teacher" in name for name in objective.state_dict())
    assert not set(teacher.parameters()) & set(objective.parameters())
    objective.train()
    assert not teacher.training
    sum(objective(photos(), None).values()).backward()
    assert all(p.grad is None for p in teacher.parameters())
    without = [name for name, p in objective.named_parameters() if p.grad is None]
    assert without == []


def test_a_perfect_student_has_no_loss():
    teacher = vit()
    student = vit()
    objective = Distill(student, teacher)
    with torch.no_grad():
        for projection in (objective.class_projection, objective.patch_projection):
            projection.weight.copy_(torch.eye(32))
            projection.bias.zero_()
        student.norm.weight.fill_(1)  # the final norm is what the target is normalized by
        student.norm.bias.zero_()
    losses = objective(photos(), None)
    assert sum(losses.values()).item() == pytest.approx(0, abs=1e-4)


def test_an_image_weighs_the_same_in_any_batch():
    values, chosen = torch.tensor([[1.0, 3.0], [10.0, 0.0]]), torch.tensor([[True, True], [True, False]])
    assert mean_over(values, chosen).item() == (2 + 10) / 2
    assert mean_over(values, torch.zeros_like(chosen)).item() == 0
    objective = Distill(vit(reduce=EVIT), vit(48))
    alone = torch.stack([sum(objective(photos()[i : i + 1], None).values()) for i in range(3)]).mean()
    torch.testing.assert_close(sum(objective(photos(), None).values()), alone)


def test_pairs_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="the teacher has none"):
        Distill(vit(), vit(48, class_token=False, global_pool="avg"))
    with pytest.raises(ValueError, match="The teacher cannot take the student's images"):
        Distill(vit(), vit(48, img_size=64))
    with pytest.raises(ValueError, match=r"\(4, 4\) patches, but the teacher \(8, 8\)"):
        Distill(vit(), vit(48, patch_size=4))
    Distill(vit(), vit(48, patch_size=4), tokens="class")
    with pytest.raises(ValueError, match="teacher is reduced"):
        Distill(vit(), vit(48, reduce=EVIT))
    Distill(vit(), vit(48, reduce=EVIT), tokens="class")
    last = fv.reduce_(vit(global_pool="token"), *EVIT, exact_last_block=True)
    with pytest.raises(ValueError, match="no patch token is left"):
        Distill(last, vit(48))
