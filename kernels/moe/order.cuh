// The rows of a step sorted by expert. A pair is a row and one of its experts, `row * TOP_K + k`; a slot is a pair's place
// after sorting; a tile is some consecutive slots of one expert.
#pragma once
#include "include/base.cuh"

struct Order {
  int* pair_of;  // [pairs] by slot
  int* slot_of;  // [pairs], -1 where the pair has no expert
  int4* tiles;   // [count] expert, first slot, slots, -
  int* count;    // of tiles
};

// Rows of packed expert matrices that stand together: eight of gate, their eight of up, and so on.
#define ROWS_TOGETHER 8

// MXFP4 as kernels take it: matrices [rows, k] cut into groups of 8 rows and chunks of 64 columns, zero where k ends
// inside one. A group's chunks follow one another; each holds 8 rows of 32 bytes, then 8 pairs of e8m0 scales, of which
// each covers 32 columns. Lane t of four feeds mma m16n8k16 with the columns 16 s + 2 t, + 1, + 8, + 9 of its row for s
// below 4: bytes 8 t and on are two words, one for two s. The word of s has pair p = 2 (s % 2) + half in the bits
// 4 p .. 4 p + 3 (first column) and 16 + 4 p .. (second).
#define MXFP4_CHUNK 64
#define MXFP4_BYTES 272
#define MXFP4_SCALES 256

DEVICE float e2m1(u32 code) {
  const float magnitude = (code & 7) < 2 ? 0.5f * (code & 7) : __uint_as_float(((code & 7) << 22) + (126u << 23));
  return code & 8 ? -magnitude : magnitude;
}
DEVICE float e8m0(u32 e) { return e == 255 ? __int_as_float(0x7fc00000) : e == 0 ? __uint_as_float(1u << 22) : __uint_as_float(e << 23); }

// One element of a matrix of `chunks` chunks a group.
DEVICE float mxfp4_element(const u8* matrix, i64 row, int column, int chunks) {
  const u8* chunk = matrix + (row / ROWS_TOGETHER * chunks + column / MXFP4_CHUNK) * MXFP4_BYTES;
  const int r = row % ROWS_TOGETHER, c = column % MXFP4_CHUNK, s = c / 16, half = c % 16 / 8, t = c % 8 / 2;
  const u32 word = *reinterpret_cast<const u32*>(chunk + 32 * r + 8 * t + 4 * (s / 2));
  const u32 code = word >> (4 * (2 * (s % 2) + half) + 16 * (c % 2)) & 15;
  return e2m1(code) * e8m0(chunk[MXFP4_SCALES + 2 * r + s / 2]);
}
