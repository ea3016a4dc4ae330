"""Dequantise random blocks with the gguf package and with quant_dump, and compare bit for bit. TAP on standard output."""
import subprocess
import sys

import numpy
from gguf import GGMLQuantizationType, GGML_QUANT_SIZES
from gguf.quants import dequantize

BLOCKS = 2000
# Where the half-precision scales of a block are. Infinities and NaNs there are made finite: their products have no one bit pattern.
SCALES = {
    "F16": [0], "BF16": [], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0],
    "IQ1_M": [], "TQ1_0": [52], "TQ2_0": [64], "MXFP4": [],
}


def random_blocks(rng, name):
    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (BLOCKS, size), dtype=numpy.uint8)
    for at in SCALES[name]:
        odd = (blocks[:, at + 1] & 0x7C) == 0x7C
        blocks[odd, at + 1] ^= 0x40
    if name == "IQ1_M":  # the scale's upper four bits are those of the last word
        odd = (blocks[:, 55] & 0x70) == 0x70
        blocks[odd, 55] ^= 0x40
    if name == "BF16":
        odd = ((blocks[:, 1] & 0x7F) == 0x7F) & (blocks[:, 0] >= 0x80)
        blocks[odd, 1] ^= 0x40
    return blocks


def main():
    rng = numpy.random.default_rng(20)
    print(f"1..{len(SCALES)}")
    for number, name in enumerate(SCALES, 1):
        blocks = random_blocks(rng, name)
        want = dequantize(blocks, GGMLQuantizationType[name]).astype(numpy.float32).reshape(-1).view(numpy.uint32)
        run = subprocess.run([sys.argv[1], name], input=blocks.tobytes(), stdout=subprocess.PIPE, check=True)
        got = numpy.frombuffer(run.stdout, numpy.uint32)
        same = got.shape == want.shape and (got == want).all()
        print(f"{'ok' if same else 'not ok'} {number} - {name}: {BLOCKS} random blocks, {want.size} weights, the bits of gguf")
        if not same:
            print(f"# {got.size} weights, {want.size} wanted, {(got != want).sum() if got.shape == want.shape else '?'} differ")


main()
