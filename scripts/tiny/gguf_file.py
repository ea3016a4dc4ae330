"""Writing GGUF version 3, independently of the gguf package and of the engine that will read the files. F32 and BF16 only."""
import json
import struct

import numpy as np

ALIGNMENT = 32
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # numbers of metadata types
TENSOR_F32, TENSOR_BF16 = 0, 30  # numbers of tensor types


def string(text):
    data = text.encode()
    return struct.pack('<Q', len(data)) + data


def entry(key, value):
    """One metadata pair; the type follows from the Python value."""
    head = string(key)
    if isinstance(value, bool):
        return head + struct.pack('<iB', BOOL, value)
    if isinstance(value, int):
        return head + struct.pack('<iI', U32, value)
    if isinstance(value, float):
        return head + struct.pack('<if', F32, value)
    if isinstance(value, str):
        return head + struct.pack('<i', STRING) + string(value)
    if isinstance(value[0], str):
        return head + struct.pack('<iiQ', ARRAY, STRING, len(value)) + b''.join(map(string, value))
    if isinstance(value[0], bool):
        return head + struct.pack('<iiQ', ARRAY, BOOL, len(value)) + bytes(value)
    return head + struct.pack('<iiQ', ARRAY, I32, len(value)) + struct.pack(f'<{len(value)}i', *value)


def bf16(array):
    """float32 -> bf16 bits, rounded to nearest even."""
    bits = array.view(np.uint32)
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def padded(data):
    return data + b'\0' * (-len(data) % ALIGNMENT)


def keep_f32(name, array):
    """Vectors and what decides between experts or rows stay in full precision, as in real files."""
    return array.ndim == 1 or 'gate_inp' in name or 'indexer.proj' in name


def write(path, metadata, tensors, kind='bf16'):
    """metadata: (key, value) pairs; tensors: (name, array) pairs, row-major; both in file order."""
    infos, blobs, offset = b'', [], 0
    for name, array in tensors:
        array = np.ascontiguousarray(array, dtype=np.float32)
        full = kind == 'f32' or keep_f32(name, array)
        blob = padded(array.tobytes() if full else bf16(array).tobytes())
        dims = array.shape[::-1]
        infos += string(name) + struct.pack(f'<I{len(dims)}qiQ', len(dims), *dims, TENSOR_F32 if full else TENSOR_BF16, offset)
        blobs.append(blob)
        offset += len(blob)
    head = b'GGUF' + struct.pack('<IQQ', 3, len(tensors), len(metadata)) + b''.join(entry(*pair) for pair in metadata) + infos
    with open(path, 'wb') as file:
        file.write(padded(head) + b''.join(blobs))


class Vocabulary:
    """Tokens, types and merges of a tokenizer.json, as the metadata wants them."""

    def __init__(self, path):
        with open(path, encoding='utf-8') as file:
            data = json.load(file)
        self.special = {token['content']: token['id'] for token in data['added_tokens']}
        ids = {**data['model']['vocab'], **self.special}
        self.tokens = sorted(ids, key=ids.get)
        if [ids[token] for token in self.tokens] != list(range(len(self.tokens))):
            raise SystemExit(f'{path}: token ids have gaps')
        self.types = [3 if token in self.special else 1 for token in self.tokens]
        self.merges = [merge if isinstance(merge, str) else ' '.join(merge) for merge in data['model']['merges']]

    def metadata(self):
        return [('tokenizer.ggml.model', 'gpt2'), ('tokenizer.ggml.pre', 'glm4'), ('tokenizer.ggml.tokens', self.tokens),
                ('tokenizer.ggml.token_type', self.types), ('tokenizer.ggml.merges', self.merges)]
