"""Embeddings: made by pretrained models, read from files and columns; people see the rows."""

import json
import shutil
import sys

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from test_cli import FAST, refused, ytilde
from ytilde import Classifier
from ytilde.auditing.review import Review
from ytilde.data import BadInput
from ytilde.data.readers import read
from ytilde.encoders import embed as embedding
from ytilde.encoders.pretrained import Pretrained

transformers = pytest.importorskip("transformers", reason="the extra `embed` is not installed")
CPU = torch.device("cpu")
SIDE = 28


def dinov2(folder):
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2}
    config = transformers.Dinov2Config(image_size=SIDE, patch_size=14, **size)
    transformers.Dinov2Model(config).save_pretrained(folder)
    from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

    crop = {"height": SIDE, "width": SIDE}
    BitImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=crop).save_pretrained(folder)
    return folder


def clip(folder):
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    size |= {"num_attention_heads": 2}
    seen = {**size, "image_size": SIDE, "patch_size": 14}
    config = transformers.CLIPConfig(
        vision_config=seen, text_config=size | {"vocab_size": 40}, projection_dim=8
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    crop = {"height": SIDE, "width": SIDE}
    CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=crop).save_pretrained(folder)
    return folder


def bert(folder):
    torch.manual_seed(0)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", "good", "bad", "film"]
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(
        vocab_size=len(words), intermediate_size=16, max_position_embeddings=12, **size
    )
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words))
    vocabulary = {word: number for number, word in enumerate(words)}
    transformers.BertTokenizer(vocab=vocabulary, model_max_length=12).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name, make in (("dinov2", dinov2), ("clip", clip), ("bert", bert)):
        (root / name).mkdir()
        make(root / name)
    return root


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """60 pictures, red or blue, of several sizes; in every class one has another's label."""
    root = tmp_path_factory.mktemp("data") / "pictures"
    rng = np.random.default_rng(0)
    for row in range(60):
        colour = np.array([200, 30, 30] if row % 2 else [30, 30, 200])
        given = ("red" if row % 2 else "blue") if row > 1 else ("blue" if row % 2 else "red")
        (root / given).mkdir(parents=True, exist_ok=True)
        side = (SIDE + row % 3 * 10, SIDE + 5)
        noisy = np.clip(colour + rng.normal(0, 25, (*side, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(root / given / f"{row:02}.png")
    return root


@pytest.fixture(scope="module")
def embedded(pictures, models, tmp_path_factory):
    out = tmp_path_factory.mktemp("emb") / "emb.parquet"
    words = ["--model", models / "dinov2", "--batch-size", 7, "--out", out]
    said = ytilde("embed", pictures, *words).stdout
    assert "60 pictures, dinov2 on cpu" in said and "16 numbers a row" in said
    return out


def test_the_vectors_are_the_class_token_of_the_prepared_picture(pictures, models, embedded):
    frame = pd.read_parquet(embedded)
    assert frame.path.tolist() == sorted(p.relative_to(pictures).as_posix()
                                         for p in pictures.rglob("*.png"))  # fmt: skip
    model = transformers.Dinov2Model.from_pretrained(models / "dinov2").eval()
    about = json.loads((models / "dinov2" / "preprocessor_config.json").read_text())
    for row in (0, 17, 59):
        picture = Image.open(pictures / frame.path[row]).convert("RGB")
        scale = SIDE / min(picture.size)
        size = [int(side * scale) for side in picture.size]
        picture = picture.resize(size, Image.Resampling.BICUBIC)
        left, top = (size[0] - SIDE) // 2, (size[1] - SIDE) // 2
        picture = picture.crop((left, top, left + SIDE, top + SIDE))
        x = (np.asarray(picture) / 255 - about["image_mean"]) / about["image_std"]
        with torch.no_grad():
            pixels = torch.from_numpy(x).permute(2, 0, 1)[None].float()
            wanted = model(pixel_values=pixels).last_hidden_state[0, 0]
        assert np.allclose(frame.embedding[row], wanted.numpy(), atol=1e-4)


def test_an_audit_by_embeddings_shows_pictures(pictures, embedded, tmp_path):
    run = tmp_path / "run"
    ytilde("audit", pictures, "--features", embedded, "--out", run, "--folds", 3, *FAST,
           "--lr", 0.1, "--epochs", 20)  # fmt: skip
    issues = pd.read_csv(run / "issues.csv")
    worst = issues.head(2)
    assert {path.rpartition("/")[2] for path in worst.path} == {"00.png", "01.png"}
    report = (run / "report.html").read_text()
    assert "data:image/png;base64" in report and "feature 0" not in report
    from ytilde.cli.trained import load_config, training_data

    found = training_data(run, load_config(run))
    review = Review(run, found.data, paths=found.paths, pictures=found.pictures)
    assert review.overview()["picture"]
    content, kind = review.picture(int(worst["index"][0]))
    assert kind == "png" and content[:4] == b"\x89PNG"
    item = review.next("tab")["item"]
    assert item["path"].endswith(".png") and item["values"] == []
    done = ytilde("audit", run, "--folds", 3)  # a second audit reads the same embeddings
    assert "Nothing was trained again" in done.stdout


def test_a_run_predicts_new_pictures_by_their_embeddings(pictures, models, embedded, tmp_path):
    run, new, out = tmp_path / "run", tmp_path / "new", tmp_path / "p.csv"
    ytilde("fit", pictures, "--features", embedded, "--out", run, *FAST, "--epochs", 20,
           "--lr", 0.1)  # fmt: skip
    new.mkdir()
    Image.new("RGB", (40, 40), (190, 40, 30)).save(new / "a.png")
    Image.new("RGB", (40, 40), (40, 30, 190)).save(new / "c.png")
    (new / "b.png").write_bytes(b"no picture")
    said = ytilde("embed", new, "--model", models / "dinov2", "--out", tmp_path / "n.parquet")
    assert "no embedding for 1 row (unreadable picture)" in said.stdout
    ytilde("predict", run, new, "--features", tmp_path / "n.parquet", "--out", out)
    told = pd.read_csv(out)
    assert told.predicted_label.fillna("").tolist() == ["red", "", "blue"]
    refused("predict", run, new, "--out", out, match="embeddings with --features")


def test_rows_are_found_by_their_paths_in_any_order(pictures, embedded, tmp_path):
    frame = pd.read_parquet(embedded)
    plain = read(pictures, features=embedded)
    frame.sample(frac=1, random_state=0).to_parquet(tmp_path / "shuffled.parquet")
    assert torch.equal(read(pictures, features=tmp_path / "shuffled.parquet").data.x, plain.data.x)
    np.save(tmp_path / "emb.npy", np.stack(frame.embedding))
    assert torch.equal(read(pictures, features=tmp_path / "emb.npy").data.x, plain.data.x)
    np.savez(tmp_path / "emb.npz", features=np.stack(frame.embedding)[::-1],
             path=frame.path.to_numpy(str)[::-1])  # fmt: skip
    assert torch.equal(read(pictures, features=tmp_path / "emb.npz").data.x, plain.data.x)
    wide = pd.DataFrame(np.stack(frame.embedding)).add_prefix("e").assign(path=frame.path)
    wide.to_csv(tmp_path / "wide.csv", index=False)
    assert torch.allclose(read(pictures, features=tmp_path / "wide.csv").data.x, plain.data.x)
    np.save(tmp_path / "few.npy", np.zeros((59, 4)))
    with pytest.raises(BadInput, match=r"holds 59 embeddings for 60 rows"):
        read(pictures, features=tmp_path / "few.npy")
    frame.iloc[1:].to_parquet(tmp_path / "some.parquet")
    assert frame.path[0] == "blue/01.png"
    with pytest.raises(BadInput, match=r"no embedding of 1 of 60 rows, such as 'blue/01.png'"):
        read(pictures, features=tmp_path / "some.parquet")


def made_table(rows=80, seed=0):
    """Two clouds of vectors; the first two rows have each other's label."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 2
    x = rng.normal(0, 1, (rows, 5)) + 4 * y[:, None]
    label = np.where(np.arange(rows) < 2, 1 - y, y)
    texts = [f"the {row}th thing, of which a person reads these words" for row in range(rows)]
    return pd.DataFrame({
        "id": [f"r{row}" for row in range(rows)], "text": texts, "vector": list(x),
        "label": np.array(["no", "yes"])[label],
    })  # fmt: skip


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_column_of_vectors_is_what_the_model_sees(kind, tmp_path):
    frame, path = made_table(), tmp_path / f"data.{kind}"
    if kind == "parquet":
        frame.to_parquet(path)
    else:  # as pandas writes lists
        frame.assign(vector=[str(v.tolist()) for v in frame.vector]).to_csv(path, index=False)
    found = read(path)
    assert found.data.shape == (5,) and found.schema.features == "vector"
    assert torch.allclose(found.data.x, torch.from_numpy(np.stack(frame.vector)).float())
    assert found.ids == frame.id.tolist()
    run = tmp_path / "run"
    ytilde("audit", path, "--out", run, "--folds", 3, *FAST, "--epochs", 10, "--lr", 0.1)
    assert set(pd.read_csv(run / "issues.csv").head(2).id) == {"r0", "r1"}
    assert "of which a person reads" in (run / "report.html").read_text()
    out = tmp_path / "p.csv"
    ytilde("predict", run, path, "--out", out)
    assert (pd.read_csv(out).predicted_label[2:] == frame.label[2:]).all()


def test_embeddings_of_a_table_leave_its_columns_to_be_read(models, tmp_path):
    texts = [f"good film {'ab'[row % 2] * 3}" if row % 2 else f"bad {'cd'[row % 3 % 2]} film"
             for row in range(40)]  # fmt: skip
    texts[5] = " "
    frame = pd.DataFrame({"review": texts, "label": np.where(np.arange(40) % 2, "pos", "neg")})
    frame.to_csv(tmp_path / "texts.csv", index=False)
    out = tmp_path / "emb.parquet"
    said = ytilde("embed", tmp_path / "texts.csv", "--text", "review", "--model",
                  models / "bert", "--out", out).stdout  # fmt: skip
    assert "no embedding for 1 row (empty text)" in said
    found = read(tmp_path / "texts.csv", features=out)
    assert found.missing == (5,) and found.data.y[5] == -1 and found.data.shape == (16,)
    assert found.texts([3]).review[3] == texts[3]
    run = tmp_path / "run"
    ytilde("audit", tmp_path / "texts.csv", "--features", out, "--out", run, "--folds", 2, *FAST)
    assert len(pd.read_csv(run / "issues.csv")) == 39


def test_texts_are_the_mean_of_their_tokens_whatever_stands_beside_them(models):
    model = Pretrained(str(models / "bert"), CPU)
    model.check_texts()
    texts = ["good film", "bad", "a b c d e f g h i j a b c d e f g"]
    together = model.texts(texts)
    for text, vector in zip(texts, together, strict=True):
        assert torch.allclose(model.texts([text])[0], vector, atol=1e-5)
    assert model.filled == 2  # the long one, in both calls
    plain = transformers.BertModel.from_pretrained(models / "bert").eval()
    ids = torch.tensor([[2, 15, 17, 3]])  # [CLS] good film [SEP]
    with torch.no_grad():
        wanted = plain(input_ids=ids).last_hidden_state[0].mean(0)
    assert torch.allclose(together[0], wanted, atol=1e-5)
    assert torch.isfinite(model.texts(["x" * 10**6])).all()


def test_long_texts_fit_a_model_whose_tokenizer_does_not_say_how_long(models, tmp_path):
    """Two positions fewer than the model has: RoBERTa counts its positions from 2 on."""
    shutil.copytree(models / "bert", tmp_path / "silent")
    said = tmp_path / "silent" / "tokenizer_config.json"
    told = json.loads(said.read_text())
    said.write_text(json.dumps({k: v for k, v in told.items() if k != "model_max_length"}))
    model = Pretrained(str(tmp_path / "silent"), CPU)
    model.check_texts()
    assert model.tokens == 10
    assert torch.isfinite(model.texts(["a b c d e f g h i j a b c d e f g"])).all()
    (tmp_path / "silent" / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    model.check_texts()
    assert model.tokens == 6
    cut, whole = model.texts(["a b c d"]), model.texts(["a b c d e f g"])
    assert torch.allclose(cut, whole, atol=1e-5)  # [CLS], four words and [SEP]


def test_a_text_is_its_class_token_where_the_model_says_so(models, tmp_path):
    shutil.copytree(models / "bert", tmp_path / "cls")
    (tmp_path / "cls" / "1_Pooling").mkdir()
    pooling = tmp_path / "cls" / "1_Pooling" / "config.json"
    pooling.write_text('{"pooling_mode_cls_token": true}')
    model = Pretrained(str(tmp_path / "cls"), CPU)
    model.check_texts()
    plain = transformers.BertModel.from_pretrained(models / "bert").eval()
    with torch.no_grad():
        wanted = plain(input_ids=torch.tensor([[2, 15, 17, 3]])).last_hidden_state[0, 0]
    assert torch.allclose(model.texts(["good film"])[0], wanted, atol=1e-5)


def test_a_picture_is_what_a_model_without_a_class_token_pools(models, tmp_path):
    torch.manual_seed(0)
    size = {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2}
    swin = transformers.SwinModel(transformers.SwinConfig(image_size=SIDE, patch_size=7, **size))
    swin.eval().save_pretrained(tmp_path / "swin")
    shutil.copy(models / "dinov2" / "preprocessor_config.json", tmp_path / "swin")
    model = Pretrained(str(tmp_path / "swin"), CPU)
    model.check_pictures()
    rng = np.random.default_rng(0)
    noisy = Image.fromarray(rng.integers(0, 256, (40, 30, 3)).astype(np.uint8))
    pixels = model.prepare(noisy)
    with torch.no_grad():
        tokens = swin(pixel_values=pixels[None]).last_hidden_state[0]
    assert tokens.shape == (4, 16)
    assert torch.allclose(model.pictures([pixels])[0], tokens.mean(0), atol=1e-5)


def test_clip_gives_what_it_compares_by(models, tmp_path):
    model = Pretrained(str(models / "clip"), CPU)
    model.check_pictures()
    made = model.pictures([model.prepare(Image.new("RGB", (50, 40), (9, 200, 7)))])
    assert made.shape == (1, 8)


def test_a_stopped_embed_goes_on(pictures, models, embedded, tmp_path, monkeypatch):
    out, own, parts = tmp_path / "emb.parquet", embedding.embed_part, []
    words = "embed", pictures, "--model", models / "dinov2", "--out", out

    def stops(read, numbers, *others):
        if len(parts) == 2:
            raise KeyboardInterrupt
        parts.append(numbers)
        return own(read, numbers, *others)

    monkeypatch.setitem(embedding.embed.__kwdefaults__, "part", 10)
    monkeypatch.setattr(embedding, "embed_part", stops)
    done = ytilde(*words, check=False)
    assert done.returncode == 130 and "run the same command to continue" in done.stdout
    work = tmp_path / ".emb.parquet.work"
    assert not out.exists() and work.exists()
    monkeypatch.setattr(embedding, "embed_part", own)
    first = min(work.rglob("*-10.safetensors"))
    first.write_bytes(first.read_bytes()[:-1])  # a part that was cut short is made again
    assert "10 rows had been embedded before" in ytilde(*words).stdout
    assert not work.exists()
    ours, whole = (np.stack(pd.read_parquet(p).embedding) for p in (out, embedded))
    assert np.allclose(ours, whole, atol=1e-5)


def test_what_cannot_be_embedded_is_one_sentence(pictures, models, embedded, tmp_path):
    out = tmp_path / "e.parquet"
    empty = tmp_path / "empty"
    empty.mkdir()
    words = "--out", out
    refused("embed", pictures, "--model", empty, *words, match="it has no config.json")
    (empty / "config.json").write_text((models / "dinov2" / "config.json").read_text())
    refused("embed", pictures, "--model", empty, *words, match="has no weights (model.safe")
    (empty / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    refused("embed", pictures, "--model", empty, *words, match="pickled ones are not read")
    (empty / "model.safetensors").write_bytes(b"nonsense")
    refused("embed", pictures, "--model", empty, *words, match="cannot be loaded")
    refused("embed", pictures, "--model", tmp_path / "none", *words, match="There is no folder")
    refused("embed", pictures, "--model", models / "bert", *words, match="takes no pictures")
    refused("embed", pictures, "--model", models / "dinov2", "--out", tmp_path / "e.csv",
            match="writes parquet files")  # fmt: skip
    csv = tmp_path / "t.csv"
    pd.DataFrame({"t": ["a", "b"], "label": [0, 1]}).to_csv(csv, index=False)
    refused("embed", csv, "--model", models / "dinov2", "--text", "t", *words,
            match="takes no texts")  # fmt: skip
    refused("embed", csv, "--model", models / "bert", "--text", "u", *words,
            match="no column 'u'")  # fmt: skip
    refused("embed", csv, "--model", models / "bert", *words, match="--text")
    assert not out.exists() and not list(tmp_path.glob(".*"))
    assert pq.read_schema(embedded).metadata[b"ytilde"] == b"made by ytilde embed"
    ytilde("embed", csv, "--model", models / "bert", "--text", "t", *words)
    ytilde("embed", csv, "--model", models / "bert", "--text", "t", *words)  # its own is replaced
    pd.DataFrame({"a": [1]}).to_parquet(out)
    refused("embed", csv, "--model", models / "bert", "--text", "t", *words,
            match="no earlier output")  # fmt: skip


def test_a_model_whose_weights_are_incomplete_is_refused(models, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "half"
    folder.mkdir()
    for name in ("config.json", "preprocessor_config.json"):
        (folder / name).write_text((models / "dinov2" / name).read_text())
    weights = load_file(models / "dinov2" / "model.safetensors")
    half = {name: w for name, w in weights.items() if "layer.1" not in name}
    save_file(half, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadInput, match="has no weights for"):
        Pretrained(str(folder), CPU)


def test_without_transformers_there_is_one_sentence(pictures, models, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused("embed", pictures, "--model", models / "dinov2", "--out", tmp_path / "e.parquet",
            match="pip install 'ytilde[embed]'")  # fmt: skip


@pytest.mark.parametrize(
    ("vectors", "match"),
    [
        ([[1.0, 2.0], [1.0]] * 20, "differ in length"),
        ([["a"], ["b"]] * 20, "no vector of numbers"),
        ([[1.0, float("nan")], [1.0, 2.0]] * 20, "missing or infinite"),
        ([[1.0, 1e300], [1.0, 2.0]] * 20, "missing or infinite"),
        ([[], []] * 20, "are empty"),
    ],
)
def test_bad_vectors_are_one_sentence(vectors, match):
    frame = pd.DataFrame({"v": vectors, "label": [0, 1] * 20})
    with pytest.raises(BadInput, match=match):
        read(frame)


def test_two_columns_of_vectors_need_a_name():
    frame = made_table().assign(other=lambda f: [v[:3] for v in f.vector])
    with pytest.raises(BadInput, match="name one of them with --features"):
        read(frame)
    assert read(frame, features="other").data.shape == (3,)
    numbers = made_table().assign(weight=np.linspace(0, 1, 80))
    with pytest.raises(BadInput, match=r"holds vectors, beside columns of numbers .weight."):
        read(numbers)
    assert read(numbers, features="vector").data.shape == (5,)
    assert read(numbers, drop=["vector", "text", "id"]).data.shape == (1,)
    with pytest.raises(BadInput, match="no file 'none' with embeddings, and no column"):
        read(frame, features="none")


def test_the_classifier_takes_a_table_with_vectors():
    frame = made_table()
    x, y = frame[["vector"]], frame.label
    clf = Classifier("ce", "mlp:width=16,depth=1", epochs=20, random_state=0).fit(x, y)
    assert (clf.predict(x)[2:] == y[2:]).all()
