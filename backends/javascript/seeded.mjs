// Makes a seeded operand of the vectors (spec/vectors.md): {shape, data}, numbers or booleans in C order.
const MASK = (1n << 64n) - 1n;

function mix(x) {
  x = (x + 0x9E3779B97F4A7C15n) & MASK;
  x = ((x ^ (x >> 30n)) * 0xBF58476D1CE4E5B9n) & MASK;
  x = ((x ^ (x >> 27n)) * 0x94D049BB133111EBn) & MASK;
  return x ^ (x >> 31n);
}

export function seededOperand({ shape, seed, bits, power, share, boxes = [] }) {
  const count = shape.reduce((product, size) => product * size, 1), start = mix(BigInt(seed));
  const data = Array.from({ length: count }, (_, i) => {
    const word = mix((start + BigInt(i)) & MASK);
    if (share !== undefined) return Number(word >> 56n) < share;
    return Number((word >> BigInt(63 - bits)) - (1n << BigInt(bits))) * 2 ** (power - bits);
  });
  for (const { first, end, value } of boxes) {
    const held = typeof value === "string" ? { nan: NaN, inf: Infinity, "-inf": -Infinity }[value] : value;
    const fill = (axis, place) => {
      if (axis === shape.length) data[place] = held;
      else for (let i = first[axis]; i < end[axis]; i++) fill(axis + 1, place * shape[axis] + i);
    };
    fill(0, 0);
  }
  return { shape, data };
}
