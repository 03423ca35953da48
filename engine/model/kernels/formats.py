"""Describes the blocks of GGUF files: where quants and scales of weights are in a block.

A block holds 256 or 32 weights of one output: a quant of a few bits for each weight, scales for groups of 16 or 32
weights in most formats, and one or two half-precision factors for the scales or quants. This module needs neither torch
nor llvmlite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

RUN = 16
"""Number of inputs in a run. The quants of a run are in neighbouring words, with the same shift. Each word has the
quants of four inputs, one in each byte.
"""

RUN_WORDS = 4


@dataclass(frozen=True)
class Bits:
    """The positions of some bits of every quant, or of every scale, in the words of a block.

    Args:
        count: number of bits.
        at: position of the lowest of these bits in the quant or scale.
        words: indices of words. For quants, the word with the first four inputs of each run (16 inputs); the run's
            other words follow it. For scales, the word that holds each group's scale.
        shifts: for quants, the shift of each run's bits within a byte. For scales, the shift of each group's scale
            within its word.
        spread: whether the bits of a run are neighbours in one word, in the order of the inputs. Otherwise each byte
            has the bits of one input.
        in_half: whether ``words`` has indices in ``Format.halves`` instead of indices of words.
    """

    count: int
    at: int
    words: tuple[int, ...]
    shifts: tuple[int, ...]
    spread: bool = False
    in_half: bool = False


@dataclass(frozen=True)
class Format:
    """Describes a kind of block. A weight is ``factor * scale * (quant - zero) - least``, where ``least`` is a multiple
    of a second factor.

    Args:
        name: GGML's name for this kind.
        number: GGML's number for this kind.
        values: number of weights in a block.
        bytes: size of a block.
        halves: offsets in bytes of the 16-bit numbers of a block. The first is the factor.
        words: offset in bytes and number of 32-bit words, for each contiguous part of a block.
        quants: positions of the bits of the quants.
        group: number of quants that share a scale.
        zero: the quant that stands for the weight 0 if ``least`` is 0.
        scale: positions of the bits of the scales; () means that every scale is 1.
        least: positions of the bits of the numbers that the second factor is multiplied by; () means that there is no
            ``least``.
        scale_zero: number that is subtracted from a stored scale.
        is_signed: whether a scale is a signed byte.
        adds: whether the second factor is added to every weight. Such a format has no ``least``.
        flips: whether quants are stored as signed bytes, which are made unsigned by adding 128.
        codes: the numbers that the quants stand for, indexed by quant; () means that quants are numbers themselves.
        has_exponent: whether the factor is a power of two, stored as a byte with its exponent.
    """

    name: str
    number: int
    values: int
    bytes: int
    halves: tuple[int, ...]
    words: tuple[tuple[int, int], ...]
    quants: tuple[Bits, ...]
    group: int
    zero: int = 0
    scale: tuple[Bits, ...] = ()
    scale_zero: int = 0
    is_signed: bool = False
    least: tuple[Bits, ...] = ()
    adds: bool = False
    flips: bool = False
    codes: tuple[int, ...] = ()
    has_exponent: bool = False

    @property
    def held_bytes(self) -> int:
        """Bytes of a block in memory, where an exponent takes two bytes instead of one."""
        return self.bytes + self.has_exponent

    @property
    def has_least(self) -> bool:
        """Whether a number is added to every weight of a group."""
        return bool(self.least) or self.adds

    @property
    def bits(self) -> int:
        """Number of bits of a quant."""
        return sum(part.count for part in self.quants)

    @property
    def word_offsets(self) -> list[int]:
        return [start + 4 * word for start, count in self.words for word in range(count)]


def _runs(
    count: int, word: Callable[[int], int], shift: Callable[[int], int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tuples of ``word(n)`` and of ``shift(n)`` for the runs or groups n = 0..count-1."""
    return tuple(word(run) for run in range(count)), tuple(shift(run) for run in range(count))


def _nibbles_of_32(first: int) -> Bits:
    """Bit positions of 32 4-bit quants in 16 bytes: the lower halves of the bytes hold inputs 0-15, the upper halves
    hold inputs 16-31.
    """
    return Bits(4, 0, *_runs(2, lambda _: first, lambda run: 4 * run))


