// The check of a step: rows, positions, tokens, blocks, pages and sampling lists against the program's limits.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "ops/step.hpp"

namespace kvasir {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw std::runtime_error("Cannot run the step: " + why); }

std::string at(const char* what, size_t index, int64_t value) {
  return std::string(what) + "[" + std::to_string(index) + "] is " + std::to_string(value);
}

template <class T>
void check_length(const Span<T>& span, size_t wanted, const char* what) {
  if (span.size == wanted) return;
  refuse(std::string(what) + " has the wrong length: " + std::to_string(span.size) + ", not " + std::to_string(wanted));
}

void check_within(const Span<int32_t>& span, int limit, const char* what, const char* of) {
  for (size_t i = 0; i < span.size; i++)
    if (span[i] < 0 || span[i] >= limit) refuse(at(what, i, span[i]) + ": outside the " + std::to_string(limit) + " " + of);
}

void check_rows(const StepView& step, const StepLimits& limits) {
  const size_t tokens = step.tokens.size;
  if (tokens > static_cast<size_t>(limits.tokens_max) || step.logit_rows.size > static_cast<size_t>(limits.logit_rows_max)) {
    refuse("it is larger than planned: " + std::to_string(tokens) + " tokens and " + std::to_string(step.logit_rows.size) +
           " logit rows exceed " + std::to_string(limits.tokens_max) + " and " + std::to_string(limits.logit_rows_max));
  }
  check_length(step.positions, tokens, "positions");
  if (step.row_start.size == 0 || step.row_start[0] != 0) refuse("rowStart does not begin with 0");
  const int sequences = step.sequences();
  for (int s = 0; s < sequences; s++) {
    const int begin = step.row_start[s], end = step.row_start[s + 1];
    if (end <= begin) refuse(at("rowStart", s + 1, end) + ": a sequence has at least one row");
    if (static_cast<size_t>(end) > tokens) refuse(at("rowStart", s + 1, end) + ": past the " + std::to_string(tokens) + " tokens");
    for (int row = begin; row < end; row++) {
      const int position = step.positions[row];
      if (position < 0 || position >= limits.context_max) {
        refuse(at("positions", row, position) + ": outside the context of " + std::to_string(limits.context_max));
      }
      if (row > begin && position != step.positions[row - 1] + 1) refuse(at("positions", row, position) + ": not one past the row before");
    }
  }
  for (int s = 0; limits.bidirectional && s < sequences; s++) {
    const int first = step.positions[step.row_start[s]];
    if (first != 0) refuse(at("positions", step.row_start[s], first) + ": rows that attend to all keys begin at 0");
  }
  if (step.token_types.size > 0) check_length(step.token_types, tokens, "tokenTypes");
  for (size_t i = 0; i < step.token_types.size; i++)
    if (step.token_types[i] >= limits.token_types) refuse(at("tokenTypes", i, step.token_types[i]) + ": the embedding has " + std::to_string(limits.token_types));
  if (static_cast<size_t>(step.row_start[sequences]) != tokens) refuse(at("rowStart", sequences, step.row_start[sequences]) + ": not the tokens");
  check_within(step.tokens, limits.table_rows, "tokens", "rows of the embedding table");
}

void check_logit_rows(const StepView& step) {
  for (size_t i = 0; i < step.logit_rows.size; i++) {
    const int row = step.logit_rows[i];
    if (row < 0 || static_cast<size_t>(row) >= step.tokens.size) refuse(at("logitRows", i, row) + ": no such row");
    if (i > 0 && row <= step.logit_rows[i - 1]) refuse(at("logitRows", i, row) + ": not ascending");
  }
}

/**
 * A sequence's listed blocks, all local except `remote` of them, must cover its keys from the first row's window to its
 * last position, since attention reads all of them. Returns the larger of `highest` and their highest page.
 */
