// Attention of the AVX-512 family: bf16 pairs by vdpbf16ps, float32 by fused multiply-adds.
#include "attention/kernels/lanes_avx512.hpp"

namespace kvasir {
namespace {

struct Dot : DotBase, FormBase<Dot> {
  static constexpr bool kRoundsWeights = true;
  static constexpr bool kShortChains = false;
};
using Float = FloatForm<Avx512Lanes, 24, 4>;
constexpr AttentionKernel kFloat{4, copy_floats, run_range<Float>, score_range<Float>, bound_pages<Float>, merge_rows};
constexpr AttentionKernel kBf16{2, copy_bf16, run_range<Dot>, score_range<Dot>, bound_pages<Dot>, merge_rows};

}  // namespace

const AttentionKernel* attention_kernel_avx512(KvType type) { return type == KvType::f32 ? &kFloat : &kBf16; }

}  // namespace kvasir
