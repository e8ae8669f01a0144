// The line protocol of spec/protocol.md for programs under Node: one JSON object a line, a reply for each.
import { createInterface } from "node:readline";

export class Unsupported extends Error {}

const FIELDS = { start: ["cmd", "protocol"], run: ["cmd", "id", "operation", "inputs", "options", "memory", "repeat"] };
const TYPES = {
  float64: Float64Array, float32: Float32Array, float16: Uint16Array, bfloat16: Uint16Array,
  bool: Uint8Array, int64: BigInt64Array, int32: Int32Array,
};

/** {dtype, shape, data: base64} -> {dtype, shape, data: numbers}; those of 16 bits are widened. */
export function decode({ dtype, shape, data }) {
  if (!(dtype in TYPES)) throw new Error(`dtype ${dtype} is not known here`);
  const bytes = Uint8Array.from(Buffer.from(data, "base64")); // a copy, so that it is aligned
  const numbers = new TYPES[dtype](bytes.buffer);
  if (numbers.length !== shape.reduce((a, b) => a * b, 1)) throw new Error(`${bytes.length} bytes do not fill ${shape}`);
  const wider = { float16, bfloat16, int64: Number }[dtype];
  return { dtype, shape, data: wider ? Float64Array.from(numbers, wider) : numbers };
}

/** {dtype, shape, data: numbers} -> {dtype, shape, data: base64}, rounded to the dtype; float64 and float32 only. */
export function encode({ dtype, shape, data }) {
  const numbers = TYPES[dtype].from(data);
  return { dtype, shape, data: Buffer.from(numbers.buffer, numbers.byteOffset, numbers.byteLength).toString("base64") };
}

function bfloat16(bits) {
  return new Float32Array(Uint32Array.of(bits << 16).buffer)[0];
}

function float16(bits) {
  const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
}

/** Serves operations: name -> (inputs, options) => outputs, or a promise of them. */
export async function serve(about, operations) {
  console.log = console.error; // stdout is the protocol's
  for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
    const message = JSON.parse(line);
    if (message.cmd === "stop") break;
    process.stdout.write(JSON.stringify(await reply(message, about, operations)) + "\n");
  }
}

async function reply(message, about, operations) {
  const { cmd, id } = message;
  try {
    if (!(cmd in FIELDS)) throw new Error(`command ${cmd} is not known here`);
    const strange = Object.keys(message).find((field) => !FIELDS[cmd].includes(field));
    if (strange) throw new Error(`field ${strange} of ${cmd} is not known here`);
    if (cmd === "start") {
      if (message.protocol !== 1) throw new Error(`protocol ${message.protocol} is not known here; this program speaks 1`);
      return { ...about, operations: Object.keys(operations) };
    }
    const inputs = Object.fromEntries(Object.entries(message.inputs).map(([name, array]) => [name, decode(array)]));
    const outputs = await operations[message.operation](inputs, message.options); // `memory` and `repeat` may be ignored
    return { id, outputs: Object.fromEntries(Object.entries(outputs).map(([name, array]) => [name, encode(array)])) };
  } catch (error) {
    if (error instanceof Unsupported) return { id, unsupported: error.message };
    return cmd === "run" ? { id, error: String(error.message) } : { error: String(error.message) };
  }
}
