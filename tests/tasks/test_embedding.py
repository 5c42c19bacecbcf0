"""Embeddings: models without a classifier are compared by cosine, neighbors and zero-shot decisions."""

import json

import pytest
import torch
import transformers
from timm.models.vision_transformer import VisionTransformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import foveate as fv
from foveate.adapters import inspect
from foveate.tasks import Embedding, EmbeddingMetrics, find_task, task_of
from foveate.tasks.embedding import recall
from foveate_cli.main import main

TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2}
WORDS = ["a", "photo", "of", "cat", "dog", "car"]


def clip():
    torch.manual_seed(0)
    text = TOWER | {"vocab_size": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    vision = TOWER | {"image_size": 24, "patch_size": 4}
    config = transformers.CLIPConfig(vision_config=vision, text_config=text, projection_dim=16)
    return transformers.CLIPModel(config).eval()


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    """A model with its tokenizer, as on the hub."""
    folder = tmp_path_factory.mktemp("clip")
    clip().save_pretrained(folder)
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {word: 4 + i for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", model_max_length=77)
    whole.save_pretrained(folder)
    return folder


def images(count=24):
    return torch.randn(count, 3, 24, 24, generator=torch.Generator().manual_seed(2))


def test_recall_is_that_of_plain_loops():
    own, reference = torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(0))
    shares = []
    for image in range(9):
        others = [other for other in range(9) if other != image]
        ours = sorted(others, key=lambda other: -float(own[image] @ own[other]))[:3]
        theirs = sorted(others, key=lambda other: -float(reference[image] @ reference[other]))[:3]
        shares.append(len(set(ours) & set(theirs)) / 3)
    assert recall(own, reference, 3) == pytest.approx(sum(shares) / 9)
    assert recall(own, own, 100) == 1


def test_metrics_add_up_and_are_stored():
    own, reference = torch.randn(2, 12, 6, generator=torch.Generator().manual_seed(1))
    whole, first, second = (EmbeddingMetrics(3, torch.eye(6)[:2]) for _ in range(3))
    whole.update(own, None, reference)
    first.update(own[:5], None, reference[:5])
    second.update(own[5:], None, reference[5:])
    first.merge(EmbeddingMetrics.from_state(json.loads(json.dumps(second.state()))))
    assert first.compute() == pytest.approx(whole.compute())
    expected = torch.nn.functional.cosine_similarity(own, reference).mean()
    assert whole.compute()["cosine"] == pytest.approx(float(expected), abs=1e-5)
    nearest = (own[:, :2].argmax(dim=1) == reference[:, :2].argmax(dim=1)).float().mean()
    assert whole.compute()["agreement"] == pytest.approx(100 * float(nearest))
    state = whole.state() | {"own": []}
    with pytest.raises(ValueError, match="damaged"):
        EmbeddingMetrics.from_state(state)


def test_a_model_without_classes_gives_an_embedding():
    model = VisionTransformer(img_size=24, patch_size=4, embed_dim=32, depth=3, num_heads=2, num_classes=0).eval()
    assert task_of(model) == "embedding"
    found = fv.compare(model, images(), methods=["ToMe"], budgets=[0.7], batch_size=8, seconds=0.01)
    unreduced, *_, reduced = found.entries
    assert unreduced.metrics["cosine"] == pytest.approx(1)
    assert unreduced.agreement == unreduced.metrics["recall"] == 100
    assert 0.5 < reduced.metrics["cosine"] < 1
    assert reduced.metrics["recall"] < 100


def test_zero_shot_decisions_are_compared_with_prompts(clip_folder):
    model = transformers.CLIPModel.from_pretrained(clip_folder).eval()
    prompts = ["a photo of cat", "a photo of dog", "car"]
    task = find_task("embedding").for_model(model, prompts=prompts)
    with torch.no_grad():
        expected = model.get_text_features(torch.tensor([[1, 4, 5, 6, 7, 2], [1, 4, 5, 6, 8, 2]])).pooler_output
    torch.testing.assert_close(task.texts[:2], torch.nn.functional.normalize(expected, dim=1))
    given = {"methods": ["ToMe"], "budgets": [0.6], "batch_size": 8, "seconds": 0.01}
    found = fv.compare(model, images(), **given, task_options={"prompts": prompts})
    assert found.entries[0].agreement == 100
    with torch.no_grad():
        plain = model.get_image_features(images()).pooler_output
        reduced = found.entries[-1].apply_(model).get_image_features(images()).pooler_output
    same = ((plain @ task.texts.T).argmax(dim=1) == (reduced @ task.texts.T).argmax(dim=1)).float().mean()
    assert found.entries[-1].agreement == pytest.approx(100 * float(same))


def test_the_command_compares_models_of_images_and_texts(clip_folder, tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a photo of cat\n\na photo of dog\n")
    command = ["compare", f"hf:{clip_folder}", "--data", "scenes:", "--limit", "8", "--prompts", str(prompts)]
    command += ["--methods", "ToMe", "--budgets", "0.7", "--seconds", "0.01", "--out", str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert {"cosine", "recall", "agreement"} <= entries[-1].keys()
    prompts.write_text("one\n")
    assert main([*command, "--overwrite"]) == 2
    assert "need at least two" in capsys.readouterr().err


def test_what_has_no_vector_or_no_texts_is_refused():
    tokens = VisionTransformer(
        img_size=24, patch_size=4, embed_dim=32, depth=2, num_heads=2, num_classes=0, global_pool="", class_token=False
    )
    with pytest.raises(ValueError, match="gives no vector for an image"):
        Embedding().predict(tokens, images(2))
    with pytest.raises(ValueError, match="embeds no texts"):
        inspect(tokens).text_embedding(["one"])
    with pytest.raises(ValueError, match=r"Prompts need the tokenizer of CLIPModel"):
        find_task("embedding").for_model(clip(), prompts=["one", "two"])
    with pytest.raises(ValueError, match="at least two prompts"):
        find_task("embedding").for_model(clip(), prompts=["one"])
