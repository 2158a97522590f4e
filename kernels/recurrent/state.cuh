// States of recurrent layers: one block of f32 per sequence, the first of its line in the block tables.
#pragma once
#include "include/base.cuh"

struct States {
  float* data;        // block 0
  const int* tables;  // [slots, table_stride]
  i64 block;          // floats from block to block
  int table_stride;
  int padding;

  // The state of a row's sequence. Its contents mean nothing when the row starts at position 0.
  DEVICE float* of(const Batch& batch, int row) const {
    return data + tables[(i64)batch.slot[row] * table_stride] * block;
  }
};
