#!/usr/bin/env python3
"""Writes the tokenizer tests' expected values (tests/tokenizer/data/*.json).

The reference is the `tokenizers` library; needs the PyPI packages tokenizers, gguf and xxhash.

  smollm.json         500 texts through the vocabulary of a SmolLM2 GGUF file, and digests of what every
                      id and 20,000 pairs of ids read back as. The vocabulary itself is not written.
  byte_level.json     a tiny byte-level BPE tokenizer.json and variants of its other parts
  sentencepiece.json  the same for character-level BPE with byte fallback

    make_reference.py MODEL.gguf [OUTPUT_FOLDER]
"""
import argparse
import json
import pathlib
import random
import struct
import unicodedata

import gguf
import tokenizers
import xxhash
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

GPT2_LIKE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}%s| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "Attention is computed over 131072 tokens in 64 blocks of 2,048 each.",
    "We're sure they'll say I'd have been right; it's what she'd've said.",
    "def step(self, x):\n    return [y ** 2 for y in x if y != 0]  # squares\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += values[i];\n}\r\n",
    "{\"name\": \"longspan\", \"sizes\": [1, 22, 333, 4444], \"ok\": true}",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Voix ambiguë d'un cœur qui au zéphyr préfère les jattes de kiwis.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "いろはにほへと ちりぬるを 我が世誰ぞ 常ならむ。",
    "天地玄黃,宇宙洪荒。日月盈昃,辰宿列張。",
    "다람쥐 헌 쳇바퀴에 타고파",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "👩‍👩‍👧‍👦 and 🇩🇪🇫🇷, 🏳️‍🌈 or 👍🏽!",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β), ½ + ¼ = ¾, x² ≠ x³",
    "https://example.org/a/b?c=d&e=%20f#g-h_i+j~k",
    "2026-11-30T14:48:49Z  1.5e-07  0xDEADBEEF  +49 (0)30 123-456",
]

HAND_MADE = [
    "", " ", "  ", "   a", "a  1", "a   b", "\n\n1.", "\n", "\r\n", "\t\t x", " \n \n ", "a \n", "x\n\n\n y",
    "1", "12", "123", "1234567890", "3.14159", "1,000,000", " 1", "  1", "1 ", "a1b2c3", "½", "x²", "Ⅷ", "٣٤٥", "१२३", "①②",
    "don't", "DON'T", "'s", "'S", "''s", "I'll've", "it’s", "'\u017f", "'ſ x", "'re're", "'LL 'Re 'vE",
    "<|im_start|>", "<|im_start|>user\nhi<|im_end|>\n", "a<|endoftext|>b", "<|im_start|", "<|im_start|><|im_start|>",
    "<filename>", "x <gh_stars> y", "<reponame><repo_name>", " <|im_end|> ",
    "\u0000", "a\u0000b", "\u0004", "a\u0004b", "\u0006\u0013\u0014\u0016\u001d", "\u007f", "\u0080\u0085\u00a0",
    "\u00ad", "\u200b", "\u200d", "\u2028", "\u2029", "\ufeff", "\ufeffa", "\ufffd", "\uffff", "\U0010ffff", "\U000f0000",
    "\u180e x", "a\u180eb", "\u3000x", "x\u3000", "\u2003\u2003y", "\u1680", "\u205f\u202fz",
    "e\u0301", "\u00e9", "a\u0308\u0323", "a\u0323\u0308", "\u1e9b\u0323", "\u212b", "\uac00", "\u1100\u1161\u11a8", "ﬁ ﬂ ﬀ",
    "\u0301\u0301\u0301", " \u0301", "\u0300a", "İstanbul", "ẞß", "ΑΣ ας", "Ω Ω K K",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "                                        x", "!!!!!!!!!!!!!!!!", "????....",
    "........................................................................", "\u200d\u200d\u200d\u200d", "\n\n\n\n\n\n\n\n",
    "abc\r\n\r\ndef", "abc \r\n", "  \r\n  x", " !", " !?\n\nx", "$100", "#include <x>", "a_b", "__init__", "x==y", "=> ->",
    # Younger than PCRE2's and utf8proc's tables.
    "a\u1c89\U00010d40b", "x\U000116d0\U0002ebf0\U00031350 y", "\u32ff\ua7f2\U00010781\U0001e030", "\U0001ccf0\U00011de01",
    "▁", "a▁b", "▁▁", " ▁ ", "Ġ", "Ċ", "ĠĠthe", "Ã©", "<0x41>", "<0x0A>", "<unk>", "<s>", "</s>", "<s></s>", "a<s>b", " <s> ",
    "[R]   x", "x   <tag>   y", "<tag>", "a word", "words", "word", "sword", "word.", "_word", "ABC", "abc", "Abc", "xABCx",
    "<|end|>", "<|end|>>", "<|end|>>>", "<|end|><|end|>", "1<|end|>2", "zzqq", " zzqq", "the the the", "hello hello",
    "a,b,,c", ",", ",,", " , ", "a b c", " a  b ", "a\tb", "-5", "--", "x-", "-x", "x--y", "the,quick", "1a,2b", "a1 ,b2",
]


