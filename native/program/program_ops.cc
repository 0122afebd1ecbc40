// The ops of a program: each checks its operands once, when decoded, and runs without checks.
#include <algorithm>
#include <numeric>

#include "program/operands.hpp"
#include "program/row_ops.hpp"
#include "program/worker_ops.hpp"

namespace kvasir {
namespace {

const Linear* read_linear(EncodedReader& in, const ProgramPlan& plan, const char* what) {
  return plan.bindings.linears[in.integer(what, 0, static_cast<int64_t>(plan.bindings.linears.size()))].get();
}

Activation read_activation(EncodedReader& in) { return static_cast<Activation>(in.integer("activation", 0, 4)); }

struct Embed final : ProgramOp {
  const Linear* table;
  const Buffer* out;
  const float* position_table;
  int offset;
  size_t stride;
  float scale;

  Embed(EncodedReader& in, ProgramPlan& plan)
      : table(read_linear(in, plan, "embedding table")), out(read_buffer(in, plan, "embed.out")) {
    require_columns(*out, table->columns, "columns of embed.out");
    require(!out->logit_rows, "embed.out has logit rows");
    plan.limits.table_rows = std::min(plan.limits.table_rows, table->rows);
    offset = in.integer("embed.positions.offset", 0, INT32_MAX);
    const int types = in.integer("embed.positions.types", 1, 256);
    stride = static_cast<size_t>(plan.limits.context_max) + static_cast<size_t>(offset);
    const size_t positions = static_cast<size_t>(types) * stride;
    position_table = data_of(read_vector(in, plan, "embed.positions.table", positions * static_cast<size_t>(out->columns), true));
    plan.limits.token_types = types;
    scale = in.real("embed.scale");
  }
  void run(const StepState& s) const override {
    run_embed(s.op, {*table, scale, position_table, offset, s.step->tokens.data, s.step->positions.data, s.step->token_types.data, stride}, s.tokens, *out);
  }
};

struct Norm final : ProgramOp {
  NormArgs args;
  const Buffer *x, *residual, *out;

  Norm(EncodedReader& in, ProgramPlan& plan) {
    args.style = static_cast<NormStyle>(in.integer("norm.style", 0, 2));
    x = read_plain(in, plan, "norm.x");
    residual = read_plain(in, plan, "norm.residual", true);
    args.gain = data_of(read_vector(in, plan, "norm.gain", x->columns, false));
    args.bias = data_of(read_vector(in, plan, "norm.bias", x->columns, true));
    out = read_buffer(in, plan, "norm.out");
    args.eps = in.real("norm.eps");
    require_columns(*out, x->columns, "columns of norm.out");
    require_same_rows(*x, *out);
    if (residual) require_columns(*residual, x->columns, "columns of norm.residual");
    if (residual) require_same_rows(*x, *residual);
  }
  void run(const StepState& s) const override { run_norm(s.op, args, *x, residual, s.rows(*x), *out); }
};

struct Product final : ProgramOp {
  const Linear* weight;
  const float* bias;
  const Buffer *x, *out;

  Product(EncodedReader& in, ProgramPlan& plan) : weight(read_linear(in, plan, "linear.weight")) {
    bias = data_of(read_vector(in, plan, "linear.bias", weight->rows, true));
    x = read_buffer(in, plan, "linear.x");
    out = read_plain(in, plan, "linear.out");
    require(x->kind == BufferKind::input && x->form == weight->inputs, "linear.x is not an input buffer of the layer's form");
    require(weight->isa == plan.bindings.backend->isa, "a linear layer was packed for another instruction set");
    require_columns(*x, weight->columns, "columns of linear.x");
    require_columns(*out, weight->rows, "columns of linear.out");
    require_same_rows(*x, *out);
  }
  void run(const StepState& s) const override {
    const int rows = s.rows(*x);
    if (rows > 0) weight->run(s.op.pool, x->data, rows, bias, out->row(0), static_cast<size_t>(out->columns));
  }
};

struct Glu final : ProgramOp {
  Activation activation;
  const Buffer *x, *out;