def _nibbles_of_64(first: int) -> Bits:
    """Bit positions of 4-bit quants: in every 32 bytes, the lower halves of the bytes hold 32 inputs, and the upper
    halves hold the next 32 inputs.
    """
    return Bits(4, 0, *_runs(16, lambda run: first + 8 * (run // 4) + 4 * (run % 2), lambda run: 4 * (run // 2 % 2)))


def _bits_of_32(first: int) -> Bits:
    """Bit positions of the fifth (highest) bit of each of 32 quants, all in one word."""
    return Bits(1, 4, *_runs(2, lambda _: first, lambda run: 16 * run), spread=True)


def _twos_of_128(first: int, at: int = 0) -> Bits:
    """Bit positions of 2-bit quants: in every 32 bytes, bits 0-1 of the bytes hold inputs 0-31, bits 2-3 hold inputs
    32-63, and so on up to input 127.
    """
    return Bits(2, at, *_runs(16, lambda run: first + 8 * (run // 8) + 4 * (run % 2), lambda run: 2 * (run % 8 // 2)))


def _scales_of_8(low_upper: int, high_word: int) -> tuple[Bits, ...]:
    """Bit positions of eight 6-bit scales or minima in three words.

    Args:
        low_upper: bit of a byte, 0 or 4, at which the lower four bits of scales 4-7 begin. The bytes are those of word
            2.
        high_word: the word with scales 0-3, and with the upper two bits of scales 4-7.
    """

    def word(group: int) -> int:
        return high_word if group < 4 else 2

    def shift(group: int) -> int:
        return 8 * (group % 4) + (low_upper if group >= 4 else 0)

    return (
        Bits(4, 0, *_runs(8, word, shift)),
        Bits(2, 4, *_runs(8, lambda _: high_word, lambda group: 8 * (group % 4) + (4 if group < 4 else 6))),
    )


_SCALE_K, _LEAST_K = _scales_of_8(0, 0), _scales_of_8(4, 1)
# The numbers that the quants of MXFP4 stand for, doubled so that all of them are integers. The format's factor is
# halved instead.
_MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

# The layouts are GGML's (ggml-common.h, ggml-quants.c). Tests compare dequantized weights with those of the package
# gguf.
_FORMATS = (
    Format(
        "Q4_0",
        number=2,
        values=32,
        bytes=18,
        halves=(0,),
        words=((2, 4),),
        quants=(_nibbles_of_32(0),),
        group=32,
        zero=8,
    ),
    Format(
        "Q4_1",
        number=3,
        values=32,
        bytes=20,
        halves=(0, 2),
        words=((4, 4),),
        quants=(_nibbles_of_32(0),),
        group=32,
        adds=True,
    ),
    Format(
        "Q5_0",
        number=6,
        values=32,
        bytes=22,
        halves=(0,),
        words=((2, 5),),
        quants=(_nibbles_of_32(1), _bits_of_32(0)),
        group=32,
        zero=16,
    ),
    Format(
        "Q5_1",
        number=7,
        values=32,
        bytes=24,
        halves=(0, 2),
        words=((4, 5),),
        quants=(_nibbles_of_32(1), _bits_of_32(0)),
        group=32,
        adds=True,
    ),
    Format(
        "Q8_0",
        number=8,
        values=32,
        bytes=34,
        halves=(0,),
        words=((2, 8),),
        quants=(Bits(8, 0, *_runs(2, lambda run: 4 * run, lambda _: 0)),),
        group=32,
        zero=128,
        flips=True,
    ),
    Format(
        "Q2_K",
        number=10,
        values=256,
        bytes=84,
        halves=(80, 82),
        words=((0, 20),),
        quants=(_twos_of_128(4),),
        group=16,
        scale=(Bits(4, 0, *_runs(16, lambda group: group // 4, lambda group: 8 * (group % 4))),),
        least=(Bits(4, 0, *_runs(16, lambda group: group // 4, lambda group: 8 * (group % 4) + 4)),),
    ),
    Format(
        "Q3_K",
        number=11,
        values=256,
        bytes=110,
        halves=(108,),
        words=((0, 27),),
        quants=(
            _twos_of_128(8),
            Bits(1, 2, *_runs(16, lambda run: 4 * (run % 2), lambda run: 4 * (run // 8) + run % 8 // 2)),
        ),
        group=16,
        zero=4,
        scale=(
            Bits(4, 0, *_runs(16, lambda at: 24 + at % 8 // 4, lambda at: 8 * (at % 4) + 4 * (at // 8))),
            Bits(2, 4, *_runs(16, lambda _: 26, lambda at: 8 * (at % 4) + 2 * (at // 4))),
        ),
        scale_zero=32,
    ),
    Format(
        "Q4_K",
        number=12,
        values=256,
        bytes=144,
        halves=(0, 2),
        words=((4, 35),),
        quants=(_nibbles_of_64(3),),
        group=32,
        scale=_SCALE_K,
        least=_LEAST_K,
    ),
    Format(
        "Q5_K",
        number=13,
        values=256,
        bytes=176,
        halves=(0, 2),
        words=((4, 43),),
        quants=(_nibbles_of_64(11), Bits(1, 4, *_runs(16, lambda run: 3 + 4 * (run % 2), lambda run: run // 2))),
        group=32,
        scale=_SCALE_K,
        least=_LEAST_K,
    ),
    Format(
        "Q6_K",
        number=14,
        values=256,
        bytes=210,
        halves=(208,),
        words=((0, 52),),
        quants=(
            Bits(
                4,
                0,
                *_runs(
                    16,
                    lambda run: 16 * (run // 8) + 8 * (run % 4 // 2) + 4 * (run % 2),
                    lambda run: 4 * (run % 8 // 4),
                ),
            ),
            _twos_of_128(32, 4),
        ),
        group=16,
        zero=32,
        scale=(Bits(8, 0, *_runs(16, lambda group: 48 + group // 4, lambda group: 8 * (group % 4))),),
        is_signed=True,
    ),
    Format(
        "MXFP4",
        number=39,
        values=32,
        bytes=17,
        halves=(0,),
        words=((1, 4),),
        quants=(_nibbles_of_32(0),),
        group=32,
        codes=_MXFP4,
        has_exponent=True,
    ),
    Format(
        "IQ4_NL",
        number=20,
        values=32,
        bytes=18,
        halves=(0,),
        words=((2, 4),),
        quants=(_nibbles_of_32(0),),
        group=32,
        codes=_IQ4,
    ),
    Format(
        "IQ4_XS",
        number=23,
        values=256,
        bytes=136,
        halves=(0, 2),
        words=((4, 33),),
        quants=(Bits(4, 0, *_runs(16, lambda run: 1 + 4 * (run // 2), lambda run: 4 * (run % 2))),),
        group=32,
        scale=(
            Bits(4, 0, *_runs(8, lambda _: 0, lambda group: 4 * group)),
            Bits(2, 4, *_runs(8, lambda _: 1, lambda group: 2 * group), in_half=True),
        ),
        scale_zero=32,
        codes=_IQ4,
    ),
)
FORMATS = {each.number: each for each in _FORMATS}
"""Formats, keyed by GGML's number for the kind of a tensor."""
