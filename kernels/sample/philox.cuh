// Random numbers of draws: Philox-4x32-10 (Salmon et al. 2011). Counter [token / 4, position, lineage, purpose 0], key
// the request's seed; token t takes word t % 4. A word w is u = (w >> 9 + 1/2) / 2^23.
#pragma once

struct RandomKey {
  u32 seed_low, seed_high, lineage, position;
};

DEVICE uint4 philox(uint4 counter, u32 k0, u32 k1) {
  u32 a = counter.x, b = counter.y, c = counter.z, d = counter.w;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    u64 left = (u64)a * 0xD2511F53u, right = (u64)c * 0xCD9E8D57u;
    a = (u32)(right >> 32) ^ b ^ k0;
    b = (u32)right;
    c = (u32)(left >> 32) ^ d ^ k1;
    d = (u32)left;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return make_uint4(a, b, c, d);
}

DEVICE uint4 random_words(const RandomKey& key, u32 quad) {
  return philox(make_uint4(quad, key.position, key.lineage, 0), key.seed_low, key.seed_high);
}

DEVICE u32 word_of(uint4 words, u32 token) {
  u32 k = token & 3;
  return k == 0 ? words.x : k == 1 ? words.y : k == 2 ? words.z : words.w;
}

// 1 - u, exact.
DEVICE float complement(u32 word) { return ((float)(~word >> 9) + 0.5f) * 1.1920928955078125e-7f; }

// Gumbel noise -ln(-ln u), in f32 with an absolute error below 1e-5, and as the draw is decided.
DEVICE float noise_near(u32 word) {
  float u = ((float)(word >> 9) + 0.5f) * 1.1920928955078125e-7f;
  return -__logf(-logf(u));
}
DEVICE double noise_exact(u32 word) {
  double u = ((double)(word >> 9) + 0.5) * 1.1920928955078125e-7;
  return -log(-log(u));
}

// Above every noise: -ln(-ln(1 - 2^-24)) < 16.64.
#define MOST_NOISE 16.65f