  Glu(EncodedReader& in, ProgramPlan& plan)
      : activation(read_activation(in)), x(read_plain(in, plan, "glu.x")), out(read_buffer(in, plan, "glu.out")) {
    require_columns(*x, 2 * static_cast<int64_t>(out->columns), "columns of glu.x");
    require_same_rows(*x, *out);
  }
  void run(const StepState& s) const override { run_glu(s.op, activation, *x, s.rows(*x), *out); }
};

struct Activate final : ProgramOp {
  Activation activation;
  const Buffer *x, *out;

  Activate(EncodedReader& in, ProgramPlan& plan)
      : activation(read_activation(in)), x(read_plain(in, plan, "activate.x")), out(read_buffer(in, plan, "activate.out")) {
    require_columns(*out, x->columns, "columns of activate.out");
    require_same_rows(*x, *out);
  }
  void run(const StepState& s) const override { run_activate(s.op, activation, *x, s.rows(*x), *out); }
};

struct Add final : ProgramOp {
  const Buffer *x, *residual;

  Add(EncodedReader& in, ProgramPlan& plan) : x(read_plain(in, plan, "add.x")), residual(read_plain(in, plan, "add.residual")) {
    require_columns(*residual, x->columns, "columns of add.residual");
    require_same_rows(*x, *residual);
  }
  void run(const StepState& s) const override { run_add(s.op, *x, s.rows(*x), *residual); }
};

struct Softcap final : ProgramOp {
  const Buffer* x;
  float cap;

  Softcap(EncodedReader& in, ProgramPlan& plan) : x(read_plain(in, plan, "softcap.x")), cap(in.real("softcap.cap")) {
    require(cap > 0, "softcap.cap is not above 0");
  }
  void run(const StepState& s) const override { run_softcap(s.op, cap, *x, s.rows(*x)); }
};

struct Convert final : ProgramOp {
  const Buffer *x, *out;

  Convert(EncodedReader& in, ProgramPlan& plan) : x(read_plain(in, plan, "convert.x")), out(read_buffer(in, plan, "convert.out")) {
    require_columns(*out, x->columns, "columns of convert.out");
    require_same_rows(*x, *out);
  }
  void run(const StepState& s) const override { run_convert(s.op, *x, s.rows(*x), *out); }
};

struct Gather final : ProgramOp {
  const Buffer *x, *out;

  Gather(EncodedReader& in, ProgramPlan& plan) : x(read_plain(in, plan, "gather.x")), out(read_buffer(in, plan, "gather.out")) {
    require_columns(*out, x->columns, "columns of gather.out");
    require(!x->logit_rows && out->logit_rows, "gather goes from token rows to logit rows");
  }
  void run(const StepState& s) const override { run_gather(s.op, *x, s.step->logit_rows.data, s.logit_rows, *out); }
};

struct Qkv final : ProgramOp {
  PagedLayer layer;
  Rotation rotation;
  const float *q_norm, *k_norm;
  float eps;
  const Buffer *x, *out;

  Qkv(EncodedReader& in, ProgramPlan& plan) : layer(in, plan), rotation(in, plan, layer.head_dim) {
    q_norm = data_of(read_vector(in, plan, "qkv.qNorm", layer.head_dim, true));
    k_norm = data_of(read_vector(in, plan, "qkv.kNorm", layer.head_dim, true));
    x = read_plain(in, plan, "qkv.x");
    out = read_buffer(in, plan, "qkv.out");
    eps = in.real("qkv.eps");
    require_columns(*x, (layer.heads + 2 * static_cast<int64_t>(layer.kv_heads)) * layer.head_dim, "columns of qkv.x");
    require(!x->logit_rows, "qkv.x has logit rows");
    layer.require_query(*out, plan);
  }
  void run(const StepState& s) const override {
    QkvArgs args = {layer.heads, rotation.rotary_dim, rotation.rope, q_norm, k_norm, eps, s.step->positions.data, s.row_sequence};
    std::vector<uint8_t> staged;
    if (!s.step->sparse.empty()) {
      staged.resize(static_cast<size_t>(s.step->sequences()));
      for (const SparseKeysView& keys : s.step->sparse)
        if (keys.group == layer.group) staged[static_cast<size_t>(keys.sequence)] = 1;
      args.staged_sequences = staged.data();
      args.staged = s.sparse->staged_rows(s.pool->layout);
    }
    run_qkv(s.op, args, layer.args(s, 1.0f), *x, *out);
  }
};

/**
 * LAYER_READY: keys and values of the first `layers` layers are in their pages and may be sent while the next layers
 * compute.
 */
struct LayerReady final : ProgramOp {
  int layers;