# Single pieces of more than 1,024 symbols, which are merged through another queue than short ones.
LONG_PIECES = ["=" * 1100, " " * 1100 + "x", "the" * 400, "\n" * 1100,
               "".join(c for c in "".join(SENTENCES) * 2 if c.isalpha())]


def random_texts(count, seed):
    """Mixes of scripts, digits, white space, code and single odd characters; Unicode 14 at most."""
    rng = random.Random(seed)
    assigned = [chr(c) for c in range(0x110000)
                if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    spaces = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\u00a0", "\u3000", "\u2009", "\u0085"]
    texts = []
    while len(texts) < count:
        parts = []
        for _ in range(rng.randint(1, 7)):
            kind = rng.randrange(8)
            sentence = rng.choice(SENTENCES)
            if kind <= 2:
                begin = rng.randrange(len(sentence))
                parts.append(sentence[begin:begin + rng.randint(1, 24)])
            elif kind == 3:
                parts.append(rng.choice(spaces) * rng.randint(1, 3))
            elif kind == 4:
                parts.append(str(rng.randrange(10 ** rng.randint(1, 9))))
            elif kind == 5:
                parts.append("".join(rng.choice(assigned) for _ in range(rng.randint(1, 5))))
            elif kind == 6:
                parts.append(rng.choice(HAND_MADE)[:20])
            else:
                parts.append("".join(chr(rng.randrange(0x20, 0x7F)) for _ in range(rng.randint(1, 8))))
        texts.append("".join(parts))
    return texts


class Lcg:
    """The same numbers in Python and C++."""

    def __init__(self, seed):
        self.state = seed

    def next(self, limit):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2 ** 64
        return (self.state >> 33) % limit


def digest(texts):
    """Of a list of texts: XXH64 over length (uint32, little endian) and UTF-8 bytes of each."""
    hasher = xxhash.xxh64(seed=0)
    for text in texts:
        data = text.encode("utf-8")
        hasher.update(struct.pack("<I", len(data)))
        hasher.update(data)
    return hasher.hexdigest()


def encode(tokenizer, text, parse_special):
    tokenizer.encode_special_tokens = not parse_special
    return tokenizer.encode(text, add_special_tokens=False).ids


def make_case(tokenizer, text, decode):
    """Ids of the text as plain text; and, where different, with special tokens parsed."""
    plain = encode(tokenizer, text, False)
    special = encode(tokenizer, text, True)
    case = {"text": text, "ids": plain, "decoded": decode(plain, False)}
    if case["decoded"] == text:
        del case["decoded"]
    if special != plain:
        case.update(special_ids=special, special_decoded=decode(special, False),
                    special_skipped=decode(special, True))
    return case


# --- SmolLM2 ---------------------------------------------------------------------------------------------


def read_gguf(path):
    reader = gguf.GGUFReader(path)

    def values(key):
        field = reader.fields[key]
        return [field.parts[i] for i in field.data]

    tokens = [bytes(part).decode("utf-8") for part in values("tokenizer.ggml.tokens")]
    merges = [tuple(bytes(part).decode("utf-8").split(" ")) for part in values("tokenizer.ggml.merges")]
    types = [int(part[0]) for part in values("tokenizer.ggml.token_type")]
    return tokens, types, merges


def smollm_reference(path):
    tokens, types, merges = read_gguf(path)
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True)
                                  for text, kind in zip(tokens, types) if kind == 3])

    def decode(ids, skip):
        return tokenizer.decode(ids, skip_special_tokens=skip)

    texts = SENTENCES + HAND_MADE + LONG_PIECES
    texts += random_texts(500 - len(texts), seed=3)
    singles = [decode([i], False) for i in range(len(tokens))]
    lcg = Lcg(2026)
    pairs = [(lcg.next(len(tokens)), lcg.next(len(tokens))) for _ in range(20000)]
    pair_texts = [decode(pair, False) for pair in pairs]
    return {
        "vocab_size": len(tokens),
        "special": [i for i, kind in enumerate(types) if kind == 3],
        "cases": [make_case(tokenizer, text, decode) for text in texts],
        "single_block": 1024,
        "single_digests": [digest(singles[i:i + 1024]) for i in range(0, len(singles), 1024)],
        "pair_seed": 2026,
        "pair_block": 100,
        "pair_digests": [digest(pair_texts[i:i + 100]) for i in range(0, len(pair_texts), 100)],
    }


