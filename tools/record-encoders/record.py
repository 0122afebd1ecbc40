# Makes the small random encoders of test/data/encoders, and records their embeddings and scores.
# Run with torch, transformers, tokenizers and safetensors of PyPI: python tools/record-encoders/record.py
import torch, json, os, numpy as np
from safetensors.torch import save_file
from transformers import BertConfig, BertModel, BertForSequenceClassification
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, decoders
root=os.path.join(os.path.dirname(os.path.abspath(__file__)),'../../test/data/encoders')
torch.manual_seed(7)
words="the a fox lantern of and in to is it that story night forest light king queen river snow wind home small old red blue un ##able ##ing ##s ##ed ##er ##est walk run jump glow ! ? . , ' - ( ) 1 2 3 0 caf ##e naive ##ly ein ##horn 狐 火".split()
letters=[c for c in 'abcdefghijklmnopqrstuvwxyz']
vocab=['[PAD]','[UNK]','[CLS]','[SEP]','[MASK]']+words+[l for l in letters if l not in words]+['##'+l for l in letters if '##'+l not in words]
while len(vocab)%8: vocab.append(f'[unused{len(vocab)}]')
vocab={w:i for i,w in enumerate(dict.fromkeys(vocab))}
n=len(vocab)
t=Tokenizer(models.WordPiece(vocab,unk_token='[UNK]'))
t.normalizer=normalizers.BertNormalizer(lowercase=True)
t.pre_tokenizer=pre_tokenizers.BertPreTokenizer()
t.post_processor=processors.TemplateProcessing(single='[CLS] $A [SEP]',pair='[CLS] $A [SEP] $B:1 [SEP]:1',special_tokens=[('[CLS]',2),('[SEP]',3)])
t.decoder=decoders.WordPiece()
for s in ['[PAD]','[UNK]','[CLS]','[SEP]','[MASK]']: t.add_special_tokens([s])
texts=["A fox and a lantern.","The old king walked in the snow, unable to run!","Café naïvely -- 狐火 (2013)","glowing","the wind is in the forest and the river runs to the sea ? "*3]
def rand(model):
    with torch.no_grad():
        for k,p in model.named_parameters():
            if 'LayerNorm.weight' in k or 'norm' in k.lower() and k.endswith('weight'): p.copy_(1+0.2*torch.randn_like(p))
            elif k.endswith('bias'): p.copy_(0.1*torch.randn_like(p))
            else: p.copy_(torch.randn_like(p)*(1.6/np.sqrt(p.shape[-1]) if 'embed' not in k else 0.7))
            p.copy_(p.to(torch.bfloat16).to(torch.float32))
    return model.eval()
def write(name, model, cfg, extra, tensors=None):
    d=f'{root}/{name}'; os.makedirs(d,exist_ok=True)
    sd=tensors or {k:v.to(torch.bfloat16).contiguous() for k,v in model.state_dict().items() if 'position_ids' not in k}
    save_file(sd,f'{d}/model.safetensors',metadata={'format':'pt'})
    json.dump(cfg,open(f'{d}/config.json','w'),indent=1)
    t.save(f'{d}/tokenizer.json',pretty=False)
    json.dump(dict(tokenizer_class='BertTokenizer',model_max_length=cfg.get('max_position_embeddings',64),cls_token='[CLS]',sep_token='[SEP]',unk_token='[UNK]',pad_token='[PAD]'),open(f'{d}/tokenizer_config.json','w'))
    json.dump(extra,open(f'{d}/golden.json','w'))
r=lambda v:[round(float(x),6) for x in v]
base=dict(vocab_size=n,hidden_size=32,num_hidden_layers=2,num_attention_heads=2,intermediate_size=48,max_position_embeddings=64,type_vocab_size=2,layer_norm_eps=1e-12,hidden_act='gelu')
cfg=BertConfig(**base,attn_implementation='eager')
m=rand(BertModel(cfg,add_pooling_layer=False))
cases=[]
with torch.no_grad():
    for x in texts:
        ids=t.encode(x).ids
        h=m(input_ids=torch.tensor([ids])).last_hidden_state[0]
        cases.append(dict(text=x,ids=ids,mean=r(h.mean(0)),cls=r(h[0])))
