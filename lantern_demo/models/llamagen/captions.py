"""Captions as LlamaGen's text-to-image models read them: the published cleaning, and the features
of a T5 encoder.

The cleaning is that of LlamaGen's language/t5.py, which has it from DeepFloyd IF; the order of the
steps matters.
"""

from __future__ import annotations

import html
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import unquote_plus

import torch
from tokenizers import Encoding, Tokenizer
from transformers import T5Config, T5EncoderModel

from lantern_demo.models.files.blank import blank_text, fill
from lantern_demo.models.files.hub import Located
from lantern_demo.models.files.tensors import (
    CheckpointError,
    read_config,
    read_tokenizer_file,
    weights_of,
)
from lantern_demo.models.lean import packed
from lantern_demo.models.llamagen.target import LlamaGenConfig
from lantern_demo.models.llamagen.weights import LAYOUTS
from lantern_demo.models.machine.device import DTYPES, half
from lantern_demo.models.machine.matmul import OF_FORMAT, sixteen_bits
from lantern_demo.models.machine.memory import free_memory
from lantern_demo.models.text import END, PAD, Encoded, left_pad, unknown_words

LEAST_FREE = 2**30  # bytes of memory: with less, an idle T5 is released
LENGTH = 120  # positions of a caption, the end mark included

_SITES = "com|co|ru|net|org|edu|gov|it"
_FILES = "png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4"
_DASHES = "\\-\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0\ufe31\ufe32\ufe58\ufe63\uff0d"
_BAD_MARKS = (
    "#\u00ae\u2022\u00a9\u2122&@\u00b7\u00ba\u00bd\u00be\u00bf\u00a1\u00a7~()\\[\\]{}|\\\\/*"
)


def _address(scheme: str) -> str:
    """Return the pattern of an address's start, or of a host name with its path that is not the
    first half of an e-mail address.
    """
    host = rf"[a-zA-Z0-9.\-]+\.(?:{_SITES})[\w/\-]*\b/?(?!@)"
    return rf"\b(?:{scheme}:(?:/{{1,3}}|[a-zA-Z0-9%])|{host})"


