// Attention of the AMX family on emulated tiles: tests check its logic and bits on machines without AMX.
#define KVASIR_AMX_EMULATED
#include "attention/kernels/amx.hpp"

namespace kvasir {
namespace {

constexpr AttentionKernel kBf16{2, copy_bf16, run_range<Tiles>, score_range<Tiles>, bound_pages<Tiles>, merge_rows};

}  // namespace

const AttentionKernel* attention_kernel_amx_emulated() { return &kBf16; }

}  // namespace kvasir
