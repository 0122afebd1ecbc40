// The checksum with AVX-512: all eight lanes in one register.
#include <immintrin.h>

#include "base/checksum.hpp"

namespace kvasir {
namespace {

__m512i load(const void* from) { return _mm512_loadu_si512(from); }
void store(void* to, __m512i value) { _mm512_storeu_si512(to, value); }

/** What a stripe adds to the sums. */
__m512i summand(__m512i words, __m512i key) {
  const __m512i keyed = _mm512_add_epi64(words, key);
  const __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
  return _mm512_add_epi64(product, _mm512_shuffle_epi32(words, _MM_PERM_BADC));
}

template <bool kCopies>
void add_stripes(ChecksumLanes& lanes, uint8_t* to, const uint8_t* from, size_t stripes) {
  const __m512i step = _mm512_set1_epi64(static_cast<int64_t>(kChecksumStep)), step2 = _mm512_add_epi64(step, step);
  // Two stripes at a time: addition is commutative.
  __m512i key0 = load(lanes.key), key1 = _mm512_add_epi64(key0, step), sum0 = load(lanes.sum), sum1 = _mm512_setzero_si512();
  const auto take = [&](size_t stripe) {
    const size_t at = stripe * kChecksumStripe;
    _mm_prefetch(reinterpret_cast<const char*>(from + at + kChecksumPrefetchBytes), _MM_HINT_T0);
    const __m512i words = load(from + at);
    if (kCopies) store(to + at, words);
    return words;
  };
  size_t s = 0;
  for (; s + 2 <= stripes; s += 2) {
    sum0 = _mm512_add_epi64(sum0, summand(take(s), key0));
    sum1 = _mm512_add_epi64(sum1, summand(take(s + 1), key1));
    key0 = _mm512_add_epi64(key0, step2);
    key1 = _mm512_add_epi64(key1, step2);
  }
  if (s < stripes) {
    sum0 = _mm512_add_epi64(sum0, summand(take(s), key0));
    key0 = key1;
  }
  store(lanes.key, key0);
  store(lanes.sum, _mm512_add_epi64(sum0, sum1));
}

}  // namespace

void checksum_stripes_avx512(ChecksumLanes& lanes, uint8_t* to, const uint8_t* from, size_t stripes) {
  if (to != nullptr) add_stripes<true>(lanes, to, from, stripes);
  else add_stripes<false>(lanes, to, from, stripes);
}

}  // namespace kvasir