# Each step is a pattern and its replacement.
_BEFORE_MARKUP = [(_address("https?"), ""), (_address("wwws?"), "")]
_AFTER_MARKUP = [
    (r"@\w+\b", ""),  # nicknames
    ("[\u31c0-\u31ff]+", ""),
    ("[\u3200-\u4dff]+", ""),
    ("[\u4e00-\u9fff]+", ""),  # CJK
    (f"[{_DASHES}]+", "-"),
    ("[`\u00b4\u00ab\u00bb\u201c\u201d\u00a8]", '"'),
    ("[\u2018\u2019]", "'"),
    (r"&quot;?", ""),
    ("&amp", ""),
    (r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", " "),  # IP addresses
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),  # article numbers, and line ends spelt out
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.(?:{_FILES})", ""),
    ("[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (f"[{_BAD_MARKS}]+", " "),
    (r"\s+\.\s+", " "),
]
_AFTER_REPAIR = [
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
    (r"\b\d+[a-zA-Z]+\d+\b", ""),  # jc6640, jc6640vc, 6640vc231
    (r"(worldwide\s+)?(free\s+)?shipping", ""),
    (r"(free\s)?download(\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b(?:{_FILES})(?:\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),  # j2d1a2a
    ("\\b\\d+\\.?\\d*[x\u0445\u00d7]\\d+\\.?\\d*\\b", ""),  # sizes
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
]
_ENDS = [
    (r"^[\"']([\w\W]+)[\"']$", r"\1"),
    (r"^['_,\-:;]", ""),
    (r"['_,\-:+]$", ""),
    (r"^\.\S+$", ""),
]


def _rewrite(text: str, steps: list[tuple[str, str]]) -> str:
    for pattern, replacement in steps:
        text = re.sub(pattern, replacement, text)
    return text


def clean_once(text: str) -> str:
    """Apply the published cleaning once."""
    # imported here, since only captions of published models need these packages
    import ftfy
    from bs4 import BeautifulSoup, MarkupResemblesLocatorWarning

    text = unquote_plus(text).strip().lower().replace("<person>", "person")
    text = _rewrite(text, _BEFORE_MARKUP)
    with warnings.catch_warnings():
        # captions that look like a file name
        warnings.simplefilter("ignore", MarkupResemblesLocatorWarning)
        text = BeautifulSoup(text, features="html.parser").text
    text = _rewrite(text, _AFTER_MARKUP)
    if len(re.findall("[-_]", text)) > 3:  # words strung together: this-is-my-caption
        text = re.sub("[-_]", " ", text)
    text = html.unescape(html.unescape(ftfy.fix_text(text))).strip()
    return _rewrite(_rewrite(text, _AFTER_REPAIR).strip(), _ENDS).strip()


def clean(text: str) -> str:
    """Return a caption as in the training of the published models: cleaned twice (LlamaGen,
    language/t5.py).
    """
    return clean_once(clean_once(text))


def read_tokenizer(path: Path) -> Tokenizer:
    """Return a published tokenizer.json, set to pad and cut captions to 120 positions.

    Raise CheckpointError when it is not a T5's.

    The file is used unchanged: transformers 5 rebuilds a T5 tokenizer from its vocabulary, without
    the file's own normalisation.
    """
    tokenizer = read_tokenizer_file(path)
    pad = tokenizer.token_to_id(PAD)
    if pad is None or tokenizer.encode("").tokens != [END]:
        raise CheckpointError(
            f"{path} is not a T5's tokenizer: it must know {PAD} and end a text with {END}"
        )
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH, pad_id=pad, pad_token=PAD)
    return tokenizer


class CaptionEncoder:
    """Turns a prompt into T5 features of 120 positions, left-padded, the padding zero (LlamaGen,
    autoregressive/sample/sample_t2i.py).

    `make` builds the T5 for the first prompt. The T5 is kept for the next prompt, and released if
    less than LEAST_FREE bytes of memory are free after a prompt.
    """

    def __init__(self, tokenizer: Tokenizer, make: Callable[[], T5EncoderModel]) -> None:
        self.tokenizer, self.make = tokenizer, make
        self.made: T5EncoderModel | None = None

    @classmethod
    def of(cls, target: LlamaGenConfig, located: Located, device: torch.device) -> CaptionEncoder:
        """Return the encoder of a target's captions, in 16 bits, from published files; on a CPU it
        has packed matmuls, and the files stay mapped. Raise CheckpointError as in `load_text`.
        """
        if device.type != "cpu":
            return load_text(located, target.caption_dim, device, DTYPES[half(device)])
        mapped = load_text(located, target.caption_dim, device, None)
        return cls(
            mapped.tokenizer,
            partial(packed, mapped.encoder, OF_FORMAT.get(sixteen_bits(), "plain")),
        )

    @property
    def encoder(self) -> T5EncoderModel:
        """The T5, built again if it was released."""
        if self.made is None:
            self.made = self.make()
        return self.made

    def check(self, prompt: str) -> None:
        """Raise ValueError when the published cleaning leaves nothing of a prompt."""
        if not clean(prompt):
            raise ValueError(
                f"prompt {prompt[:60]!r} is empty once it is cleaned as the model's captions were, which takes out addresses, "
                "file names, Chinese characters and the like; describe the picture in English words"
            )

    def encode(self, prompt: str) -> Encoded:
        """Return features [1, 120, C] float32 (values in the encoder's dtype) and mask [1, 120]
        bool, on the encoder's device.

        Words past the 120 positions are cut off, as published, and reported as unknown.
        """
        text, encoder = clean(prompt), self.encoder
        device = encoder.device
        encoding = self.tokenizer.encode(text)
        ids = torch.tensor([encoding.ids], device=device)
        mask = torch.tensor([encoding.attention_mask], device=device)
        features = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        if (free := free_memory(device)) is not None and free < LEAST_FREE:
            self.made = None
        features, valid = left_pad(features, mask.bool())
        return Encoded(features.float(), valid, self._unread(text, encoding))

    def _unread(self, text: str, encoding: Encoding) -> list[str]:
        """Return the words that the vocabulary lacks, and those that were cut off."""
        cut = text[max(b for _, b in encoding.offsets) :].split() if encoding.overflowing else []
        return unknown_words(self.tokenizer, text, encoding) + cut


def load_text(
    located: Located, width: int, device: torch.device, dtype: torch.dtype | None
) -> CaptionEncoder:
    """Return a T5's encoder and tokenizer, from the published files; dtype None: in theirs, mapped
    into memory on a CPU.

    Raises CheckpointError when they are not a T5's of that width.
    """
    path = located.beside("config.json")
    try:
        config = T5Config.from_dict(read_config(path))
    except (TypeError, KeyError) as error:
        raise CheckpointError(
            f"{path} is not a T5's configuration ({error}); download it again"
        ) from error
    if config.d_model != width:
        raise CheckpointError(
            f"{path} says d_model {config.d_model}, but this model reads features of width {width}"
        )
    network = blank_text(config)
    encoder = fill(
        network, dict(weights_of(network, located.weights, LAYOUTS["t5"])), device, dtype
    )
    return CaptionEncoder(read_tokenizer(located.beside("tokenizer.json")), lambda: encoder)
