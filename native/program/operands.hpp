// Operands of ops: buffers, vectors and layers, read from the encoded form and checked once.
#pragma once
#include <algorithm>

#include "program/program.hpp"

namespace kvasir {

inline void require(bool holds, const std::string& otherwise) {
  if (!holds) EncodedReader::refuse(otherwise);
}

inline std::string differ(const char* what, int64_t is, int64_t wanted) {
  return std::string(what) + ": " + std::to_string(is) + ", not " + std::to_string(wanted);
}

inline const Buffer* read_buffer(EncodedReader& in, const ProgramPlan& plan, const char* what, bool optional = false) {
  const int id = in.integer(what, optional ? -1 : 0, static_cast<int64_t>(plan.buffers.size()));
  return id < 0 ? nullptr : &plan.buffers[id];
}

inline const Buffer* read_plain(EncodedReader& in, const ProgramPlan& plan, const char* what, bool optional = false) {
  const Buffer* buffer = read_buffer(in, plan, what, optional);
  require(!buffer || buffer->kind == BufferKind::f32, std::string(what) + " is not a float32 buffer");
  return buffer;
}

inline void require_same_rows(const Buffer& a, const Buffer& b) { require(a.logit_rows == b.logit_rows, "an op mixes token rows and logit rows"); }

inline void require_columns(const Buffer& buffer, int64_t columns, const char* what) {
  require(buffer.columns == columns, differ(what, buffer.columns, columns));
}

/** A bound vector of at least `length` values; null if optional and absent. */
inline const FloatVector* read_vector(EncodedReader& in, const ProgramPlan& plan, const char* what, size_t length, bool optional) {
  const int id = in.integer(what, optional ? -1 : 0, static_cast<int64_t>(plan.bindings.vectors.size()));
  if (id < 0) return nullptr;
  const FloatVector* vector = plan.bindings.vectors[id].get();
  require(vector->size() >= length, differ(what, static_cast<int64_t>(vector->size()), static_cast<int64_t>(length)));
  return vector;
}

inline const float* data_of(const FloatVector* vector) { return vector ? vector->data() : nullptr; }

/** Layer and heads of an op that uses pages. */
struct PagedLayer {
  int group, index, heads, kv_heads, head_dim;

  PagedLayer(EncodedReader& in, ProgramPlan& plan)
      : group(in.integer("layer group", 0, 1 << 16)),
        index(in.integer("layer", 0, 1 << 16)),
        heads(in.size("heads")),
        kv_heads(in.size("kvHeads")),
        head_dim(in.size("headDim")) {
    require(heads % kv_heads == 0, differ("heads are no multiple of kvHeads", heads, kv_heads));
    KvLayout& layout = plan.layout;
    require(layout.kv_heads == 0 || (layout.kv_heads == kv_heads && layout.head_dim == head_dim), "layers differ in kvHeads or headDim");
    layout.kv_heads = kv_heads;
    layout.head_dim = head_dim;
    require(layout.refusal().empty(), layout.refusal());
    const std::vector<LayerGroup>& groups = plan.limits.groups;
    require(static_cast<size_t>(group) < groups.size(), differ("layer group", group, static_cast<int64_t>(groups.size())) + " groups");
    require(index < groups[group].layers, differ("layer of a group", index, groups[group].layers) + " layers");
  }

  void require_query(const Buffer& q, const ProgramPlan& plan) const {
    require(q.kind == BufferKind::query && !q.logit_rows, "q is not a query buffer of token rows");
    require(q.heads == heads && q.head_dim == head_dim, "q has other heads than its op");
    require(q.kv_type == plan.layout.type, "q has another type than the pages");
    require_columns(q, static_cast<int64_t>(heads) * head_dim, "columns of q");
  }

  AttentionArgs args(const StepState& s, float scale) const {
    const StepGroupView& g = s.step->groups[group];
    const std::vector<AttentionSequence>& sequences = (*s.groups)[group];
    return {s.pool->isa, s.pool->layout, s.pool->data(), g.page_table.data, g.layers, index, heads, scale, sequences.data(),
            s.step->sequences(), s.tokens, kNoWindow, 0.0f, nullptr};
  }
};

/** The rope table of an op that rotates heads. */
struct Rotation {
  const float* rope;  // null: no rotation
  int rotary_dim;

  Rotation(EncodedReader& in, const ProgramPlan& plan, int head_dim) {
    const int id = in.integer("rope", -1, static_cast<int64_t>(plan.bindings.vectors.size()));
    rotary_dim = in.integer("rotaryDim", 0, static_cast<int64_t>(head_dim) + 1);
    rope = id < 0 ? nullptr : plan.bindings.vectors[id]->data();
    if (!rope) return;
    require(rotary_dim > 0 && rotary_dim % 2 == 0, "rotaryDim is not an even number above 0");
    const size_t positions = plan.bindings.vectors[id]->size() / static_cast<size_t>(rotary_dim);
    require(positions >= static_cast<size_t>(plan.limits.context_max), differ("positions of the rope table", positions, plan.limits.context_max));
  }
};

}  // namespace kvasir