int check_sequence_blocks(const StepView& step, const StepGroupView& group, int sequence, const LayerGroup& of, int64_t remote, int pages, int highest) {
  const int first = step.positions[step.row_start[sequence]];
  const int last = step.positions[step.row_start[sequence + 1] - 1];
  const int first_seen = first < of.window ? 0 : first - of.window + 1;
  const int64_t first_block = group.first_block[sequence];
  const std::string name = "sequence " + std::to_string(sequence);
  if (first_block < 0 || first_block * kPageTokens > first_seen) {
    refuse(name + " misses its first blocks: first block " + std::to_string(first_block) + ", first key " + std::to_string(first_seen));
  }
  const int64_t needed = last / kPageTokens + 1 - first_block;
  const int64_t start = group.block_start[sequence];
  if (start < 0 || start + needed > static_cast<int64_t>(group.blocks.size)) {
    refuse(name + " has too few blocks: " + std::to_string(needed) + " needed from " + std::to_string(start) + " of " +
           std::to_string(group.blocks.size));
  }
  const size_t rblocks = group.page_table.size / static_cast<size_t>(group.layers);
  int64_t absent = 0;
  for (int64_t i = start; i < start + needed; i++) {
    const int32_t block = group.blocks[i];
    if (block == kRemoteBlock && remote > 0) {
      absent++;
      continue;
    }
    if (block < 0 || static_cast<size_t>(block) >= rblocks) refuse(at("blocks", i, block) + ": the page table has " + std::to_string(rblocks));
    const int32_t* row = group.page_table.data + static_cast<size_t>(block) * group.layers;
    for (int layer = 0; layer < group.layers; layer++) {
      highest = std::max(highest, row[layer]);
      if (row[layer] >= 0 && row[layer] < pages) continue;
      refuse(at("pageTable", static_cast<size_t>(block) * group.layers + layer, row[layer]) + ": the pool has " + std::to_string(pages) + " pages");
    }
  }
  if (absent != remote) refuse(name + " has " + std::to_string(absent) + " blocks that are not local: remote keys list " + std::to_string(remote));
  return highest;
}

constexpr int kRangeBlocks = kRangeTokens / kPageTokens;

/**
 * The reason why remote keys are invalid; empty if they are valid. Their entries in the block table are checked with
 * the blocks.
 */
std::string remote_keys_error(const StepView& step, const StepLimits& limits, const RemoteKeysView& keys, const RemoteKeysView* before) {
  if (keys.sequence < 0 || keys.sequence >= step.sequences()) return "names sequence " + std::to_string(keys.sequence);
  const bool known = keys.group >= 0 && static_cast<size_t>(keys.group) < limits.groups.size();
  if (!known || limits.groups[keys.group].window != kNoWindow) return "names layer group " + std::to_string(keys.group);
  const int64_t count = static_cast<int64_t>(keys.blocks.size), end = keys.first_block + count;
  if (keys.first_block < 0 || keys.first_block % kRangeBlocks != 0 || count == 0 || count % kRangeBlocks != 0) {
    return "holds no whole ranges: " + std::to_string(count) + " blocks from " + std::to_string(keys.first_block);
  }
  const int first_row = step.positions[step.row_start[keys.sequence]];
  if (end > int64_t{first_row / kRangeTokens} * kRangeBlocks) {
    return "reaches block " + std::to_string(end) + ": the range of position " + std::to_string(first_row) + " is local";
  }
  if (before == nullptr) return "";
  const bool same = before->sequence == keys.sequence && before->group == keys.group;
  const bool behind = before->sequence < keys.sequence || (before->sequence == keys.sequence && before->group < keys.group) ||
                      (same && before->first_block + static_cast<int64_t>(before->blocks.size) <= keys.first_block);
  return behind ? "" : "is not in order";
}

void check_remote(const StepView& step, const StepLimits& limits) {
  for (size_t i = 0; i < step.remote.size(); i++) {
    const std::string why = remote_keys_error(step, limits, step.remote[i], i == 0 ? nullptr : &step.remote[i - 1]);
    if (!why.empty()) refuse("remote[" + std::to_string(i) + "] " + why);
  }
}

/** Number of blocks in a sequence's remote keys, each of which must be marked remote in the block table. */
int64_t remote_blocks(const StepView& step, int sequence, int group_index, const StepGroupView& group) {
  int64_t blocks = 0;
  for (size_t i = 0; i < step.remote.size(); i++) {
    const RemoteKeysView& keys = step.remote[i];
    if (keys.sequence != sequence || keys.group != group_index) continue;
    blocks += static_cast<int64_t>(keys.blocks.size);
    const int64_t start = group.block_start[sequence] + int64_t{keys.first_block} - group.first_block[sequence];
    for (int64_t b = start; b < start + static_cast<int64_t>(keys.blocks.size); b++) {
      if (b < 0 || b >= static_cast<int64_t>(group.blocks.size) || group.blocks[b] != kRemoteBlock) refuse("remote[" + std::to_string(i) + "] holds local blocks");
    }
  }
  return blocks;
}

