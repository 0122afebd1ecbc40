// Attention of the AMX family: tile.hpp over AMX tiles.
#include "attention/kernels/amx.hpp"

namespace kvasir {
namespace {

constexpr AttentionKernel kBf16{2, copy_bf16, run_range<Tiles>, score_range<Tiles>, bound_pages<Tiles>, merge_rows};

}  // namespace

const AttentionKernel* attention_kernel_amx() { return &kBf16; }

}  // namespace kvasir
