"""``fv.Predictor``: one callable for a plain loop, other processes, and libraries that map batches."""

import io
import pickle

import datasets
import numpy as np
import pytest
import timm
import torch
from noise_pictures import picture
from PIL import Image

import foveate as fv
from foveate.data.preprocessing import Preprocessing
from foveate.scale.predictor import NOT_FINITE


def expected(model, numbers):
    transform = Preprocessing.of(model).evaluation()
    images = [transform(Image.open(io.BytesIO(picture(number)))) for number in numbers]
    with torch.no_grad():
        return model.eval()(torch.stack(images))


@pytest.mark.parametrize("kind", ["bytes", "path", "pil", "array", "mapping"])
def test_every_form_of_an_image_gives_the_classes_of_a_plain_forward(toy, tmp_path, kind):
    contents = [picture(number) for number in range(3)]
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    pictures = [Image.open(io.BytesIO(content)) for content in contents]
    forms = {
        "bytes": contents,
        "path": [str(path) for path in paths],
        "pil": pictures,
        "array": np.stack([np.asarray(picture) for picture in pictures]),
        "mapping": [
            {"bytes": contents[0], "path": None},
            {"bytes": None, "path": str(paths[1])},
            {"bytes": contents[2]},
        ],
    }
    found = fv.Predictor(toy, top_k=2)({"image": forms[kind], "key": ["a", "b", "c"]})
    best = expected(fv.load(toy), range(3)).softmax(dim=1).topk(2, dim=1)
    assert found.keys() == {"key", "classes", "probabilities", "error"}
    assert found["key"] == ["a", "b", "c"]
    assert found["classes"].tolist() == best.indices.tolist()
    assert np.allclose(found["probabilities"], best.values, atol=1e-6)
    assert list(found["error"]) == ["", "", ""]


def test_embeddings_are_what_the_classifier_reads(toy):
    found = fv.Predictor(toy, output="embedding", dtype="float16")({"image": [picture(1), picture(2)]})
    model = fv.load(toy)
    model.reset_classifier(0)
    assert found["embedding"].dtype == np.float16
    assert np.allclose(found["embedding"], expected(model, (1, 2)), atol=1e-2)
    own = fv.Predictor(model, output="embedding")({"image": [picture(1)]})
    assert np.allclose(own["embedding"], expected(model, (1,)), atol=1e-6)


def test_a_reduction_is_applied_and_a_callers_model_stays_as_it_is(toy):
    model = fv.load(toy).eval()
    predictor = fv.Predictor(model, reduction="tome --remove 4", top_k=5)
    found = predictor({"image": [picture(3)]})
    assert not fv.is_reduced(model)
    with fv.reduced(model, fv.ToMe(), fv.RemovePerBlock(4)):
        logits = expected(model, (3,))
    assert np.allclose(found["probabilities"], logits.softmax(dim=1).sort(descending=True).values, atol=1e-6)
    by_name = fv.Predictor(toy, reduction=fv.Reduction("tome", fv.RemovePerBlock(4)))({"image": [picture(3)]})
    assert np.array_equal(by_name["probabilities"], found["probabilities"])


def test_broken_images_are_rows_with_a_reason(toy):
    wrong = np.zeros((3, 3, 3), dtype=np.float32)
    found = fv.Predictor(toy, classes=list("abcde"))({"image": [b"no", picture(1), None, "nowhere.png", 7, wrong]})
    assert found["classes"][0].tolist() == [-1] * 5
    assert found["names"][0].tolist() == [""] * 5
    assert set(found["names"][1]) == set("abcde")
    assert np.isnan(found["probabilities"][[0, 2, 3, 4, 5]]).all()
    assert np.isfinite(found["probabilities"][1]).all()
    reasons = list(found["error"])
    assert reasons[1] == ""
    assert "does not recognize" in reasons[0]
    assert "there is no image" in reasons[2]
    assert "nowhere.png" in reasons[3]
    assert "a int is not an image" in reasons[4]
    assert all(reasons[place] for place in (0, 2, 3, 4, 5))


