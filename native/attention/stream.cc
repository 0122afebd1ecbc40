// One range of keys for one tile, by the kernel of this machine.
#include "attention/stream.hpp"

#include "simd/amx_tiles.hpp"

namespace kvasir {
namespace {

// Bytes of K and V between a prefetch and its use; more would only pollute the L1 cache. Kernels of q8 prefetch to the L2
// cache, a whole range ahead: memory is read while weights are computed too.
constexpr size_t kPrefetchBytes = 8192;
constexpr int kNearPages = 2;

}  // namespace

const AttentionKernel& find_attention_kernel([[maybe_unused]] Isa isa, const KvLayout& layout) {
#if defined(KVASIR_HAVE_AVX512)
  [[maybe_unused]] bool tiles = isa == Isa::amx && layout.type == KvType::bf16 && layout.head_dim % 16 == 0;
  if (tiles && amx_emulated()) return *attention_kernel_amx_emulated();
#if defined(KVASIR_HAVE_AMX)
  if (tiles) return *attention_kernel_amx();
#endif
  if (isa >= Isa::avx512) return *attention_kernel_avx512(layout.type);
#endif
#if defined(KVASIR_HAVE_AVX2)
  if (isa >= Isa::avx2) return *attention_kernel_avx2(layout.type);
#endif
  return *attention_kernel_portable(layout.type);
}

void TileStream::run_range(const TileRows& tile, int kv_head, int range, int end_block, const StreamWorkspace& workspace, const PartialRows& out) const {
  const AttentionSequence& sequence = *tile.sequence;
  int first_block = std::max(range * kRangePages, tile.first_block);
  int range_end = std::min((range + 1) * kRangePages, end_block);
  size_t head_bytes = args_.layout.page_bytes() / args_.layout.kv_heads;
  size_t head_offset = head_bytes * kv_head;
  const uint8_t* pages[kRangePages + kPrefetchPages];
  for (int i = 0; i < range_end - first_block + kPrefetchPages; i++) {
    int block = std::min(first_block + i, end_block - 1);
    pages[i] = args_.page(sequence, block) + head_offset;
  }
  RangeWork work{};
  work.head_dim = shape.head_dim;
  work.group = shape.group;
  work.tokens = tile.tokens;
  work.first_position = sequence.bidirectional ? tile.end_key() - 1 : sequence.start + tile.token;
  work.end_key = tile.end_key();
  work.window = args_.window;
  work.scale = args_.scale;
  work.softcap = args_.softcap;
  work.slopes = args_.slopes == nullptr ? nullptr : args_.slopes + static_cast<size_t>(kv_head) * shape.group;
  work.first_key = first_block * kPageTokens;
  work.page_count = range_end - first_block;
  work.pages = pages;
  work.prefetch_pages = args_.layout.type == KvType::q8 ? kPrefetchPages : head_bytes < kPrefetchBytes ? kNearPages : 1;
  work.query = workspace.query;
  work.o_stride = shape.o_stride;
  work.scores = workspace.scores;
  work.weights = workspace.weights;
  work.o = out.o;
  work.max = out.max;
  work.sum = out.sum;
  kernel_.run_range(work);
}

}  // namespace kvasir
