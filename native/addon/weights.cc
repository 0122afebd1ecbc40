// Bindings of weights: linear layers and vectors.
#include <napi.h>

#include "addon/addon.hpp"

namespace kvasir {
namespace {

/** (backend, columns, types, rows, inputs) => linear */
Napi::Value bind_create_linear(Arguments& in, Napi::Env env) {
  const auto backend = registries().backends.get(in.handle("backend"));
  const int columns = in.integer("columns", 1, INT32_MAX);
  const Span<int32_t> types = in.array<int32_t>("segment types");
  const Span<int32_t> rows = in.array<int32_t>("segment rows");
  const auto inputs = static_cast<InputForm>(in.integer("inputs", 0, kInputForms - 1));
  if (types.size != rows.size || types.size == 0) throw std::runtime_error("Cannot create linear layer: no segments, or types without rows");
  auto bound = std::make_shared<BoundLinear>();
  for (size_t i = 0; i < types.size; i++) {
    if (types[i] < 0 || types[i] >= kTensorTypes) throw std::runtime_error("Cannot create linear layer: unknown weight type: " + std::to_string(types[i]));
    if (rows[i] < 1) throw std::runtime_error("Cannot create linear layer: a segment has " + std::to_string(rows[i]) + " rows");
    bound->segments.push_back({static_cast<TensorType>(types[i]), rows[i]});
  }
  bound->linear = create_linear(backend->isa, columns, bound->segments, inputs);
  return number(env, registries().linears.add(std::move(bound)));
}

/** (linear, segment, row, count, bytes) */
Napi::Value bind_pack_rows(Arguments& in, Napi::Env env) {
  const auto bound = registries().linears.get(in.handle("linear layer"));
  const int segment = in.integer("segment", 0, static_cast<int>(bound->segments.size()) - 1);
  const SegmentSpec& spec = bound->segments[segment];
  const int row = in.integer("first row", 0, spec.rows - 1);
  const int count = in.integer("rows", 0, spec.rows - row);
  const Span<uint8_t> bytes = in.array<uint8_t>("bytes");
  const size_t wanted = stored_row_bytes(spec.type, bound->linear->columns) * static_cast<size_t>(count);
  if (bytes.size != wanted) {
    throw std::runtime_error("Cannot pack rows: wrong length: " + std::to_string(bytes.size) + " bytes, not " + std::to_string(wanted));
  }
  bound->linear->pack_rows(segment, row, count, bytes.data);
  return env.Undefined();
}

Napi::Value bind_linear_bytes(Arguments& in, Napi::Env env) {
  return number(env, static_cast<double>(registries().linears.get(in.handle("linear layer"))->linear->bytes()));
}

Napi::Value bind_free_linear(Arguments& in, Napi::Env env) {
  registries().linears.remove(in.handle("linear layer"));
  return env.Undefined();
}

/** (values) => vector: a copy */
Napi::Value bind_create_vector(Arguments& in, Napi::Env env) {
  const Span<float> values = in.array<float>("values");
  return number(env, registries().vectors.add(std::make_shared<const FloatVector>(values.data, values.data + values.size)));
}

Napi::Value bind_free_vector(Arguments& in, Napi::Env env) {
  registries().vectors.remove(in.handle("vector"));
  return env.Undefined();
}

}  // namespace

void bind_weights(Napi::Env env, Napi::Object exports) {
  bind<bind_create_linear>(env, exports, "createLinear");
  bind<bind_pack_rows>(env, exports, "packRows");
  bind<bind_linear_bytes>(env, exports, "linearBytes");
  bind<bind_free_linear>(env, exports, "freeLinear");
  bind<bind_create_vector>(env, exports, "createVector");
  bind<bind_free_vector>(env, exports, "freeVector");
}

}  // namespace kvasir
