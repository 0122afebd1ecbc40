// Bindings of transfers between pools: landings, messengers, and waking the thread that waits for what lands.
#include <napi.h>

#include "addon/addon.hpp"
#include "addon/waker.hpp"

namespace kvasir {

/** What the board of an instance's landings needs to make them. */
struct BoundLandings {
  std::shared_ptr<KvPool> pool;
  std::shared_ptr<LandingBoard> board;
};

namespace {

/** (pool, wake) => landings: `wake` is called in this thread when some are complete */
Napi::Value bind_create_landings(Arguments& in, Napi::Env env) {
  const auto pool = registries().pools.get(in.handle("KV pool"));
  const auto waker = Waker::create(env, in.function("wake"), "landings");
  auto board = std::make_shared<LandingBoard>([waker] { waker->wake(); });
  return number(env, registries().landing_boards.add(std::make_shared<BoundLandings>(BoundLandings{pool, std::move(board)})));
}

Napi::Value bind_free_landings(Arguments& in, Napi::Env env) {
  registries().landing_boards.remove(in.handle("landings"));
  return env.Undefined();
}

/** (layers, blocks) => arrivals: of pages (blocks, layers) that a step can compute behind */
Napi::Value bind_create_arrivals(Arguments& in, Napi::Env env) {
  const int layers = in.integer("layers", 1, 1 << 16);
  const int blocks = in.integer("blocks", 0, INT32_MAX / layers);
  return number(env, registries().arrivals.add(std::make_shared<LayerArrivals>(layers, blocks)));
}

/** (arrivals, blocks): only the first so many come */
Napi::Value bind_expect_blocks(Arguments& in, Napi::Env env) {
  const auto arrivals = registries().arrivals.get(in.handle("arrivals"));
  arrivals->expect(in.integer("blocks", 0, INT32_MAX));
  return env.Undefined();
}

Napi::Value bind_free_arrivals(Arguments& in, Napi::Env env) {
  registries().arrivals.remove(in.handle("arrivals"));
  return env.Undefined();
}

/** (landings, pages, arrivals or 0) => landing: place i of it is pages[i] */
Napi::Value bind_open_landing(Arguments& in, Napi::Env env) {
  const auto bound = registries().landing_boards.get(in.handle("landings"));
  const Span<int32_t> pages = in.array<int32_t>("pages");
  const int told = in.integer("arrivals", 0, INT32_MAX);
  auto arrivals = told == 0 ? nullptr : registries().arrivals.get(told);
  auto landing = std::make_shared<Landing>(bound->pool, bound->board, std::vector<int32_t>(pages.data, pages.data + pages.size), std::move(arrivals));
  const int handle = registries().landings.add(landing);
  landing->set_number(handle);
  return number(env, handle);
}

/** (landing): once it returns nobody writes to its pages */
Napi::Value bind_close_landing(Arguments& in, Napi::Env env) {
  const int handle = in.handle("landing");
  registries().landings.get(handle)->close();
  registries().landings.remove(handle);
  return env.Undefined();
}

/** (landings, out) => how many landings that are complete stand in `out`; call again while it is full */
Napi::Value bind_take_landed(Arguments& in, Napi::Env env) {
  const auto bound = registries().landing_boards.get(in.handle("landings"));
  const Span<int32_t> out = in.array<int32_t>("out");
  return number(env, bound->board->take(writable(out), static_cast<int>(out.size)));
}

/** (pool) => messenger */
Napi::Value bind_create_messenger(Arguments& in, Napi::Env env) {
  return number(env, registries().messengers.add(std::make_shared<Messenger>(registries().pools.get(in.handle("KV pool")))));
}

Napi::Value bind_free_messenger(Arguments& in, Napi::Env env) {
  registries().messengers.remove(in.handle("messenger"));
  return env.Undefined();
}

/** (pool) => number of the step that begins next over it */
Napi::Value bind_next_step(Arguments& in, Napi::Env env) {
  return number(env, registries().pools.get(in.handle("KV pool"))->progress.next());
}

/** (messenger, landing, step, parcels (n, 3): layer, page, place, last) => whether the landing is still open */
Napi::Value bind_send_pages(Arguments& in, Napi::Env env) {
  const auto messenger = registries().messengers.get(in.handle("messenger"));
  // Its owner's alone: whoever sends does not keep it alive.
  const auto landing = registries().landings.find(in.handle("landing"));
  const std::vector<Parcel> parcels = parcels_argument(in);
  const bool last = in.integer("last", 0, 1) == 1;
  if (!landing) return Napi::Boolean::New(env, false);
  messenger->send(landing, parcels, last);
  return Napi::Boolean::New(env, true);
}

/** (messenger, landing): once it returns nothing is read for it any more */
Napi::Value bind_stop_sending(Arguments& in, Napi::Env env) {
  const auto messenger = registries().messengers.get(in.handle("messenger"));
  messenger->stop(in.handle("landing"));
  return env.Undefined();
}

/** (messenger, landing) => parcels for it whose pages may still be read */
Napi::Value bind_left_to_send(Arguments& in, Napi::Env env) {
  const auto messenger = registries().messengers.get(in.handle("messenger"));
  return number(env, static_cast<double>(messenger->left(in.handle("landing"))));
}

/** (messenger) => { pages, bytes, earlyBytes, streams, firstPages, copySeconds } */
Napi::Value bind_messenger_counts(Arguments& in, Napi::Env env) {
  return counts_object(env, registries().messengers.get(in.handle("messenger"))->counts());
}

}  // namespace

std::vector<Parcel> parcels_argument(Arguments& in) {
  const auto step = static_cast<uint32_t>(in.integer("step", 0, INT32_MAX));
  const Span<int32_t> numbers = in.array<int32_t>("parcels");
  if (numbers.size % 3 != 0) throw std::runtime_error("Cannot send pages: a parcel is incomplete");
  std::vector<Parcel> parcels;
  parcels.reserve(numbers.size / 3);
  for (size_t i = 0; i < numbers.size; i += 3) parcels.push_back({step, static_cast<uint32_t>(numbers[i]), numbers[i + 1], numbers[i + 2]});
  return parcels;
}

Napi::Object counts_object(Napi::Env env, const MessengerCounts& counts) {
  Napi::Object result = Napi::Object::New(env);
  result.Set("pages", static_cast<double>(counts.pages));
  result.Set("bytes", static_cast<double>(counts.bytes));
  result.Set("earlyBytes", static_cast<double>(counts.early_bytes));
  result.Set("streams", static_cast<double>(counts.streams));
  result.Set("firstPages", static_cast<double>(counts.first_pages));
  result.Set("copySeconds", static_cast<double>(counts.nanoseconds) / 1e9);
  return result;
}

void bind_transfers(Napi::Env env, Napi::Object exports) {
  bind<bind_create_landings>(env, exports, "createLandings");
  bind<bind_free_landings>(env, exports, "freeLandings");
  bind<bind_create_arrivals>(env, exports, "createArrivals");
  bind<bind_expect_blocks>(env, exports, "expectBlocks");
  bind<bind_free_arrivals>(env, exports, "freeArrivals");
  bind<bind_open_landing>(env, exports, "openLanding");
  bind<bind_close_landing>(env, exports, "closeLanding");
  bind<bind_take_landed>(env, exports, "takeLanded");
  bind<bind_create_messenger>(env, exports, "createMessenger");
  bind<bind_free_messenger>(env, exports, "freeMessenger");
  bind<bind_next_step>(env, exports, "nextStep");
  bind<bind_send_pages>(env, exports, "sendPages");
  bind<bind_stop_sending>(env, exports, "stopSending");
  bind<bind_left_to_send>(env, exports, "leftToSend");
  bind<bind_messenger_counts>(env, exports, "messengerCounts");
}

}  // namespace kvasir