def test_an_image_gets_the_same_row_in_any_batch(toy):
    predictor = fv.Predictor(toy, output="embedding", batch_size=2)
    together = predictor({"image": [picture(n) if n != 2 else b"" for n in range(5)]})["embedding"]
    alone = np.concatenate([predictor({"image": [picture(n)]})["embedding"] for n in (0, 1, 3, 4)])
    assert np.allclose(together[[0, 1, 3, 4]], alone, atol=1e-5)


def test_outputs_that_are_not_finite_are_errors_of_their_images(toy):
    model = fv.load(toy).eval()
    model.head.bias.data[0] = float("nan")
    found = fv.Predictor(model)({"image": [picture(1)]})
    assert list(found["error"]) == [NOT_FINITE]
    assert found["classes"][0].tolist() == [-1] * 5


def test_it_is_pickled_without_a_model_and_builds_it_where_it_runs(toy):
    predictor = fv.Predictor(toy)
    first = predictor({"image": [picture(1)]})
    content = pickle.dumps(predictor)
    assert len(content) < 2000
    again = pickle.loads(content)({"image": [picture(1)]})
    assert np.array_equal(again["probabilities"], first["probabilities"])


def test_hugging_face_datasets_map_it(toy):
    table = datasets.Dataset.from_dict({"image": [picture(1), b"no"], "id": [1, 2]})
    found = table.map(fv.Predictor(toy, top_k=1), batched=True, remove_columns=["image"])
    assert found.column_names == ["id", "classes", "probabilities", "error"]
    assert found["classes"][0] == expected(fv.load(toy), (1,)).argmax(dim=1).tolist()
    assert found["classes"][1] == [-1]


def test_an_exported_model_gives_the_same_classes(toy, tmp_path):
    folder = fv.export(fv.load(toy), tmp_path / "onnx", "onnx")
    found = fv.Predictor(folder)({"image": [picture(1), b"no"]})
    plain = fv.Predictor(toy)({"image": [picture(1)]})
    assert np.allclose(found["probabilities"][0], plain["probabilities"][0], atol=1e-4)
    assert found["error"][1]
    with pytest.raises(ValueError, match="exported with its classifier"):
        fv.Predictor(folder, output="embedding").runnable  # noqa: B018
    with pytest.raises(ValueError, match="takes no reduction"):
        fv.Predictor(folder, reduction="tome --remove 1").runnable  # noqa: B018


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"output": "boxes"}, "output must be one of classes, embedding"),
        ({"dtype": "int8"}, "dtype must be float16 or float32"),
        ({"top_k": 0}, "top_k must be an integer of at least 1"),
        ({"reduction": "nobody --remove 1"}, "nobody"),
    ],
)
def test_wrong_settings_are_named_at_once(toy, options, words):
    with pytest.raises(ValueError, match=words):
        fv.Predictor(toy, **options)


def test_models_that_cannot_answer_are_refused(toy):
    with pytest.raises(ValueError, match="parameters that nobody trained"):
        fv.Predictor("vit_tiny_patch16_224", image_size=(3, 32, 32)).runnable  # noqa: B018
    headless = fv.load(toy)
    headless.reset_classifier(0)
    with pytest.raises(ValueError, match="has no classifier, so it predicts no classes"):
        fv.Predictor(headless).runnable  # noqa: B018
    with pytest.raises(ValueError, match="has 5 classes, and 2 names were given"):
        fv.Predictor(toy, classes=["a", "b"]).runnable  # noqa: B018
    with pytest.raises(ValueError, match=r"must have the column 'image', got columns picture. Set column=NAME"):
        fv.Predictor(toy)({"picture": []})


def test_a_model_that_cannot_be_pickled_is_named(toy):
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1)
    model.callback = lambda: None
    with pytest.raises(ValueError, match=r"cannot be pickled: .*Save it with fv.save"):
        fv.Predictor(model).check_picklable()
    fv.Predictor(toy).check_picklable()
