// arch: sm_80+
// variants: MODEL_BF16
// Brings a step's description from pinned host memory to where the step's kernels look for it: one launch instead of a
// copy per array. Floor: the words read over PCIe, one round trip of some 2 us.
#include "include/base.cuh"

// staging[from .. from + words] goes to target[to ..].
struct Section {
  int to, from, words;
};

struct PrepareParams {
  const int* staging;
  int* target;
  // Tokens that the step before chose, by draw; or none.
  const int* sampled;
  // Section 0 holds tokens: -1 - d there stands for what draw d chose.
  Section sections[24];
  int section_count;
  // Sum of the sections' words.
  int words;
  // Pairs of (index into target, value) at staging[pairs_at ..].
  int pairs_at;
  int pair_count;
};

extern "C" __global__ void __launch_bounds__(256) prepare(const __grid_constant__ PrepareParams p) {
  wait_for_previous();
  let_next_start();
  int step = gridDim.x * blockDim.x;
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  for (int i = thread; i < p.words; i += step) {
    int s = 0, at = i;
    while (s < p.section_count - 1 && at >= p.sections[s].words) at -= p.sections[s++].words;
    int value = p.staging[p.sections[s].from + at];
    if (s == 0 && value < 0 && p.sampled) value = p.sampled[-1 - value];
    p.target[p.sections[s].to + at] = value;
  }
  for (int i = thread; i < p.pair_count; i += step)
    p.target[p.staging[p.pairs_at + 2 * i]] = p.staging[p.pairs_at + 2 * i + 1];
}
