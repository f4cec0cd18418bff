"""The network of next-word prediction on StackOverflow (Recycling Scraps, Table 6; Reddi et al. 2021): one layer of LSTM."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn

from dpmerge_lab.tasks.user_text import PAD


class NextWord(nn.Module):
    """Embedding, LSTM, a linear layer back to the embedding's size, and one to the words: logits for the word after each.

    Words are numbers below `words`, which counts the special ones: 10,000 and four on StackOverflow.
    """

    def __init__(self, words: int = 10_004, embedding: int = 96, hidden: int = 670) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, embedding)
        # torch's LSTM has two biases, which add up, and Keras', which the table counts, has one: here it is the weight of an
        # input that is always 1.
        self.lstm = nn.LSTM(embedding + 1, hidden, bias=False, batch_first=True)
        self.projection = nn.Linear(hidden, embedding)
        self.output = nn.Linear(embedding, words)
        _initialise(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of shape (sentences, places, words)."""
        embedded = nn.functional.pad(self.embedding(tokens), (0, 1), value=1.0)
        logits: Tensor = self.output(self.projection(self.lstm(embedded)[0]))
        return logits


def next_word_loss(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy over all places but padding."""
    return nn.functional.cross_entropy(network(inputs).flatten(0, 1), targets.flatten(), ignore_index=PAD)


def next_word_accuracy(network: nn.Module, inputs: Tensor, targets: Tensor, ignored: Collection[int] = (PAD,)) -> float:
    """The share of words foretold rightly, over all places whose word is not `ignored`; NaN if there are none."""
    network.eval()
    right = counted = 0
    with torch.no_grad():
        for x, y in zip(inputs.split(128), targets.split(128), strict=True):
            counts = ~torch.isin(y, torch.tensor(sorted(ignored), device=y.device))
            right += int((network(x).argmax(-1) == y)[counts].sum())
            counted += int(counts.sum())
    network.train()
    return right / counted if counted else math.nan


def _initialise(network: NextWord) -> None:
    """As the papers' code has it: small embeddings, He's and orthogonal weights, the forget gate open, then Glorot's."""
    parameters = dict(network.lstm.named_parameters())
    inward, recurrent, hidden = parameters["weight_ih_l0"], parameters["weight_hh_l0"], network.lstm.hidden_size
    with torch.no_grad():
        nn.init.uniform_(network.embedding.weight, -0.05, 0.05)
        nn.init.kaiming_normal_(inward[:, :-1])
        inward[:, -1] = 0
        inward[hidden : 2 * hidden, -1] = 1  # torch's gates: input, forget, cell, output
        nn.init.orthogonal_(recurrent)
        for layer in (network.projection, network.output):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
