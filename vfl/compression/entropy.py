"""Entropy code of whole numbers of at most 8 bits: a body of a frame (`codec.py`), near its entropy, safe to decode.

The numbers are a matrix: a tensor of two dimensions, or any other as one row. Rows or columns that are alike form a
class, and each class brings its own histogram: embeddings differ by column, gradients by row. All integers are little
endian; bit streams fill each byte from its lowest bit, and their padding bits are zero.

    bytes    part, in this order
    1        what the classes are of: 0 the whole matrix, 1 rows, 2 columns
    1        c, the number of classes, 1 to 16; 1 if and only if of the whole matrix
    1        the lowest number, int8
    1        a - 1 for the a numbers from the lowest on, 2 to 256 of them
    .        bit stream: per row or column its class, in bits(c - 1) bits
    .        bit stream: per class and number its weight, in 6 bits
    4        the number of words
    rest     32-bit words of asymmetric numeral systems

Weight w stands for 0 if w = 0, else for (4 + m) << e with w - 1 = 4 e + m, m < 4: within an eighth of any count. A
number's probability is its weight by the sum of its class's. The words code all numbers of class 0, then of class 1 and
so on, each row by row, columns taken as rows where they have the classes (J. Duda, "Asymmetric numeral systems",
arXiv 1311.2540; the coder is `AnsCoder` of the package constriction, its probabilities the `Categorical` of 24 bits; R.
Bamler, arXiv 2201.01741). A decoder that has read them all holds the coder's empty state: what follows is an error.
Their number is sent, as fewer words may by chance decode to other numbers and end empty as well.
"""

from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from vfl.messages.messages import CodecError

_streams = cast(Any, import_module("constriction")).stream  # it has no types

MAX_CLASSES = 16
CLASS_COUNTS = (4, 8)
"""Numbers of classes to try."""
REFINEMENTS = 2
"""Times that rows or columns are reassigned to the class whose histogram codes them best."""