# --- tiny tokenizers -------------------------------------------------------------------------------------


def added(content, index, **flags):
    entry = {"id": index, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": False}
    return entry | flags


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def make_variant(base, name, texts, decode_of, **overrides):
    """A tokenizer.json that differs from the base in some parts, and what it does to the texts."""
    document = json.loads(json.dumps(base))
    model = overrides.pop("model", {})
    document["model"].update(model)
    document.update(overrides)
    tokenizer = Tokenizer.from_str(json.dumps(document))
    if model:
        overrides["model"] = model
    decode = decode_of(tokenizer, document)
    variant = {"name": name, "overrides": overrides,
               "cases": [make_case(tokenizer, text, decode) for text in texts]}
    tokenizer.encode_special_tokens = False
    variant["with_template"] = tokenizer.encode("the 1 <s>", add_special_tokens=True).ids
    return variant


def byte_level_reference(vocab_size=512):
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator(SENTENCES * 3, trainers.BpeTrainer(
        vocab_size=vocab_size - 12, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(trained.to_str())["model"]
    # Some bytes have no token, as in the real vocabularies; and one token that no merge makes.
    for text in ("Ą", "Ć", "À", "õ"):
        del model["vocab"][text]
    ids = {text: i for i, text in enumerate(sorted(model["vocab"], key=model["vocab"].get))}
    ids["zzqq"] = len(ids)
    model["vocab"] = ids
    n = len(ids)
    specials = [added("<|end|>", n, special=True), added("<|end|>>", n + 1, special=True),
                added("<s>", n + 2, special=True), added("<tag>", n + 3, lstrip=True),
                added("[R]", n + 4, rstrip=True), added("word", n + 5, single_word=True),
                added("ABC", n + 6, normalized=True)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bare = byte_level | {"use_regex": False}
    digits = {"type": "Digits", "individual_digits": True}
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": specials,
            "normalizer": None, "pre_tokenizer": byte_level, "post_processor": byte_level,
            "decoder": byte_level, "model": model}
    template = {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                           {"SpecialToken": {"id": "<|end|>", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [n + 2], "tokens": ["<s>"]},
                                   "<|end|>": {"id": "<|end|>", "ids": [n], "tokens": ["<|end|>"]}}}

    def decode_of(tokenizer, _):
        return lambda token_ids, skip: tokenizer.decode(token_ids, skip_special_tokens=skip)

    long = SENTENCES + HAND_MADE + random_texts(60, seed=11)
    short = HAND_MADE + random_texts(20, seed=12)

    def variant(name, texts, **overrides):
        return make_variant(base, name, texts, decode_of, **overrides)

    def pre(*steps):
        return {"pre_tokenizer": sequence("pretokenizers", *steps)}

    variants = [
        variant("smollm", long + LONG_PIECES, **pre(digits, byte_level)),
        variant("gpt-2", long),
        variant("llama-bpe", long, **pre(split({"Regex": GPT2_LIKE % "{1,3}"}, "Isolated"), bare),
                model={"ignore_merges": True},
                post_processor=sequence("processors", byte_level, template)),
        variant("qwen2", long, **pre(split({"Regex": GPT2_LIKE % ""}, "Isolated"), bare), normalizer={"type": "NFC"}),
        variant("nfkc lowercase", short, normalizer=sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"})),
        variant("nfd", short, normalizer={"type": "NFD"}),
        variant("nfkd replace", short, normalizer=sequence(
            "normalizers", {"type": "NFKD"}, {"type": "Replace", "pattern": {"Regex": "[ \\t]+"}, "content": " "})),
        variant("prefix space", short, pre_tokenizer=byte_level | {"add_prefix_space": True}),
        variant("merged with previous", short, **pre(split({"Regex": "\\s"}, "MergedWithPrevious"), bare)),
        variant("merged with next", short, **pre(split({"Regex": "[\\s,]"}, "MergedWithNext"), bare)),
        variant("removed", short, **pre(split({"String": ","}, "Removed"), byte_level)),
        variant("contiguous", short, **pre(split({"Regex": "[\\s\\p{P}]"}, "Contiguous"), bare)),
        variant("inverted", short, **pre(split({"Regex": "\\p{L}+|\\p{Han}+"}, "Removed", True), bare)),
        variant("empty matches", short, **pre(split({"Regex": "(?=[A-Z])|(?<=\\d)(?=(?:\\d{3})+$)"}, "Isolated"), bare)),
        variant("digit runs", short, **pre({"type": "Digits", "individual_digits": False}, byte_level)),
    ]
    tokenizer = Tokenizer.from_str(json.dumps(base))
    total = n + len(specials)
    decode = decode_of(tokenizer, base)
    return {"tokenizer": base, "variants": variants, "vocab_size": total,
            "pair_digests": [digest([decode([a, b], False) for b in range(total)]) for a in range(total)]}


def sentencepiece_reference(vocab_size=700):
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")])
    first = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % byte for byte in range(256)]
    trained.train_from_iterator(SENTENCES * 3, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=first, limit_alphabet=150, max_token_length=12, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    model.update(byte_fallback=True, fuse_unk=True)
    normalizer = sequence("normalizers", {"type": "Prepend", "prepend": "▁"},
                          {"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
    decoder = sequence("decoders", {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                       {"type": "ByteFallback"}, {"type": "Fuse"},
                       {"type": "Strip", "content": " ", "start": 1, "stop": 0})
    n = len(model["vocab"])
    base = {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added("<unk>", 0, special=True), added("<s>", 1, special=True),
                             added("</s>", 2, special=True), added("<tag>", n, lstrip=True, rstrip=True),
                             added("ABC", n + 1, normalized=True)],
            "normalizer": normalizer, "pre_tokenizer": None,
            "post_processor": {"type": "TemplateProcessing",
                               "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                               "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                               "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
            "decoder": decoder, "model": model}

    def metaspace(scheme, cut):
        return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}

    def decode_of(tokenizer, document):
        """tokenizers' decoder, but a run of byte tokens that is not UTF-8 gives one U+FFFD per maximal
        subpart (what a stream can do, and what Python's "replace" does) instead of one per byte."""
        def written(entry):  # a token that is found in normalized text reads back normalized
            is_changed = entry["normalized"] and tokenizer.normalizer
            return tokenizer.normalizer.normalize_str(entry["content"]) if is_changed else entry["content"]

        texts = {entry["id"]: written(entry) for entry in document["added_tokens"]}
        by_id = {i: text for text, i in document["model"]["vocab"].items()} | texts

        def decode(token_ids, skip):
            reference = tokenizer.decode(token_ids, skip_special_tokens=skip)
            if "�" not in reference or document["decoder"] != decoder:
                return reference
            data = b""
            for i in token_ids:
                if skip and i in (0, 1, 2):
                    continue
                text = by_id[i]
                is_byte = len(text) == 6 and text.startswith("<0x")
                data += bytes([int(text[3:5], 16)]) if is_byte else text.replace("▁", " ").encode("utf-8")
            text = data.decode("utf-8", "replace")
            return text[1:] if text.startswith(" ") else text

        return decode

    long = SENTENCES + HAND_MADE + LONG_PIECES + random_texts(100, seed=21)
    short = HAND_MADE + random_texts(20, seed=22)

    def variant(name, texts, **overrides):
        return make_variant(base, name, texts, decode_of, **overrides)

    variants = [
        variant("llama-2", long),
        variant("mistral", long, normalizer=None, pre_tokenizer=metaspace("first", False)),
        variant("metaspace always split", short, normalizer=None, pre_tokenizer=metaspace("always", True),
                decoder=metaspace("always", True), model={"byte_fallback": False}),
        variant("metaspace never", short, normalizer=None, pre_tokenizer=metaspace("never", True),
                decoder=metaspace("never", True), model={"byte_fallback": False, "fuse_unk": False}),
        variant("no unknown", short, model={"byte_fallback": False, "unk_token": None}),
        variant("whole pieces", short, normalizer=None, pre_tokenizer=metaspace("always", True),
                model={"ignore_merges": True}),
    ]
    tokenizer = Tokenizer.from_str(json.dumps(base))
    decode = decode_of(tokenizer, base)
    return {"tokenizer": base, "variants": variants, "vocab_size": n + 2,
            "pair_digests": [digest([decode([a, b], False) for b in range(n + 2)]) for a in range(n + 2)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a SmolLM2 GGUF file")
    parser.add_argument("output", nargs="?", default=pathlib.Path(__file__).parent / "data", type=pathlib.Path)
    arguments = parser.parse_args()
    made = {"byte_level": byte_level_reference(), "sentencepiece": sentencepiece_reference(),
            "smollm": smollm_reference(arguments.model)}
    for name, reference in made.items():
        reference = {"made_with": f"tokenizers {tokenizers.__version__}"} | reference
        text = json.dumps(reference, ensure_ascii=True, separators=(",", ":"))
        (arguments.output / f"{name}.json").write_text(text + "\n")
        print(f"{name}.json: {len(text)} bytes")


if __name__ == "__main__":
    main()
