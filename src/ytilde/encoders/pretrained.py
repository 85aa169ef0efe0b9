"""Models of Hugging Face `transformers` that turn pictures or texts into vectors.

Weights are read from safetensors files alone, and no code that comes with a model is run.
`transformers` is imported when a model is loaded; it is the extra `embed`.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ..data import BadInput
from ..errors import shorten_list
from ..hashing import hash_of

LONGEST = 20  # characters of a text for each token that a model takes: more are not looked at
TOKENS = 512  # of a text, where a model says nothing of it


class Pretrained:
    """A loaded model: `pictures(images)` and `texts(texts)` give vectors [B, D].

    Args:
        name: a folder that holds a model, or its name on the Hugging Face hub.
        device: where it runs.

    Which vector: what CLIP-like models compare pictures and texts by; else the class token of a
    picture, or what the model pools; of a text what the model's own pooling config says, or the
    mean over its tokens.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.name, self.device = name, device
        transformers = _transformers()
        local = _check_folder(name)
        self._from: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local}
        try:
            config = transformers.AutoConfig.from_pretrained(name, **self._from)
            if getattr(config, "is_encoder_decoder", False):
                raise BadInput(f"{name} writes texts ({config.model_type}); give an encoder.")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model, told = transformers.AutoModel.from_pretrained(
                    name, use_safetensors=True, output_loading_info=True, **self._from
                )
        except BadInput:
            raise
        except Exception as error:  # the hub, safetensors and transformers raise many kinds
            raise BadInput(f"{_cannot_load(name, local)} ({_first_line(error)}).") from error
        lost = sorted(key for key in told["missing_keys"] if "pooler" not in key)
        if lost:
            raise BadInput(
                f"{name} has no weights for {len(lost)} of its parts ({shorten_list(lost, 3)}); "
                "give a model that was trained."
            )
        self.model = model.eval().requires_grad_(False).to(device)
        self.kind = str(config.model_type)
        self.digest = hash_of([config.to_json_string(), dict(model.state_dict())])
        self._processor: Any = None
        self._tokenizer: Any = None
        self.filled = 0  # texts that fill all tokens: what is beyond them was not looked at

    # ---- pictures --------------------------------------------------------------------------------

    def check_pictures(self) -> None:
        """Refuse a model that takes no pictures."""
        joint = hasattr(self.model, "get_image_features")
        if self.model.main_input_name != "pixel_values" and not joint:
            raise BadInput(
                f"{self.name} ({self.kind}) takes no pictures; give a model of pictures such as "
                "facebook/dinov2-small, or name a column of texts with --text."
            )
        try:
            self._processor = _transformers().AutoImageProcessor.from_pretrained(
                self.name, backend="pil", **self._from
            )
        except Exception as error:
            raise BadInput(
                f"{self.name} does not say how pictures are prepared for it: its "
                f"preprocessor_config.json is missing or cannot be read ({_first_line(error)})."
            ) from error

    def prepare(self, picture: Image.Image) -> Tensor:
        """A picture as the model takes it, [C, H, W]; may run in a thread."""
        made = self._processor(images=picture.convert("RGB"), return_tensors="pt")
        return made["pixel_values"][0]

    @torch.inference_mode()
    def pictures(self, prepared: Sequence[Tensor]) -> Tensor:
        """Vectors [B, D] of prepared pictures."""
        pixels = torch.stack(list(prepared)).to(self.device)
        if hasattr(self.model, "get_image_features"):
            return _vectors(self.model.get_image_features(pixel_values=pixels))
        out = self.model(pixel_values=pixels)
        with_token = any(name.endswith("cls_token") for name, _ in self.model.named_parameters())
        if with_token and out.last_hidden_state.dim() == 3:
            return out.last_hidden_state[:, 0].float().cpu()
        return _vectors(out)

    # ---- texts -----------------------------------------------------------------------------------

    def check_texts(self) -> None:
        """Refuse a model that takes no texts."""
        if self.model.main_input_name != "input_ids":
            raise BadInput(
                f"{self.name} ({self.kind}) takes no texts; give a model of texts such as "
                "sentence-transformers/all-MiniLM-L6-v2."
            )
        try:
            tokenizer = _transformers().AutoTokenizer.from_pretrained(self.name, **self._from)
        except Exception as error:
            raise BadInput(
                f"{self.name} has no tokenizer that can be read ({_first_line(error)})."
            ) from error
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        self._tokenizer = tokenizer
        config = getattr(self.model.config, "text_config", self.model.config)
        positions = int(getattr(config, "max_position_embeddings", None) or TOKENS)
        said = self._json("sentence_bert_config.json").get("max_seq_length") or positions
        most = int(tokenizer.model_max_length)
        self.tokens = int(min(said, most if most < 10**6 else max(2, positions - 2)))
        self._pooling = self._json("1_Pooling/config.json")

    @torch.inference_mode()
    def texts(self, texts: Sequence[str]) -> Tensor:
        """Vectors [B, D] of texts, whose beginnings alone count if they are long."""
        cut = [text[: LONGEST * self.tokens] for text in texts]
        joint = hasattr(self.model, "get_text_features")
        padding = "max_length" if joint else True  # SigLIP was trained with padded texts
        given = self._tokenizer(
            cut, truncation=True, max_length=self.tokens, padding=padding, return_tensors="pt"
        ).to(self.device)
        mask = given.get("attention_mask", torch.ones_like(given["input_ids"]))
        self.filled += int((mask.sum(1) >= self.tokens).sum()) if not joint else 0
        if joint:
            return _vectors(self.model.get_text_features(**given))
        hidden = self.model(**given).last_hidden_state.float()
        if self._pooling.get("pooling_mode_cls_token"):
            return hidden[:, 0].cpu()
        weight = mask.unsqueeze(-1).to(hidden)
        return ((hidden * weight).sum(1) / weight.sum(1).clamp_min(1)).cpu()

    def _json(self, file: str) -> dict[str, Any]:
        """A small file of the model; {} where it has none."""
        with suppress(Exception):  # the hub's library raises many kinds on what is not there
            path = _transformers().utils.cached_file(
                self.name, file, local_files_only=self._from["local_files_only"],
                _raise_exceptions_for_missing_entries=False,
            )  # fmt: skip
            found = json.loads(Path(path).read_text("utf-8")) if path else {}
            return found if isinstance(found, dict) else {}
        return {}


