// Bindings of transfers between pools of one process: receive buffers, local page senders, and completion wake-ups.
#include <napi.h>

#include "addon/addon.hpp"
#include "addon/waker.hpp"

namespace kvasir {

/** A pool and the completion queue of its receive buffers. */
struct BoundCompletionQueue {
  std::shared_ptr<KvPool> pool;
  std::shared_ptr<CompletionQueue> queue;
};

namespace {

/** (pool, wake) => queue; `wake` is called in this thread when receive buffers are complete */
Napi::Value bind_create_completion_queue(Arguments& in, Napi::Env env) {
  const auto pool = registries().pools.get(in.handle("KV pool"));
  const auto waker = Waker::create(env, in.function("wake"), "completion queue");
  auto queue = std::make_shared<CompletionQueue>([waker] { waker->wake(); });
  return number(env, registries().completion_queues.add(std::make_shared<BoundCompletionQueue>(BoundCompletionQueue{pool, std::move(queue)})));
}

Napi::Value bind_free_completion_queue(Arguments& in, Napi::Env env) {
  registries().completion_queues.remove(in.handle("completion queue"));
  return env.Undefined();
}

/** (layers, blocks) => arrival counters of (blocks, layers) pages, for steps that wait for their layers */
Napi::Value bind_create_arrivals(Arguments& in, Napi::Env env) {
  const int layers = in.integer("layers", 1, 1 << 16);
  const int blocks = in.integer("blocks", 0, INT32_MAX / layers);
  return number(env, registries().arrivals.add(std::make_shared<LayerArrivals>(layers, blocks)));
}

/** (arrivals, blocks): only the first `blocks` blocks arrive */
Napi::Value bind_expect_blocks(Arguments& in, Napi::Env env) {
  const auto arrivals = registries().arrivals.get(in.handle("arrivals"));
  arrivals->expect(in.integer("blocks", 0, INT32_MAX));
  return env.Undefined();
}

Napi::Value bind_free_arrivals(Arguments& in, Napi::Env env) {
  registries().arrivals.remove(in.handle("arrivals"));
  return env.Undefined();
}

/** (queue, pages, arrivals or 0) => receive buffer; its slot i is pages[i] */
Napi::Value bind_open_receive_buffer(Arguments& in, Napi::Env env) {
  const auto bound = registries().completion_queues.get(in.handle("completion queue"));
  const Span<int32_t> pages = in.array<int32_t>("pages");
  const int handle_of_arrivals = in.integer("arrivals", 0, INT32_MAX);
  auto arrivals = handle_of_arrivals == 0 ? nullptr : registries().arrivals.get(handle_of_arrivals);
  auto buffer = std::make_shared<ReceiveBuffer>(bound->pool, bound->queue, std::vector<int32_t>(pages.data, pages.data + pages.size), std::move(arrivals));
  const int handle = registries().receive_buffers.add(buffer);
  buffer->set_number(handle);
  return number(env, handle);
}

/** (buffer): no thread writes to its pages after the return */
Napi::Value bind_close_receive_buffer(Arguments& in, Napi::Env env) {
  const int handle = in.handle("receive buffer");
  registries().receive_buffers.get(handle)->close();
  registries().receive_buffers.remove(handle);
  return env.Undefined();
}

/** (queue, out) => count of completed buffers written to `out`; call again while it is full */
Napi::Value bind_take_completed(Arguments& in, Napi::Env env) {
  const auto bound = registries().completion_queues.get(in.handle("completion queue"));
  const Span<int32_t> out = in.array<int32_t>("out");
  return number(env, bound->queue->take(writable(out), static_cast<int>(out.size)));
}

/** (pool) => sender */
Napi::Value bind_create_local_sender(Arguments& in, Napi::Env env) {
  return number(env, registries().local_senders.add(std::make_shared<LocalPageSender>(registries().pools.get(in.handle("KV pool")))));
}

Napi::Value bind_free_local_sender(Arguments& in, Napi::Env env) {
  registries().local_senders.remove(in.handle("local page sender"));
  return env.Undefined();
}

/** (pool) => number of the next step over it */
Napi::Value bind_next_step(Arguments& in, Napi::Env env) {
  return number(env, registries().pools.get(in.handle("KV pool"))->progress.next());
}

/** (sender, buffer, step, descriptors (n, 3): layer, page, slot, last) => whether the buffer is still open */
Napi::Value bind_send_pages(Arguments& in, Napi::Env env) {
  const auto sender = registries().local_senders.get(in.handle("local page sender"));
  // `find`: the buffer belongs to the receiver, and sending does not keep it alive.
  const auto buffer = registries().receive_buffers.find(in.handle("receive buffer"));
  const std::vector<PageDescriptor> descriptors = descriptors_argument(in);
  const bool last = in.integer("last", 0, 1) == 1;
  if (!buffer) return Napi::Boolean::New(env, false);
  sender->send(buffer, descriptors, last);
  return Napi::Boolean::New(env, true);
}

/** (sender, buffer): the sender reads none of the buffer's pages after the return */
Napi::Value bind_stop_sending(Arguments& in, Napi::Env env) {
  const auto sender = registries().local_senders.get(in.handle("local page sender"));
  sender->stop(in.handle("receive buffer"));
  return env.Undefined();
}

/** (sender, buffer) => queued and in-flight pages */
Napi::Value bind_pending_pages(Arguments& in, Napi::Env env) {
  const auto sender = registries().local_senders.get(in.handle("local page sender"));
  return number(env, static_cast<double>(sender->pending(in.handle("receive buffer"))));
}

/** (sender) => { pages, bytes, earlyBytes, streams, firstPages, copySeconds } */
Napi::Value bind_local_sender_counts(Arguments& in, Napi::Env env) {
  return counts_object(env, registries().local_senders.get(in.handle("local page sender"))->counts());
}

}  // namespace

std::vector<PageDescriptor> descriptors_argument(Arguments& in) {
  const auto step = static_cast<uint32_t>(in.integer("step", 0, INT32_MAX));
  const Span<int32_t> numbers = in.array<int32_t>("page descriptors");
  if (numbers.size % 3 != 0) throw std::runtime_error("Cannot send pages: a page descriptor is incomplete");
  std::vector<PageDescriptor> descriptors;
  descriptors.reserve(numbers.size / 3);
  for (size_t i = 0; i < numbers.size; i += 3) descriptors.push_back({step, static_cast<uint32_t>(numbers[i]), numbers[i + 1], numbers[i + 2]});
  return descriptors;
}

Napi::Object counts_object(Napi::Env env, const SendCounts& counts) {
  Napi::Object result = Napi::Object::New(env);
  result.Set("pages", static_cast<double>(counts.pages));
  result.Set("bytes", static_cast<double>(counts.bytes));
  result.Set("earlyBytes", static_cast<double>(counts.early_bytes));
  result.Set("streams", static_cast<double>(counts.streams));
  result.Set("firstPages", static_cast<double>(counts.first_pages));
  result.Set("copySeconds", static_cast<double>(counts.nanoseconds) / 1e9);
  return result;
}

void bind_local_transfers(Napi::Env env, Napi::Object exports) {
  bind<bind_create_completion_queue>(env, exports, "createCompletionQueue");
  bind<bind_free_completion_queue>(env, exports, "freeCompletionQueue");
  bind<bind_create_arrivals>(env, exports, "createArrivals");
  bind<bind_expect_blocks>(env, exports, "expectBlocks");
  bind<bind_free_arrivals>(env, exports, "freeArrivals");
  bind<bind_open_receive_buffer>(env, exports, "openReceiveBuffer");
  bind<bind_close_receive_buffer>(env, exports, "closeReceiveBuffer");
  bind<bind_take_completed>(env, exports, "takeCompleted");
  bind<bind_create_local_sender>(env, exports, "createLocalSender");
  bind<bind_free_local_sender>(env, exports, "freeLocalSender");
  bind<bind_next_step>(env, exports, "nextStep");
  bind<bind_send_pages>(env, exports, "sendPages");
  bind<bind_stop_sending>(env, exports, "stopSending");
  bind<bind_pending_pages>(env, exports, "pendingPages");
  bind<bind_local_sender_counts>(env, exports, "localSenderCounts");
}

}  // namespace kvasir