int check_groups(const StepView& step, const StepLimits& limits) {
  if (step.groups.size() < limits.groups.size()) {
    refuse("layer groups are missing: " + std::to_string(step.groups.size()) + " of " + std::to_string(limits.groups.size()));
  }
  int highest = -1;
  for (size_t g = 0; g < limits.groups.size(); g++) {
    const StepGroupView& group = step.groups[g];
    if (group.layers < limits.groups[g].layers) {
      refuse("layer group " + std::to_string(g) + " has too few layers: " + std::to_string(group.layers) + " of " +
             std::to_string(limits.groups[g].layers));
    }
    check_length(group.block_start, step.sequences(), "blockStart");
    check_length(group.first_block, step.sequences(), "firstBlock");
    for (int s = 0; s < step.sequences(); s++) {
      if (has_slots(step, s, static_cast<int>(g))) continue;
      const int64_t remote = step.remote.empty() ? 0 : remote_blocks(step, s, static_cast<int>(g), group);
      highest = check_sequence_blocks(step, group, s, limits.groups[g], remote, limits.pages, highest);
    }
  }
  return highest;
}

void check_ragged(const Span<int32_t>& start, size_t rows, size_t entries, const char* what) {
  check_length(start, rows + 1, what);
  int32_t before = 0;
  for (size_t i = 0; i <= rows; i++) {
    if (start[i] < before || static_cast<size_t>(start[i]) > entries) refuse(at(what, i, start[i]) + ": not ascending within " + std::to_string(entries));
    before = start[i];
  }
}

/** A row has a bit for each token, or no mask. */
void check_masks(const StepSamplingView& s, size_t rows, int vocabulary) {
  check_ragged(s.mask_start, rows, s.mask_words.size, "masks.start");
  for (size_t i = 0; i < rows; i++) {
    const int words = s.mask_start[i + 1] - s.mask_start[i];
    if (words != 0 && words != mask_words(vocabulary)) refuse(at("masks.start", i, s.mask_start[i]) + ": the mask has " + std::to_string(words) + " words");
  }
}

void check_sampling(const StepSamplingView& s, size_t rows, int vocabulary) {
  check_length(s.temperature, rows, "temperature");
  check_length(s.top_p, rows, "topP");
  check_length(s.top_k, rows, "topK");
  check_length(s.min_p, rows, "minP");
  check_length(s.seed, 2 * rows, "seed");
  check_length(s.token_index, rows, "tokenIndex");
  check_length(s.repetition_penalty, rows, "repetitionPenalty");
  check_length(s.frequency_penalty, rows, "frequencyPenalty");
  check_length(s.presence_penalty, rows, "presencePenalty");
  check_length(s.top_logprobs, rows, "topLogprobs");
  check_length(s.has_target, rows, "hasTarget");
  check_length(s.target, rows, "target");
  check_length(s.seen_counts, s.seen_tokens.size, "seenCounts");
  check_length(s.bias_values, s.bias_tokens.size, "biasValues");
  check_ragged(s.seen_start, rows, s.seen_tokens.size, "seenStart");
  check_ragged(s.bias_start, rows, s.bias_tokens.size, "biasStart");
  check_within(s.seen_tokens, vocabulary, "seenTokens", "tokens of the vocabulary");
  check_within(s.bias_tokens, vocabulary, "biasTokens", "tokens of the vocabulary");
  check_within(s.top_logprobs, kTopLogprobsMax + 1, "topLogprobs", "allowed counts");
  if (s.mask_start.size > 0) check_masks(s, rows, vocabulary);
  for (size_t i = 0; i < rows; i++)
    if (s.has_target[i] && (s.target[i] < 0 || s.target[i] >= vocabulary)) refuse(at("target", i, s.target[i]) + ": not in the vocabulary");
}

void check_arriving(const StepView& step) {
  for (size_t i = 0; i < step.arriving.size(); i++)
    if (step.arriving[i].sequence >= step.sequences()) refuse(at("arriving.sequence", i, step.arriving[i].sequence) + ": no such sequence");
}

}  // namespace

int check_step(const StepView& step, const StepLimits& limits) {
  check_rows(step, limits);
  check_logit_rows(step);
  check_remote(step, limits);
  check_arriving(step);
  const int highest = std::max(check_groups(step, limits), step.any_sparse() ? check_sparse(step, limits) : -1);
  if (limits.vocabulary > 0) check_sampling(step.sampling, step.logit_rows.size, limits.vocabulary);
  return highest + 1;
}

SamplingArgs StepSamplingView::args() const {
  return {temperature.data,        top_p.data,       top_k.data,       min_p.data,      seed.data,
          token_index.data,        repetition_penalty.data, frequency_penalty.data, presence_penalty.data, seen_start.data,
          seen_tokens.data,        seen_counts.data, bias_start.data,  bias_tokens.data, bias_values.data,
          top_logprobs.data,       has_target.data,  target.data,     mask_start.size > 0 ? mask_start.data : nullptr, mask_words.data};
}

}  // namespace kvasir
