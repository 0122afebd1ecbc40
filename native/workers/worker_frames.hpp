// Wire format between a model worker and an attention worker, version 3, little-endian. After the handshake of the
// connection both sides describe themselves; then steps, queries, keys and pages go one way, attention results and
// heartbeats the other.
#pragma once
#include <vector>

#include "attention/attention.hpp"
#include "net/message.hpp"
#include "ops/step.hpp"

namespace kvasir {

constexpr uint32_t kWorkerWireVersion = 3;

/**
 * Bits of an owner that count the generations of links; the others are drawn at random for each process. Links of one
 * owner share the pages. Those of another process are refused meanwhile. A later generation of the process ends the
 * links of earlier ones, whose last frames may still be on their way.
 */
constexpr uint64_t kOwnerGenerations = 0xffff;

/** The first message of a model worker. */
struct ModelWorkerHello {
  static constexpr uint32_t kMagic = 0x6d617677;
  uint32_t magic = kMagic;
  uint32_t version = kWorkerWireVersion;
  uint64_t owner;     // a process and a generation of its links, below
  uint64_t checksum;  // of the fields before it
};

/** The answer of an attention worker. */
struct WorkerHello {
  static constexpr uint32_t kMagic = 0x68617677;
  uint32_t magic = kMagic;
  uint32_t version = kWorkerWireVersion;
  int32_t isa;
  int32_t pages;
  uint32_t is_taken;  // 1: links of another owner are open, and the connection ends
  uint32_t unused;
  uint64_t checksum;  // of the fields before it
};

enum class WorkerFrameKind : uint32_t { step = 1, query = 2, keys = 3, pages = 4 };

/**
 * How attention over earlier keys and over keys of the step combine. `ranges`: partials of 256-key ranges merge in the
 * tree of one pool, with its bits. `prev_new`: a sequence of one row has one partial of all earlier keys and one of its
 * own key, combined as (A1 S1 + A2 S2) / (S1 + S2) (Lamina, section 4.2). Other sequences are computed as in `ranges`.
 */
enum class AttentionForm : uint32_t { ranges = 0, prev_new = 1 };

/**
 * From the model worker. `step`: its body has `words` integers (below). `query`: slopes (float32), then `rows` query
 * rows of the shard's heads in the KV type. `keys`: `rows` rows of K of the shard's KV heads, then V of them, in the KV
 * type. `pages`: numbers of `rows` pages, then the pages, which were computed elsewhere; a result without rows answers
 * when they are stored. A body is closed by its checksum.
 */
struct WorkerFrame {
  static constexpr uint32_t kMagic = 0x66617677;
  uint32_t magic = kMagic;
  uint32_t version = kWorkerWireVersion;
  WorkerFrameKind kind;
  uint32_t step;       // number of the step, or of the frame of pages, from 1; frames of another step are refused
  int32_t call;        // number of the attention call within the step, from 0
  int32_t group;       // layer group
  int32_t layer;       // index of the layer in its group
  int32_t heads;       // query heads of the shard
  AttentionForm form;  // of a query
  int32_t rows;        // of the step
  uint32_t words;      // of a step, or page numbers
  uint32_t slopes;     // 0, or one for each head
  float scale, softcap;
  uint64_t bytes;      // of the body without slopes, page numbers and checksum
  uint64_t checksum;   // of the fields before it
};

enum class AttentionFrameKind : uint32_t { result = 1, heartbeat = 2 };

/**
 * From the attention worker. `result`: `rows` rows of normalised attention, (heads, headDim) in float32, and their
 * checksum. `heartbeat`: its threads have computed something since the last frame while the call waits for its result.
 */
struct AttentionFrame {
  static constexpr uint32_t kMagic = 0x72617677;
  uint32_t magic = kMagic;
  uint32_t version = kWorkerWireVersion;
  AttentionFrameKind kind = AttentionFrameKind::result;
  uint32_t step;
  int32_t call;
  uint32_t unused = 0;
  uint64_t bytes;
  uint64_t early_nanoseconds;  // of attention before the keys arrived
  uint64_t late_nanoseconds;   // of attention after that
  uint64_t checksum;           // of the fields before it
};

static_assert(sizeof(ModelWorkerHello) == 24 && sizeof(WorkerHello) == 32 && sizeof(WorkerFrame) == 72 && sizeof(AttentionFrame) == 56, "wire structures have no padding");

/** The largest values of a frame, checked before memory is allocated. */
constexpr int kWorkerRowsMost = 1 << 16;
constexpr uint32_t kWorkerWordsMost = 1 << 26;
/** Pages of a frame have at most this size, if there are several. */
constexpr uint64_t kWorkerPagesBytesMost = uint64_t{1} << 20;

template <class Header>
uint64_t worker_checksum(const Header& header) {
  return header_checksum(header, 21);
}
template <class Header>
bool is_valid_worker_header(const Header& header) {
  return header.magic == Header::kMagic && header.version == kWorkerWireVersion && header.checksum == worker_checksum(header);
}

/** Sequences of a step in one layer group. */
struct ShardGroup {
  int layers = 0;
  int window = kNoWindow;
  std::vector<int32_t> first_block;  // (sequences)
  std::vector<int32_t> block_start;  // (sequences + 1)
  std::vector<int32_t> blocks;
  std::vector<int32_t> changed;      // blocks whose pages the attention worker does not have yet
  std::vector<int32_t> pages;        // (changed, layers)
};

/**
 * An entry of Step.sparse, Step.selections or Step.pageSelections: its numbers (a float as its bits) and its lists, in
 * the order of the views in ops/step.hpp.
 */
struct ShardSparse {
  std::vector<int32_t> numbers;
  std::vector<std::vector<int32_t>> lists;
};

/** The sparse sequences of a step; empty for most. */
struct ShardSparseEntries {
  std::vector<ShardSparse> slots, selections, page_selections;

  bool empty() const { return slots.empty() && selections.empty() && page_selections.empty(); }
  /** Adds those of the sequences that `index_of` maps to 0 or more; page numbers grow by `page_offset`. */
  void add(const StepView& step, const std::vector<int>& index_of, int page_offset);
  /** Adds views of the lists to `step`. False if a number is outside its bounds. */
  bool view(StepView& step) const;
};

/** A step as its integers: rows of each sequence, their first position, and the blocks and window of each layer group. */
struct ShardStep {
  std::vector<int32_t> row_start;  // (sequences + 1)
  std::vector<int32_t> positions;  // (sequences): of the first row
  std::vector<ShardGroup> groups;
  ShardSparseEntries sparse;

  int sequences() const { return static_cast<int>(positions.size()); }
  std::vector<int32_t> encode() const;
  /** False if the integers describe no step of `rows` rows over `pages` pages. */
  bool decode(const std::vector<int32_t>& words, int rows, int pages);
};

}  // namespace kvasir
