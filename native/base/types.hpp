// Types that the kernels share: instruction sets, stored types, input forms.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvasir {

enum class Isa : int { portable = 0, avx2 = 1, avx512 = 2, amx = 3 };
enum class TensorType : int {
  f32 = 0, f16 = 1, bf16 = 2, q4_0 = 3, q4_1 = 4, q8_0 = 5,
  q5_0 = 6, q5_1 = 7, q2_k = 8, q3_k = 9, q4_k = 10, q5_k = 11, q6_k = 12,
};
constexpr int kTensorTypes = 13;
enum class InputForm : int { f32 = 0, bf16 = 1, int8 = 2, i16 = 3 };
constexpr int kInputForms = 4;

/** True if inputs are integers in blocks, which need quantised weights. */
constexpr bool is_integer(InputForm form) { return form >= InputForm::int8; }

/** Types of K and V in pages. q8: 8-bit integers, with a bf16 scale for every 32 dimensions of a token. */
enum class KvType : int { bf16 = 0, f32 = 1, q8 = 2 };
constexpr int kKvTypes = 3;
enum class NormStyle : int { rms = 0, layer = 1 };
enum class Activation : int { silu = 0, gelu = 1, gelu_tanh = 2, relu = 3 };

constexpr int kPageTokens = 32;    // tokens of a page
constexpr int kNoWindow = INT32_MAX;  // larger than any context
constexpr int32_t kRemoteBlock = -1;   // in a block table: the block is at a creditor
constexpr int kRangeTokens = 256;  // keys of one attention range, which starts at a multiple of it

/**
 * The best instruction set of this machine, bounded by KVASIR_ISA. amx requires tile state from the kernel; avx512
 * means F, BW, VL, DQ, VNNI and BF16.
 */
Isa detect_isa();

}  // namespace kvasir
