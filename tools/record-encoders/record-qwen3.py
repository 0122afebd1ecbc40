# Makes the small random Qwen3 of test/data/encoders/qwen3, and records its embeddings and rankings as the model cards of
# Qwen3-Embedding and Qwen3-Reranker compute them.
# Run with torch, transformers and tokenizers of PyPI: python tools/record-encoders/record-qwen3.py
import json
import os

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../test/data/encoders/qwen3')
os.makedirs(f'{folder}/1_Pooling', exist_ok=True)
torch.manual_seed(11)

# A byte-level vocabulary with a few merges, and the special tokens of Qwen3.
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
merges = [('y', 'e'), ('ye', 's'), ('n', 'o'), ('t', 'h'), ('th', 'e'), ('Ġ', 'the'), ('Ġ', 'a'), ('i', 'n'), ('e', 'r')]
pieces = alphabet + [a + b for a, b in merges]
vocab = {piece: i for i, piece in enumerate(pieces)}
tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
tokenizer.normalizer = normalizers.NFC()
words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(Regex(words), behavior='isolated'),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
])
tokenizer.decoder = decoders.ByteLevel()
special = ['<|endoftext|>', '<|im_start|>', '<|im_end|>']
tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ['<think>', '</think>']])
end = tokenizer.token_to_id('<|endoftext|>')
tokenizer.post_processor = processors.Sequence([
    processors.ByteLevel(trim_offsets=False),
    processors.TemplateProcessing(single='$A <|endoftext|>', pair='$A $B <|endoftext|>', special_tokens=[('<|endoftext|>', end)]),
])
size = tokenizer.get_vocab_size()

settings = dict(
    vocab_size=size + -size % 8, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=1024, rms_norm_eps=1e-6, rope_theta=1_000_000,
    hidden_act='silu', tie_word_embeddings=True,
)
model = Qwen3ForCausalLM(Qwen3Config(**settings, attn_implementation='eager')).eval()
with torch.no_grad():
    for name, values in model.named_parameters():
        scale = 0.15 if 'embed' in name else 1.6 / values.shape[-1] ** 0.5
        values.copy_(1 + 0.2 * torch.randn_like(values) if name.endswith('norm.weight') else torch.randn_like(values) * scale)
        values.copy_(values.to(torch.bfloat16).to(torch.float32))

# Qwen3-Embedding names its tensors without the prefix.
weights = {name.removeprefix('model.'): values.to(torch.bfloat16).contiguous() for name, values in model.state_dict().items() if name != 'lm_head.weight'}
save_file(weights, f'{folder}/model.safetensors', metadata={'format': 'pt'})
tokenizer.save(f'{folder}/tokenizer.json', pretty=False)


def write(path, value):
    with open(f'{folder}/{path}', 'w') as file:
        json.dump(value, file, indent=1)
        file.write('\n')


no, yes = tokenizer.token_to_id('no'), tokenizer.token_to_id('yes')
write('config.json', dict(model_type='qwen3', architectures=['Qwen3ForCausalLM'], **settings, eos_token_id=tokenizer.token_to_id('<|im_end|>'), bos_token_id=end, classifier_from_token=['no', 'yes']))
write('tokenizer_config.json', dict(tokenizer_class='Qwen2Tokenizer', add_bos_token=False, eos_token='<|im_end|>', pad_token='<|endoftext|>', model_max_length=1024))
write('modules.json', [
    dict(idx=0, name='0', path='', type='sentence_transformers.models.Transformer'),
    dict(idx=1, name='1', path='1_Pooling', type='sentence_transformers.models.Pooling'),
    dict(idx=2, name='2', path='2_Normalize', type='sentence_transformers.models.Normalize'),
])
write('1_Pooling/config.json', dict(word_embedding_dimension=32, pooling_mode_cls_token=False, pooling_mode_mean_tokens=False, pooling_mode_lasttoken=True))

task = 'Given a web search query, retrieve relevant passages that answer the query'
texts = [f'Instruct: {task}\nQuery:Where does the fox live?', 'A red fox lives in the forest.', 'Café naïvely -- 狐火 (2013)  \n\n x']
embeddings = []
with torch.no_grad():
    for text in texts:
        ids = tokenizer.encode(text).ids
        hidden = model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        vector = torch.nn.functional.normalize(hidden, dim=0)
        embeddings.append(dict(text=text, ids=ids, vector=[round(float(x), 7) for x in vector]))

# Qwen3-Reranker: the logits of "yes" and "no" after a prompt that asks for one of them.
wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
prefix = '<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
suffix = '<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n'
query = 'Where does the fox live?'
rankings = []
with torch.no_grad():
    for document in ['A red fox lives in the forest.', 'The lantern is broken.', '狐']:
        pair = f'<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}'
        ids = [id for part in (prefix, pair, suffix) for id in wrapped.encode(part, add_special_tokens=False)]
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        score = torch.softmax(torch.stack([logits[no], logits[yes]]), dim=0)[1]
        rankings.append(dict(document=document, ids=ids, score=float(score)))
with open(f'{folder}/golden.json', 'w') as file:
    json.dump(dict(embeddings=embeddings, query=query, rankings=rankings), file)
    file.write('\n')