write('bert',m,dict(base,model_type='bert',architectures=['BertModel']),dict(cases=cases))
d=f'{root}/bert'
json.dump([dict(idx=0,name='0',path='',type='sentence_transformers.models.Transformer'),dict(idx=1,name='1',path='1_Pooling',type='sentence_transformers.models.Pooling'),dict(idx=2,name='2',path='2_Normalize',type='sentence_transformers.models.Normalize')],open(f'{d}/modules.json','w'))
os.makedirs(f'{d}/1_Pooling',exist_ok=True)
json.dump(dict(word_embedding_dimension=32,pooling_mode_cls_token=False,pooling_mode_mean_tokens=True),open(f'{d}/1_Pooling/config.json','w'))
# reranker
cfg=BertConfig(**base,num_labels=1,attn_implementation='eager')
m=rand(BertForSequenceClassification(cfg))
q="fox in the snow"
docs=["The red fox runs in the snow.","a lantern","The queen is home, small and old."]
cases=[]
with torch.no_grad():
    for x in docs:
        e=t.encode(q,x)
        lg=m(input_ids=torch.tensor([e.ids]),token_type_ids=torch.tensor([e.type_ids])).logits[0,0]
        cases.append(dict(text=x,ids=e.ids,types=e.type_ids,logit=float(lg)))
write('bert-reranker',m,dict(base,model_type='bert',architectures=['BertForSequenceClassification'],id2label={'0':'LABEL_0'}),dict(query=q,cases=cases))
# Nomic BERT, as its published model code computes it.
H,L,A,I=32,2,2,48
g=torch.Generator().manual_seed(9)
bf=lambda x:x.to(torch.bfloat16).to(torch.float32)
T={}
def mk(k,*s,sc=None,ln=False):
    x=torch.randn(*s,generator=g)
    T[k]=bf(1+0.2*x if ln else x*(sc if sc else 1.6/np.sqrt(s[-1])))
mk('embeddings.word_embeddings.weight',n,H,sc=.7); mk('embeddings.token_type_embeddings.weight',2,H,sc=.7)
mk('emb_ln.weight',H,ln=True); mk('emb_ln.bias',H,sc=.1)
for l in range(L):
    p=f'encoder.layers.{l}.'
    mk(p+'attn.Wqkv.weight',3*H,H); mk(p+'attn.out_proj.weight',H,H)
    mk(p+'mlp.fc11.weight',I,H); mk(p+'mlp.fc12.weight',I,H); mk(p+'mlp.fc2.weight',H,I)
    for nn in ['norm1','norm2']: mk(p+nn+'.weight',H,ln=True); mk(p+nn+'.bias',H,sc=.1)
F=torch.nn.functional
def nomic(ids):
    ln=lambda x,k:F.layer_norm(x,(H,),T[k+'.weight'],T[k+'.bias'],1e-12)
    x=T['embeddings.word_embeddings.weight'][ids]+T['embeddings.token_type_embeddings.weight'][0]
    x=ln(x,'emb_ln'); S=len(ids); D=H//A
    inv=1/(1000.0**(torch.arange(0,D,2).float()/D)); fr=torch.outer(torch.arange(S).float(),inv); c,s=fr.cos(),fr.sin()
    def rot(v): # (S,A,D) non-interleaved
        a,b=v[...,:D//2],v[...,D//2:]; cc,ss=c[:,None],s[:,None]
        return torch.cat([a*cc-b*ss,b*cc+a*ss],-1)
    for l in range(L):
        p=f'encoder.layers.{l}.'
        q,k,v=(x@T[p+'attn.Wqkv.weight'].T).view(S,3,A,D).unbind(1)
        q,k=rot(q),rot(k)
        w=torch.softmax(torch.einsum('iad,jad->aij',q,k)/np.sqrt(D),-1)
        o=torch.einsum('aij,jad->iad',w,v).reshape(S,H)@T[p+'attn.out_proj.weight'].T
        x=ln(x+o,p+'norm1')
        y=(x@T[p+'mlp.fc11.weight'].T)*F.silu(x@T[p+'mlp.fc12.weight'].T)
        x=ln(x+y@T[p+'mlp.fc2.weight'].T,p+'norm2')
    return x
cases=[]
for x in texts:
    ids=t.encode(x).ids; h=nomic(ids)
    cases.append(dict(text=x,ids=ids,mean=r(h.mean(0)),cls=r(h[0])))
ncfg=dict(model_type='nomic_bert',architectures=['NomicBertModel'],vocab_size=n,n_embd=H,n_head=A,n_layer=L,n_inner=I,n_positions=64,activation_function='swiglu',rotary_emb_base=1000,rotary_emb_fraction=1.0,rotary_emb_interleaved=False,rotary_emb_scale_base=None,rotary_scaling_factor=None,layer_norm_epsilon=1e-12,qkv_proj_bias=False,mlp_fc1_bias=False,mlp_fc2_bias=False,prenorm=False,type_vocab_size=2,use_rms_norm=False,max_trained_positions=64,matryoshka_dimensions=[16,8])
write('nomic-bert',None,ncfg,dict(cases=cases),{k:v.to(torch.bfloat16).contiguous() for k,v in T.items()})