  LayerReady(EncodedReader& in, ProgramPlan& plan) : layers(in.size("layerReady.layers")) {
    plan.ready_layers++;
    require(layers == plan.ready_layers, differ("layers ready", layers, plan.ready_layers) + ": LAYER_READY ops must be in order");
  }
  void run(const StepState& s) const override { s.pool->progress.ready(static_cast<uint32_t>(layers)); }
};

/** WAIT_LAYER: waits for a layer's pages that other steps or other instances have computed and that are in transfer. */
struct WaitLayer final : ProgramOp {
  int layer;

  WaitLayer(EncodedReader& in, ProgramPlan&) : layer(in.integer("waitLayer.layer", 0, 1 << 16)) {}
  void run(const StepState& s) const override { s.waits->await(layer, *s.pool, *s.backend, s.abort); }
};

struct Attention final : ProgramOp {
  PagedLayer layer;
  const Buffer *q, *max, *sum, *out;
  int window;
  const float* slopes;
  float scale, softcap;

  Attention(EncodedReader& in, ProgramPlan& plan)
      : layer(in, plan),
        q(read_buffer(in, plan, "attention.q")),
        max(read_plain(in, plan, "attention.max", true)),
        sum(read_plain(in, plan, "attention.sum", true)),
        out(read_buffer(in, plan, "attention.out")),
        window(plan.limits.groups[layer.group].window),
        slopes(data_of(read_vector(in, plan, "attention.slopes", layer.heads, true))),
        scale(in.real("attention.scale")),
        softcap(in.real("attention.softcap")) {
    if (slopes) plan.limits.has_slopes = true;
    const int wanted = in.integer("attention.window", -1, INT32_MAX);
    require((wanted < 0 ? kNoWindow : wanted) == window, differ("window of an attention op", wanted, window) + " as its group has");
    require(softcap >= 0, "attention.softcap is negative");
    if (in.integer("attention.bidirectional", 0, 2) == 1) plan.bidirectional = plan.limits.bidirectional = true;
    require(!plan.bidirectional || (window == kNoWindow && !slopes), "bidirectional attention has a window or ALiBi slopes");
    layer.require_query(*q, plan);
    require_columns(*out, q->columns, "columns of attention.out");
    require_same_rows(*q, *out);
    require((max == nullptr) == (sum == nullptr), "attention has only one of max and sum");
    if (max) {
      require(out->kind == BufferKind::f32, "attention with statistics writes float32");
      require_columns(*max, layer.heads, "columns of attention.max");
      require_columns(*sum, layer.heads, "columns of attention.sum");
      require_same_rows(*q, *max);
      require_same_rows(*q, *sum);
    }
    const size_t bytes = attention_scratch_bytes(plan.bindings.backend->isa, plan.layout, layer.heads, plan.bindings.backend->pool.size(),
                                                 plan.limits.tokens_max, plan.limits.context_max);
    plan.attention_bytes = std::max(plan.attention_bytes, bytes);
    if (out->kind != BufferKind::f32) plan.attention_out_columns = std::max(plan.attention_out_columns, static_cast<size_t>(out->columns));
  }
  void run(const StepState& s) const override {
    Buffer plain;
    plain.columns = out->columns;
    plain.data = reinterpret_cast<uint8_t*>(s.attention_out);
    const bool rounds = out->kind != BufferKind::f32;
    float* values = rounds ? s.attention_out : out->row(0);
    AttentionArgs args = layer.args(s, scale);
    args.window = window;
    args.softcap = softcap;
    args.slopes = slopes;
    StreamOutput to = {values, max ? max->row(0) : nullptr, sum ? sum->row(0) : nullptr};
    const bool sparse = s.step->any_sparse() && s.sparse->any(layer.group);
    if (sparse && !max) {
      float* statistics = s.sparse->statistics(layer.heads);
      to = {values, statistics, statistics + static_cast<size_t>(s.tokens) * layer.heads, true};
    }
    const RemoteAttentionCall call = {args, q->data, to, layer.group, *s.backend, s.attention_scratch, s.abort};
    if (s.remote->any(layer.group)) {
      s.remote->run(call);
    } else if (sparse || s.waits->any_failed()) {
      std::vector<int> all(static_cast<size_t>(s.step->sequences()));
      std::iota(all.begin(), all.end(), 0);
      run_local(call, (*s.groups)[layer.group], all, s.failed_sequences);
    } else {
      run_attention(s.op.pool, args, q->data, to, s.attention_scratch);
    }
    if (sparse && !s.remote->aborted()) {
      const SparseAttentionCall rest = {args, s.op.pool, q->data, to, layer.group, s.attention_scratch};
      s.sparse->attend(rest);
      s.sparse->select(rest);
    }
    if (rounds) run_convert(s.op, plain, s.tokens, *out);
  }
};

struct Merge final : ProgramOp {
  int heads, head_dim;
  const Buffer* out;
  std::vector<const Buffer*> buffers;  // o, max and sum of each part

