# Records ids and decoded texts of small tokenizer.json files, one for each family, by the Python package `tokenizers`.
# Usage: python families.py > test/data/tokens/hugging-face.json
import json
import random

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

CODE = """def area(width, height):
    # two lines
    if width < 0:
        return None
\treturn width * height

for (let i = 0; i < 12345; i++) {
      total += items[i];   // für π
}
<div>
  <p>Hello,  world!</p>
</div>
I'll say: don't... 2024-11-30, 3.14 (x == y) ?!
"""
PARTS = [
    "def f(x):\n", "    return x", "\t", "  ", "   ", "        ", "\n\n", "\r\n", "if (a == b) {\n", "}\n", "\n    \n",
    " ", "a", "1234", "½", "漢字", "😀", "x++;", "don't", "I'LL", " end", "   \t x", "<p>", "▁", "é", "...", "?!", "\u00a0",
    "\u3000", "für", " π", "<end>",
]
random.seed(7)
TEXTS = [CODE, CODE.replace("\n", "\r\n")]
TEXTS += ["".join(random.choice(PARTS) for _ in range(random.randint(2, 10))) for _ in range(28)]

isolated = lambda regex: {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
sequence = lambda *steps: {"type": "Sequence", "pretokenizers": list(steps)}
byte_level = lambda use_regex: {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
metaspace = lambda **options: {"type": "Metaspace", "replacement": "▁", **options}
plain = byte_level(False)

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
POSSESSIVE = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]

to_spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
from_spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
fallback = [to_spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]
gemma_decoder = {"type": "Sequence", "decoders": fallback}
llama_decoder = {"type": "Sequence", "decoders": [*fallback, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
prepended = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, from_spaces]}

added = lambda texts, special=False, normalized=False: [
    {"content": text, "special": special, "normalized": normalized, "single_word": False, "lstrip": False, "rstrip": False}
    for text in texts
]
space_runs = [" " * n for n in range(9, 1, -1)]

def train(alphabet, extra, normalizer, pre_tokenizer):
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=extra, show_progress=False)
    tokenizer.train_from_iterator([*TEXTS, CODE], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [" ".join(pair) for pair in model["merges"]]}


# No splits in training: tokens cross every border, so that the ids show where a pre-tokenizer splits.
MODELS = {
    "byte": train(pre_tokenizers.ByteLevel.alphabet(), ["<s>", "</s>"], None, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
    "piece": train([], ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))], normalizers.Replace(" ", "▁"),
                   pre_tokenizers.Split(Regex("[漢字😀½π\u00a0\u3000]"), "removed")),
}

# As in Gemma's vocabulary, each run that is an added token is also a token that merges reach.
piece_runs = [run for run in ("▁" * n for n in range(2, 17)) if run in MODELS["piece"]["vocab"]]

# name: (model, normalizer, pre-tokenizer, decoder, added tokens)
FAMILIES = {
    "gemma": ("piece", from_spaces, {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
              gemma_decoder, added(piece_runs + ["\n" * n for n in range(1, 5)] + ["\t", "\t\t", "<p>", "</p>"])),
    "llama-2": ("piece", prepended, None, llama_decoder, []),
    "mistral": ("piece", None, metaspace(prepend_scheme="first", split=False), llama_decoder, []),
    "metaspace that splits": ("piece", None, metaspace(prepend_scheme="always", split=True), metaspace(prepend_scheme="always", split=True), []),
    "metaspace without a prefix": ("piece", None, metaspace(prepend_scheme="never", split=True), metaspace(prepend_scheme="never", split=True), []),
    "phi-3": ("piece", prepended, None, llama_decoder, added(["<p>", "</p>"])),
    "gpt-2": ("byte", None, byte_level(True), byte_level(True), []),
    "gpt-neox": ("byte", {"type": "NFC"}, byte_level(True), byte_level(True), added(space_runs, normalized=True)),
    "phi-2": ("byte", None, byte_level(True), byte_level(True), added(space_runs + ["\t\t", "\t\t\t"], normalized=True)),
    "smollm": ("byte", None, sequence({"type": "Digits", "individual_digits": True}, byte_level(True)), byte_level(True), []),
    "llama-3": ("byte", None, sequence(isolated(LLAMA3), plain), plain, []),
    "qwen": ("byte", {"type": "NFC"}, sequence(isolated(LLAMA3.replace("{1,3}", "")), plain), plain, added(["<p>"])),
    "deepseek": ("byte", None, sequence(*map(isolated, DEEPSEEK), plain), plain, []),
    "cased words": ("byte", None, sequence(isolated(CASED), plain), plain, []),
    "only the matches": ("byte", None, sequence({"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Removed", "invert": True}, plain), plain, []),
    "possessive": ("byte", None, sequence(isolated(POSSESSIVE), plain), plain, []),
    "falcon": ("byte", None, sequence({"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True), {"type": "Digits", "individual_digits": False}, isolated("[0-9][0-9][0-9]")), byte_level(True), []),
    "bloom": ("byte", None, sequence(isolated(r" ?[^(\s|[.,!?…。，、।۔،])]+"), plain), plain, []),
    "isolated punctuation": ("byte", None, sequence({"type": "Punctuation", "behavior": "Isolated"}, plain), plain, []),
}
for behavior in ["MergedWithPrevious", "MergedWithNext", "Contiguous", "Isolated"]:
    for invert in [False, True]:
        FAMILIES[f"{behavior}{' inverted' if invert else ''}"] = (
            "byte", None, sequence({"type": "Split", "pattern": {"Regex": r"[\s\d]"}, "behavior": behavior, "invert": invert}, plain), plain, [])


def tokenizer_json(model, normalizer, pre_tokenizer, decoder, more):
    vocab = MODELS[model]["vocab"]
    specials = [text for text in ["<unk>", "<s>", "</s>"] if text in vocab]
    next_id, tokens = len(vocab), []
    for token in added(specials, special=True) + more + added(["<end>"], special=True):
        token_id = vocab.get(token["content"])
        if token_id is None:
            token_id, next_id = next_id, next_id + 1
        tokens.append({"id": token_id, **token})
    options = {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True} if model == "piece" else {}
    return {
        "added_tokens": sorted(tokens, key=lambda token: token["id"]),
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": decoder,
        "model": {"type": "BPE", **options, **MODELS[model]},
    }


def record(name, family):
    full = tokenizer_json(*family)
    tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "truncation": None, "padding": None, **full}))
    cases = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = tokenizer.decode(ids)
        cases.append([TEXTS.index(text), " ".join(map(str, ids)), *([] if decoded == text else [decoded])])
    return {"name": name, "model": family[0], "json": {key: value for key, value in full.items() if key != "model"}, "cases": cases}


def dumps(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


records = [record(name, family) for name, family in FAMILIES.items()]
options = {name: {"type": "BPE", **({"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True} if name == "piece" else {}), **model} for name, model in MODELS.items()}
print("{")
print(f'"texts":{dumps(TEXTS)},')
print(f'"models":{dumps(options)},')
print('"families":[')
print(",\n".join(map(dumps, records)))
print("]}")
