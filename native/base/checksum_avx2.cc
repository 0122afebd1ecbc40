// The checksum with AVX2: four lanes per register.
#include <immintrin.h>

#include "base/checksum.hpp"

namespace kvasir {
namespace {

__m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
void store(void* to, __m256i value) { _mm256_storeu_si256(static_cast<__m256i*>(to), value); }

__m256i add(__m256i sum, __m256i words, __m256i key) {
  const __m256i keyed = _mm256_add_epi64(words, key);
  const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
  constexpr int kSwapWords = 0x4e;
  return _mm256_add_epi64(sum, _mm256_add_epi64(product, _mm256_shuffle_epi32(words, kSwapWords)));
}

}  // namespace

void checksum_stripes_avx2(ChecksumLanes& lanes, uint8_t* to, const uint8_t* from, size_t stripes) {
  const __m256i step = _mm256_set1_epi64x(static_cast<int64_t>(kChecksumStep));
  __m256i key0 = load(lanes.key), key1 = load(lanes.key + 4), sum0 = load(lanes.sum), sum1 = load(lanes.sum + 4);
  for (size_t s = 0; s < stripes; s++, from += kChecksumStripe) {
    const __m256i low = load(from), high = load(from + 32);
    _mm_prefetch(reinterpret_cast<const char*>(from + kChecksumPrefetchBytes), _MM_HINT_T0);
    if (to != nullptr) {
      store(to + s * kChecksumStripe, low);
      store(to + s * kChecksumStripe + 32, high);
    }
    sum0 = add(sum0, low, key0);
    sum1 = add(sum1, high, key1);
    key0 = _mm256_add_epi64(key0, step);
    key1 = _mm256_add_epi64(key1, step);
  }
  store(lanes.key, key0);
  store(lanes.key + 4, key1);
  store(lanes.sum, sum0);
  store(lanes.sum + 4, sum1);
}

}  // namespace kvasir
