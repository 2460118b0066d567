"""A model of 20 MB with random weights, to try a volume with a model without a GPU; needs transformers and PyTorch.

tiny_model.py make DIR    writes the model, in the safetensors format
tiny_model.py load DIR    loads it, for example from a mount, and prints the tokens that it generates
"""

import sys

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def make(directory):
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
    )
    # Several files, as large models have.
    LlamaForCausalLM(config).save_pretrained(directory, max_shard_size="6MB")


def load(directory):
    model = AutoModelForCausalLM.from_pretrained(directory)
    prompt = torch.arange(3, 11).unsqueeze(0)
    with torch.no_grad():
        tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False)
    print(*tokens[0].tolist())


{"make": make, "load": load}[sys.argv[1]](sys.argv[2])
