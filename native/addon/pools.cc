// Bindings of KV memory: pools of pages, by handle in this process and by name from others.
#include <napi.h>

#include "addon/addon.hpp"
#include "program/row_ops.hpp"
#include "sparse/slots.hpp"

namespace kvasir {
namespace {

/** (backend, kvType, kvHeads, headDim, pages, 1 if the pages lie at attention workers) => pool */
Napi::Value bind_create_pool(Arguments& in, Napi::Env env) {
  constexpr int kHeadsMax = 1 << 16, kHeadDimMax = 1 << 16;
  const auto backend = registries().backends.get(in.handle("backend"));
  const auto type = static_cast<KvType>(in.integer("kvType", 0, kKvTypes - 1));
  const int kv_heads = in.integer("kvHeads", 1, kHeadsMax);
  const int head_dim = in.integer("headDim", 1, kHeadDimMax);
  const int pages = in.integer("pages", 1, INT32_MAX);
  const KvLayout layout = {type, kv_heads, head_dim};
  if (!layout.refusal().empty()) throw std::runtime_error("Cannot create a KV pool: " + layout.refusal());
  const bool at_workers = in.integer("atWorkers", 0, 1) == 1;
  return number(env, registries().pools.add(at_workers ? KvPool::at_workers(backend->isa, layout, pages) : std::make_shared<KvPool>(backend->isa, layout, pages)));
}

size_t page_values(const KvLayout& layout) { return size_t{2} * layout.kv_heads * kPageTokens * layout.head_dim; }

struct PageArguments {
  std::shared_ptr<KvPool> pool;
  int page;
  Span<float> values;

  explicit PageArguments(Arguments& in) : pool(registries().pools.get(in.handle("KV pool"))) {
    if (!pool->has_memory()) throw std::runtime_error("Cannot use page values: the pages lie at attention workers");
    page = in.integer("page", 0, pool->pages - 1);
    values = in.array<float>("values");
    const size_t wanted = page_values(pool->layout);
    if (values.size == wanted) return;
    throw std::runtime_error("Cannot use page values: wrong length: " + std::to_string(values.size) + ", not " + std::to_string(wanted));
  }
};

/** (backend, name) => pool of another process of the same user */
Napi::Value bind_open_pool(Arguments& in, Napi::Env env) {
  const auto backend = registries().backends.get(in.handle("backend"));
  return number(env, registries().pools.add(KvPool::open(backend->isa, in.text("name"))));
}

/** (pool) => name by which other processes may open it */
Napi::Value bind_pool_name(Arguments& in, Napi::Env env) {
  return Napi::String::New(env, registries().pools.get(in.handle("KV pool"))->name());
}

/** (pool) => numbers in the canonical form of a page */
Napi::Value bind_page_values(Arguments& in, Napi::Env env) {
  return number(env, static_cast<double>(page_values(registries().pools.get(in.handle("KV pool"))->layout)));
}

/** (pool, page, out) */
Napi::Value bind_read_page(Arguments& in, Napi::Env env) {
  const PageArguments given(in);
  read_page(given.pool->isa, given.pool->layout, given.pool->page(given.page), writable(given.values));
  return env.Undefined();
}

/** (pool, page, values) */
Napi::Value bind_write_page(Arguments& in, Napi::Env env) {
  const PageArguments given(in);
  write_page(given.pool->isa, given.pool->layout, given.pool->page(given.page), given.values.data);
  return env.Undefined();
}

/** (pool) => states in one page of slot states: slots times KV heads */
Napi::Value bind_slot_states(Arguments& in, Napi::Env env) {
  const KvLayout& layout = registries().pools.get(in.handle("KV pool"))->layout;
  return number(env, static_cast<double>(LayerSlots::slots_of_state(layout)) * layout.kv_heads);
}

/** (pool, page, scores, positions): the states in a page of slot states, (KV heads, slots) each */
Napi::Value bind_read_slot_states(Arguments& in, Napi::Env env) {
  const auto pool = registries().pools.get(in.handle("KV pool"));
  if (!pool->has_memory()) throw std::runtime_error("Cannot read slot states: the pages lie at attention workers");
  const int32_t page = in.integer("page", 0, pool->pages - 1);
  const Span<float> scores = in.array<float>("scores");
  const Span<int32_t> positions = in.array<int32_t>("positions");
  const size_t slots = static_cast<size_t>(LayerSlots::slots_of_state(pool->layout)), wanted = slots * static_cast<size_t>(pool->layout.kv_heads);
  if (scores.size != wanted || positions.size != wanted) throw std::runtime_error("Cannot read slot states: wrong length");
  const int32_t starts[] = {0, 1};
  const SlotTableView table = {{&page, 1}, {starts, 2}, {&page, 1}};
  const LayerSlots layer(pool->layout, pool->data(), table, 0);
  for (int head = 0; head < pool->layout.kv_heads; head++) {
    const LayerSlots::States states = layer.states(head, 0);
    std::copy_n(states.scores, slots, writable(scores) + slots * head);
    std::copy_n(states.positions, slots, writable(positions) + slots * head);
  }
  return env.Undefined();
}

/** (pool, pages, values): consecutive float32 rows, in the layout that programs write */
Napi::Value bind_write_rows(Arguments& in, Napi::Env env) {
  RowPagesView rows;
  rows.pool = registries().pools.get(in.handle("KV pool"));
  rows.pages = in.array<int32_t>("pages");
  const Span<float> values = in.array<float>("values");
  check_row_pages(rows, values.size * sizeof(float), "Cannot write rows: they");
  write_rows(rows, values.data, values.size * sizeof(float));
  return env.Undefined();
}

Napi::Value bind_free_pool(Arguments& in, Napi::Env env) {
  registries().pools.remove(in.handle("KV pool"));
  return env.Undefined();
}

}  // namespace

void bind_pools(Napi::Env env, Napi::Object exports) {
  bind<bind_create_pool>(env, exports, "createPool");
  bind<bind_open_pool>(env, exports, "openPool");
  bind<bind_pool_name>(env, exports, "poolName");
  bind<bind_page_values>(env, exports, "pageValues");
  bind<bind_read_page>(env, exports, "readPage");
  bind<bind_write_page>(env, exports, "writePage");
  bind<bind_slot_states>(env, exports, "slotStates");
  bind<bind_read_slot_states>(env, exports, "readSlotStates");
  bind<bind_write_rows>(env, exports, "writeRows");
  bind<bind_free_pool>(env, exports, "freePool");
}

}  // namespace kvasir
