// Reads a tensor file of `mha-conformance vectors export` (spec/vectors.md): name -> {dtype, shape, data}.
import { readFileSync } from "node:fs";

const TYPES = {
  F64: Float64Array, F32: Float32Array, F16: Uint16Array, BF16: Uint16Array,
  I64: BigInt64Array, I32: Int32Array, BOOL: Uint8Array,
};

export function readSafetensors(path) {
  const file = readFileSync(path);
  const start = 8 + Number(file.readBigUInt64LE(0));
  const { __metadata__, ...header } = JSON.parse(file.toString("utf8", 8, start));
  return Object.fromEntries(Object.entries(header).map(([name, { dtype, shape, data_offsets: [begin, end] }]) => {
    const bytes = Uint8Array.from(file.subarray(start + begin, start + end)); // a copy, so that it is aligned
    return [name, { dtype, shape, data: new TYPES[dtype](bytes.buffer) }];
  }));
}
