// Work items of attention over the paged cache, as the host cuts and deals them (ops/attention_decode/plan.rs), and how partial
// results are read by blocks other than those that wrote them.
#pragma once
#include "attention/scores.cuh"

// What one block does at a stretch.
struct Item {
  int token;   // row of q and out
  int slot;    // line of the block tables
  int q_head;  // first query head
  int kv_len;  // positions of the row, the newest included
  int begin;   // tiles, of positions begin * 16 .. min(end * 16, kv_len)
  int end;
  int piece;   // first of the pair's pieces, -1 when the item is all of the pair
  int share;   // this item's index among the pieces, and their number << 16
};

DEVICE Item load_item(const Item* from) {
  int4 a = *(const int4*)from, b = *((const int4*)from + 1);
  return Item{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

DEVICE float4 load_shared_by_all(const float* from) {
  float4 x;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from) : "memory");
  return x;
}
DEVICE float2 load_shared_by_all(const float2* from) {
  float2 x;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(from) : "memory");
  return x;
}
