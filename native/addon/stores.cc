// Bindings of the tiers below a pool: copies of blocks inside it, and stores on SSD.
#include <napi.h>

#include <cstring>

#include "addon/addon.hpp"
#include "addon/waker.hpp"

namespace kvasir {
namespace {

constexpr int kWordsOfBlock = 7;  // slot, page, depth, digest
constexpr int kWordsOfEntry = 6;  // slot, depth, digest

std::array<uint8_t, 32> read_identity(Arguments& in) {
  const Span<uint8_t> bytes = in.array<uint8_t>("identity");
  std::array<uint8_t, 32> identity;
  if (bytes.size != identity.size()) throw std::runtime_error("Cannot create a block store: its identity has " + std::to_string(bytes.size) + " bytes, not 32");
  std::copy(bytes.data, bytes.data + bytes.size, identity.begin());
  return identity;
}

/**
 * (pool, pagesOfBlock, path, slots, identity, wake) => store; `wake` is called in this thread when there are results
 */
Napi::Value bind_create_store(Arguments& in, Napi::Env env) {
  const auto pool = registries().pools.get(in.handle("KV pool"));
  const int pages_of_block = in.integer("pagesOfBlock", 1, pool->pages);
  const std::string path = in.text("path");
  const int slots = in.integer("slots", 1, INT32_MAX);
  const auto identity = read_identity(in);
  const auto waker = Waker::create(env, in.function("wake"), "block store");
  return number(env, registries().block_stores.add(
                         std::make_shared<BlockStore>(pool, pages_of_block, path, slots, identity, [waker] { waker->wake(); })));
}

Napi::Value bind_free_store(Arguments& in, Napi::Env env) {
  registries().block_stores.remove(in.handle("block store"));
  return env.Undefined();
}

/** (store) => one line about what was found on opening; empty: nothing to report */
Napi::Value bind_store_note(Arguments& in, Napi::Env env) {
  return Napi::String::New(env, registries().block_stores.get(in.handle("block store"))->slab().note());
}

/** (store) => (blocks, 6): slot, depth, digest of the blocks found, oldest first */
Napi::Value bind_store_blocks(Arguments& in, Napi::Env env) {
  const auto store = registries().block_stores.get(in.handle("block store"));
  const Slab& slab = store->slab();
  std::vector<int> slots;
  for (int slot = 0; slot < slab.slots(); slot++)
    if (slab.holds(slot)) slots.push_back(slot);
  std::sort(slots.begin(), slots.end(), [&](int a, int b) { return slab.entry(a).generation < slab.entry(b).generation; });
  Napi::Uint32Array out = Napi::Uint32Array::New(env, slots.size() * kWordsOfEntry);
  uint32_t* next = out.Data();
  for (const int slot : slots) {
    const SlabEntry& entry = slab.entry(slot);
    *next++ = static_cast<uint32_t>(slot);
    *next++ = entry.depth;
    next = std::copy(entry.digest.begin(), entry.digest.end(), next);
  }
  return out;
}

std::vector<StoredBlock> read_blocks(Arguments& in) {
  const Span<uint32_t> words = in.array<uint32_t>("blocks");
  if (words.size % kWordsOfBlock != 0) throw std::runtime_error("Cannot move blocks to or from SSD: a block is incomplete");
  std::vector<StoredBlock> blocks;
  for (const uint32_t* at = words.data; at != words.data + words.size; at += kWordsOfBlock)
    blocks.push_back({static_cast<int32_t>(at[0]), static_cast<int32_t>(at[1]), at[2], {at[3], at[4], at[5], at[6]}});
  return blocks;
}

/** (store, job, kind, blocks (n, 7): slot, page, depth, digest) */
Napi::Value bind_begin_store_job(Arguments& in, Napi::Env env) {
  const auto store = registries().block_stores.get(in.handle("block store"));
  const int job = in.integer("job", 1, INT32_MAX);
  const auto kind = static_cast<BlockStore::Kind>(in.integer("kind", 0, 2));
  store->begin(job, kind, read_blocks(in));
  return env.Undefined();
}

/** (store, job, blocks (n, 7): slot, -, depth, digest, pages (n, pages of a block), arrivals): reads layer by layer */
Napi::Value bind_begin_store_layers(Arguments& in, Napi::Env env) {
  const auto store = registries().block_stores.get(in.handle("block store"));
  const int job = in.integer("job", 1, INT32_MAX);
  std::vector<StoredBlock> blocks = read_blocks(in);
  const Span<int32_t> pages = in.array<int32_t>("pages");
  store->begin_by_layer(job, std::move(blocks), std::vector<int32_t>(pages.data, pages.data + pages.size), registries().arrivals.get(in.handle("arrivals")));
  return env.Undefined();
}

/** (store, job): none of its pages is read or written after the return */
Napi::Value bind_stop_store_job(Arguments& in, Napi::Env env) {
  const auto store = registries().block_stores.get(in.handle("block store"));
  store->stop(in.integer("job", 1, INT32_MAX));
  return env.Undefined();
}

/** (store, out (n, 2): job, blocks done) => count of results written to `out`; call again while it is full */
Napi::Value bind_take_store_results(Arguments& in, Napi::Env env) {
  const auto store = registries().block_stores.get(in.handle("block store"));
  const Span<int32_t> out = in.array<int32_t>("out");
  static_assert(sizeof(BlockStoreResult) == 2 * sizeof(int32_t), "results are pairs");
  return number(env, store->take(reinterpret_cast<BlockStoreResult*>(writable(out)), static_cast<int>(out.size / 2)));
}

/** (store) => { readBytes, writtenBytes, badBlocks, failedWrites, readSeconds, error } */
Napi::Value bind_store_counts(Arguments& in, Napi::Env env) {
  const auto store = registries().block_stores.get(in.handle("block store"));
  const BlockStoreCounts counts = store->counts();
  Napi::Object result = Napi::Object::New(env);
  result.Set("readBytes", static_cast<double>(counts.read_bytes));
  result.Set("writtenBytes", static_cast<double>(counts.written_bytes));
  result.Set("badBlocks", static_cast<double>(counts.bad_blocks));
  result.Set("failedWrites", static_cast<double>(counts.failed_writes));
  result.Set("readSeconds", static_cast<double>(counts.read_nanoseconds) / 1e9);
  result.Set("error", store->error());
  return result;
}

/** (pool, from, to): copies page by page, in order */
Napi::Value bind_copy_pages(Arguments& in, Napi::Env env) {
  const auto pool = registries().pools.get(in.handle("KV pool"));
  const Span<int32_t> from = in.array<int32_t>("from"), to = in.array<int32_t>("to");
  const auto is_page = [&](int32_t page) { return page >= 0 && page < pool->pages; };
  const bool known = from.size == to.size && std::all_of(from.data, from.data + from.size, is_page) && std::all_of(to.data, to.data + to.size, is_page);
  if (!known) throw std::runtime_error("Cannot copy pages: the pool has " + std::to_string(pool->pages) + ": " + std::to_string(from.size) + " to " + std::to_string(to.size));
  for (size_t i = 0; i < from.size; i++)
    if (from.data[i] != to.data[i]) std::memcpy(pool->page(to.data[i]), pool->page(from.data[i]), pool->layout.page_bytes());
  return env.Undefined();
}

/** (pool) => loader */
Napi::Value bind_create_loader(Arguments& in, Napi::Env env) {
  return number(env, registries().page_loaders.add(std::make_shared<PageLoader>(registries().pools.get(in.handle("KV pool")))));
}

Napi::Value bind_free_loader(Arguments& in, Napi::Env env) {
  registries().page_loaders.remove(in.handle("page loader"));
  return env.Undefined();
}

/** (loader, layers, from, to): both (blocks, layers) pages; a running step waits for each layer */
Napi::Value bind_begin_loading(Arguments& in, Napi::Env env) {
  const auto loader = registries().page_loaders.get(in.handle("page loader"));
  const int layers = in.integer("layers", 1, 1 << 16);
  const Span<int32_t> from = in.array<int32_t>("from"), to = in.array<int32_t>("to");
  loader->begin(layers, std::vector<int32_t>(from.data, from.data + from.size), std::vector<int32_t>(to.data, to.data + to.size));
  return env.Undefined();
}

/** (loader): returns once all loads are complete */
Napi::Value bind_finish_loading(Arguments& in, Napi::Env env) {
  registries().page_loaders.get(in.handle("page loader"))->finish();
  return env.Undefined();
}

/** (loader, layers, from, to): both (blocks, layers) pages; each layer is copied once the next step has computed it */
Napi::Value bind_begin_storing(Arguments& in, Napi::Env env) {
  const auto loader = registries().page_loaders.get(in.handle("page loader"));
  const int layers = in.integer("layers", 1, 1 << 16);
  const Span<int32_t> from = in.array<int32_t>("from"), to = in.array<int32_t>("to");
  loader->begin_storing(layers, std::vector<int32_t>(from.data, from.data + from.size), std::vector<int32_t>(to.data, to.data + to.size));
  return env.Undefined();
}

/** (loader): after the step; returns once all layers that it has computed are copied */
Napi::Value bind_finish_storing(Arguments& in, Napi::Env env) {
  registries().page_loaders.get(in.handle("page loader"))->finish_storing();
  return env.Undefined();
}

/** (loader) => pages stored while the step that computed them ran */
Napi::Value bind_pages_stored_early(Arguments& in, Napi::Env env) {
  return number(env, static_cast<double>(registries().page_loaders.get(in.handle("page loader"))->stored_early()));
}

}  // namespace

void bind_stores(Napi::Env env, Napi::Object exports) {
  bind<bind_create_store>(env, exports, "createStore");
  bind<bind_free_store>(env, exports, "freeStore");
  bind<bind_store_note>(env, exports, "storeNote");
  bind<bind_store_blocks>(env, exports, "storeBlocks");
  bind<bind_begin_store_job>(env, exports, "beginStoreJob");
  bind<bind_begin_store_layers>(env, exports, "beginStoreLayers");
  bind<bind_stop_store_job>(env, exports, "stopStoreJob");
  bind<bind_take_store_results>(env, exports, "takeStoreResults");
  bind<bind_store_counts>(env, exports, "storeCounts");
  bind<bind_create_loader>(env, exports, "createLoader");
  bind<bind_free_loader>(env, exports, "freeLoader");
  bind<bind_begin_loading>(env, exports, "beginLoading");
  bind<bind_finish_loading>(env, exports, "finishLoading");
  bind<bind_begin_storing>(env, exports, "beginStoring");
  bind<bind_finish_storing>(env, exports, "finishStoring");
  bind<bind_pages_stored_early>(env, exports, "pagesStoredEarly");
  bind<bind_copy_pages>(env, exports, "copyPages");
}

}  // namespace kvasir