  Merge(EncodedReader& in, ProgramPlan& plan)
      : heads(in.size("merge.heads")), head_dim(in.size("merge.headDim")), out(read_buffer(in, plan, "merge.out")) {
    const int64_t columns = static_cast<int64_t>(heads) * head_dim;
    require_columns(*out, columns, "columns of merge.out");
    const int count = in.integer("merge.parts", 1, 1 << 16);
    for (int i = 0; i < 3 * count; i++) {
      const Buffer* part = read_plain(in, plan, "a part of merge");
      require_columns(*part, i % 3 == 0 ? columns : heads, "columns of a part of merge");
      require_same_rows(*part, *out);
      buffers.push_back(part);
    }
    if (out->kind != BufferKind::f32) {
      require(!out->logit_rows, "merge rounds token rows only");
      plan.attention_out_columns = std::max(plan.attention_out_columns, static_cast<size_t>(columns));
    }
  }
  void run(const StepState& s) const override {
    std::vector<Partial> given;
    for (size_t i = 0; i < buffers.size(); i += 3) given.push_back({buffers[i]->row(0), buffers[i + 1]->row(0), buffers[i + 2]->row(0)});
    Buffer plain;
    plain.columns = out->columns;
    plain.data = reinterpret_cast<uint8_t*>(s.attention_out);
    const bool rounds = out->kind != BufferKind::f32;
    merge_partials(s.op.pool, given.data(), static_cast<int>(given.size()), s.rows(*out), heads, head_dim,
                   rounds ? s.attention_out : out->row(0));
    if (rounds) run_convert(s.op, plain, s.rows(*out), *out);
  }
};

std::unique_ptr<ProgramOp> create_op(OpCode code, EncodedReader& in, ProgramPlan& plan) {
  switch (code) {
    case OpCode::embed: return std::make_unique<Embed>(in, plan);
    case OpCode::norm: return std::make_unique<Norm>(in, plan);
    case OpCode::linear: return std::make_unique<Product>(in, plan);
    case OpCode::glu: return std::make_unique<Glu>(in, plan);
    case OpCode::convert: return std::make_unique<Convert>(in, plan);
    case OpCode::qkv: return std::make_unique<Qkv>(in, plan);
    case OpCode::attention: return std::make_unique<Attention>(in, plan);
    case OpCode::merge: return std::make_unique<Merge>(in, plan);
    case OpCode::gather: return std::make_unique<Gather>(in, plan);
    case OpCode::activate: return std::make_unique<Activate>(in, plan);
    case OpCode::add: return std::make_unique<Add>(in, plan);
    case OpCode::softcap: return std::make_unique<Softcap>(in, plan);
    case OpCode::wait_layer: return std::make_unique<WaitLayer>(in, plan);
    case OpCode::layer_ready: return std::make_unique<LayerReady>(in, plan);
    case OpCode::wait_rows: return decode_wait_rows(in, plan);
    case OpCode::rows_ready: return decode_rows_ready(in, plan);
    case OpCode::send_q: return decode_send_q(in, plan);
    case OpCode::send_kv: return decode_send_kv(in, plan);
    case OpCode::wait_partial: return decode_wait_partial(in, plan);
  }
  EncodedReader::refuse("unknown op code " + std::to_string(static_cast<int>(code)));
}

}  // namespace

std::unique_ptr<ProgramOp> decode_op(EncodedReader& in, ProgramPlan& plan) {
  return create_op(static_cast<OpCode>(in.integer("op code", 0, kOpCodes)), in, plan);
}

}  // namespace kvasir