def _vectors(out: Any) -> Tensor:
    """What a model pools: a tensor, or a part of its answer; else the mean over its tokens."""
    if isinstance(out, Tensor):
        return out.float().flatten(1).cpu()
    pooled = getattr(out, "pooler_output", None)
    if pooled is None:
        hidden = out.last_hidden_state
        pooled = hidden.mean(1) if hidden.dim() == 3 else hidden.mean((2, 3))
    return pooled.float().flatten(1).cpu()


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise BadInput("embed needs transformers: pip install 'ytilde[embed]'.") from error
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return transformers


def _check_folder(name: str) -> bool:
    """Is the model a folder? One without a config, or without safetensors weights, is refused."""
    folder = Path(name)
    if not folder.exists():
        if folder.is_absolute() or name.startswith((".", "~")):
            raise BadInput(f"There is no folder {name!r} with a model.")
        return False
    if not folder.is_dir():
        raise BadInput(f"{name} is a file; give a folder, as save_pretrained makes it.")
    if not (folder / "config.json").is_file():
        raise BadInput(f"{name} holds no model: it has no config.json.")
    if not any(folder.glob("*.safetensors")):
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        why = "; pickled ones are not read, save it with safetensors" if pickled else ""
        raise BadInput(f"{name} has no weights (model.safetensors){why}.")
    return True


def _cannot_load(name: str, local: bool) -> str:
    hint = "" if local else "; without a network give the folder of a model"
    return f"The model {name} cannot be loaded{hint}"


def _first_line(error: Exception) -> str:
    text = str(error).strip() or repr(error)
    return text.splitlines()[0][:300].rstrip(".")