_WEIGHT_BITS = 6
_WEIGHTS = np.array([0, *((4 + w % 4) << w // 4 for w in range(63))])
_SCALE = 4
"""Scale of counts: the smallest weight stands for one."""
_FIXED = 4
"""Bytes before the bit streams."""
_COUNT = np.dtype("<u4")
_WHOLE, _ROWS, _COLUMNS = range(3)

_Integers = NDArray[np.signedinteger]
_Bytes = NDArray[np.uint8]


class _Coder(Protocol):
    """Coder of numbers, last in, first out."""

    def encode_reverse(self, symbols: NDArray[np.int32], model: object) -> None: ...
    def decode(self, model: object, count: int) -> NDArray[np.int32]: ...
    def get_compressed(self) -> NDArray[np.uint32]: ...
    def is_empty(self) -> bool: ...


class _Model(NamedTuple):
    """Distribution of the numbers of a matrix."""

    axis: int
    class_of: _Integers
    """Class of each row or column."""
    lowest: int
    weights: _Integers
    """Weights as sent, [classes, numbers]."""


def encode(numbers: NDArray[np.int8]) -> bytes:
    """Return the body of a matrix of at least one number."""
    lowest = min(int(numbers.min()), 126)  # two numbers from it on must be numbers of 8 bits, also where all are 127
    symbols = numbers.astype(np.int32) - lowest
    model = _fitted(symbols, lowest)
    coder = cast(_Coder, _streams.stack.AnsCoder())
    lines = symbols.T if model.axis == _COLUMNS else symbols
    for each in reversed(range(len(model.weights))):  # the coder is a stack: class 0 goes in last, and comes out first
        coder.encode_reverse(lines[model.class_of == each].ravel(), _distribution(model.weights[each]))
    classes, numbers_of = model.weights.shape
    fixed = np.array([model.axis, classes, lowest & 0xFF, numbers_of - 1], np.uint8)
    streams = _pack(model.class_of, _class_bits(classes)), _pack(model.weights.ravel(), _WEIGHT_BITS)
    words = coder.get_compressed().astype("<u4")
    return b"".join(part.tobytes() for part in (fixed, *streams, np.array(len(words), _COUNT), words))


def decode(body: _Bytes, rows: int, columns: int) -> NDArray[np.int8]:
    """Return the matrix; time and memory are bounded by its size, which the caller has checked.

    Raises CodecError for a body that departs from the layout above in any way.
    """
    model, sent = _read_model(body, rows, columns)
    try:
        coder = cast(_Coder, _streams.stack.AnsCoder(sent.view("<u4").astype(np.uint32)))
    except ValueError:  # the last word is zero
        raise CodecError("coded frame ends in a zero word") from None
    numbers = np.empty((rows, columns), np.int8)
    lines = numbers.T if model.axis == _COLUMNS else numbers  # a view: what it is given stands in `numbers`
    for each, weights in enumerate(model.weights):
        members = model.class_of == each
        shape = int(np.count_nonzero(members)), lines.shape[1]
        symbols = coder.decode(_distribution(weights), shape[0] * shape[1])
        lines[members] = (symbols + model.lowest).reshape(shape)
    if not coder.is_empty():
        raise CodecError("coded frame does not end with its last number")
    return numbers


# --- the model ---


def _fitted(symbols: NDArray[np.int32], lowest: int) -> _Model:
    """Return the model with the fewest bits, including its own."""
    count = max(2, int(symbols.max()) + 1)
    by_axis = {_ROWS: _histograms(symbols, count), _COLUMNS: _histograms(symbols.T, count)}
    whole = by_axis[_COLUMNS].sum(axis=0, keepdims=True)
    best = _Model(_WHOLE, np.zeros(len(symbols), np.int64), lowest, _as_sent(whole))
    least = _bits(whole, best.weights)
    for axis, histograms in by_axis.items():
        for classes in CLASS_COUNTS:
            if classes > len(histograms) or classes * count * _WEIGHT_BITS > least / 48:  # seldom worth it
                break
            class_of, totals = _classified(histograms, classes)
            weights = _as_sent(totals)
            bits = _bits(totals, weights) + len(class_of) * _class_bits(len(weights))
            if len(weights) > 1 and bits < least:
                best, least = _Model(axis, class_of, lowest, weights), bits
    return best


def _histograms(symbols: NDArray[np.int32], count: int) -> NDArray[np.float32]:
    """Return the count of each symbol in each line, [lines, symbols]."""
    lines = len(symbols)
    places = symbols + np.arange(lines, dtype=np.int32)[:, None] * count
    counted = np.bincount(places.ravel(), minlength=lines * count)
    return counted.reshape(lines, count).astype(np.float32)


def _classified(histograms: NDArray[np.float32], classes: int) -> tuple[_Integers, NDArray[np.float32]]:
    """Return every line's class, and the classes' histograms: like k-means, with code lengths for distances."""
    lines, count = histograms.shape
    # Embeddings' columns and gradients' rows differ in scale rather than shape. So the first classes are of lines of
    # similar spread around the commonest symbol, equally many in each.
    middle = int(histograms.sum(axis=0).argmax())
    from_middle = np.array([abs(symbol - middle) for symbol in range(count)], np.float32)
    class_of = np.empty(lines, np.int64)
    class_of[np.argsort((histograms * from_middle).sum(axis=1))] = np.arange(lines) * classes // lines
    for _ in range(REFINEMENTS):
        # Half a count more: a symbol that a class lacks is then dear to a line, but not impossible.
        smoothed = _totals(histograms, class_of, classes) + np.float32(0.5)
        lengths = np.log2(smoothed.sum(axis=1, keepdims=True)) - np.log2(smoothed)
        class_of = np.einsum("ls,cs->lc", histograms, lengths).argmin(axis=1)
    _, class_of = np.unique(class_of, return_inverse=True)  # some may have become empty
    return class_of, _totals(histograms, class_of, int(class_of.max()) + 1)


def _totals(histograms: NDArray[np.float32], class_of: _Integers, classes: int) -> NDArray[np.float32]:
    return np.stack([histograms[class_of == each].sum(axis=0) for each in range(classes)])


def _as_sent(totals: NDArray[np.float32]) -> _Integers:
    """Return the weights of histograms as sent; every symbol that occurs has a weight."""
    largest = float(_WEIGHTS[-1])
    # The commonest symbol must not exceed the largest weight; the smallest weight stands for one count or more.
    wanted = totals.astype(np.float64) * min(_SCALE, largest / float(totals.max()))
    above = np.searchsorted(_WEIGHTS, wanted).clip(1, len(_WEIGHTS) - 1)
    nearest = above - (wanted - _WEIGHTS[above - 1] < _WEIGHTS[above] - wanted)
    return np.where(totals > 0, nearest.clip(1), 0)  # a symbol without a weight could not be coded


def _bits(totals: NDArray[np.float32], sent: _Integers) -> float:
    """Return the bits of all symbols under the weights, plus those of the weights."""
    weights = _WEIGHTS[sent]
    lengths = np.log2(weights.sum(axis=1, keepdims=True)) - np.log2(weights.clip(1))  # no symbol has weight 0
    return float((totals * lengths).sum()) + sent.size * _WEIGHT_BITS


def _distribution(sent: _Integers) -> object:
    """Return the coder's model; the weights are small whole numbers, so every machine computes the same model."""
    weights = _WEIGHTS[sent].astype(np.float64)
    return cast(object, _streams.model.Categorical(weights / weights.sum(), perfect=False))


def _read_model(body: _Bytes, rows: int, columns: int) -> tuple[_Model, _Bytes]:
    """Return the model, and the bytes of the words after it."""
    # The body comes from a peer. Each length is checked before it is used, and every byte has one meaning only.
    if len(body) < _FIXED:
        raise CodecError("coded frame is cut short")
    axis, classes, lowest, highest = (int(each) for each in body[:_FIXED])
    lowest -= 256 if lowest > 127 else 0
    numbers = highest + 1
    if axis > _COLUMNS or not 1 <= classes <= MAX_CLASSES or (classes == 1) != (axis == _WHOLE):
        raise CodecError(f"coded frame declares {classes} classes of axis {axis}")
    if numbers < 2 or lowest + highest > 127:
        raise CodecError(f"coded frame declares {numbers} numbers from {lowest} on")
    lines = columns if axis == _COLUMNS else rows
    weights_at = _FIXED + bits_size(lines * _class_bits(classes))
    count_at = weights_at + bits_size(classes * numbers * _WEIGHT_BITS)
    words_at = count_at + _COUNT.itemsize
    if len(body) < words_at or (len(body) - words_at) % 4:
        raise CodecError(f"coded frame has a body of {len(body)} bytes")
    class_of = _unpack(body[_FIXED:weights_at], lines, _class_bits(classes))
    sent = _unpack(body[weights_at:count_at], classes * numbers, _WEIGHT_BITS).reshape(classes, numbers)
    if class_of.max() >= classes or not sent.any(axis=1).all():
        raise CodecError("coded frame has a class without numbers, or a line without a class")
    words, declared = (len(body) - words_at) // 4, int(body[count_at:words_at].view(_COUNT)[0])
    if words != declared:
        raise CodecError(f"coded frame has {words} words where it declares {declared}")
    return _Model(axis, class_of, lowest, sent), body[words_at:]


# --- bit streams ---


def bits_size(bits: int) -> int:
    """Return the bytes of a bit stream, its last byte padded."""
    return -(-bits // 8)


def _class_bits(classes: int) -> int:
    return (classes - 1).bit_length()


def _pack(numbers: _Integers, width: int) -> _Bytes:
    """Return the bit stream of numbers of ``width`` bits, at most 8."""
    digits = np.unpackbits(numbers.astype(np.uint8)[:, None], axis=1, count=width, bitorder="little")
    return np.packbits(digits, bitorder="little")


def _unpack(stream: _Bytes, count: int, width: int) -> _Integers:
    """Return the numbers of ``_pack``. Raises CodecError for padding that is not zero."""
    digits = np.unpackbits(stream, bitorder="little")
    if digits[count * width :].any():
        raise CodecError("coded frame has a non-zero padding bit")
    return digits[: count * width].reshape(count, width).astype(np.int64) @ (1 << np.arange(width))
