"""From attention mass per chunk to a score per page: what the reader sees glow. Knows no cache and no model."""

from __future__ import annotations

import torch


class PageScores:
    """Sums chunk scores by page.

    Args:
        page_starts: index of each page's first token in the context.
        stop: index after the book's last token; chunks from there on (the chat) count for no page.
        chunk_size: tokens in a chunk.
    """

    def __init__(self, page_starts: tuple[int, ...], stop: int, chunk_size: int) -> None:
        self._chunks = stop // chunk_size
        self._pages = len(page_starts)
        middles = torch.arange(self._chunks) * chunk_size + chunk_size // 2
        starts = torch.tensor(page_starts, dtype=torch.long)
        # Words of the template before the first page are counted with it; their chunk is the sink and scores nothing.
        self._page_of = (torch.searchsorted(starts, middles, right=True) - 1).clamp_(min=0)
        self._sum = torch.zeros(self._pages)

    def add(self, chunk_scores: torch.Tensor | None) -> tuple[float, ...]:
        """Scores per page from one renewal's scores (chunks,), summing to 1; kept in the running sum too."""
        if chunk_scores is None or not self._pages:
            return self._shares(torch.zeros(self._pages))
        mass = chunk_scores[: self._chunks].float().cpu()
        pages = torch.zeros(self._pages).index_add_(0, self._page_of[: mass.shape[0]], mass)
        self._sum += pages
        return self._shares(pages)

    def overall(self) -> tuple[float, ...]:
        """Scores per page over everything added."""
        return self._shares(self._sum)

    @staticmethod
    def _shares(pages: torch.Tensor) -> tuple[float, ...]:
        total = float(pages.sum())
        return tuple((pages / total).tolist()) if total > 0 else tuple([0.0] * pages.shape[0])
