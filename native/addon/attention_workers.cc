// Bindings of attention workers, and of a model worker's links to them.
#include <napi.h>

#include "addon/addon.hpp"

namespace kvasir {
namespace {

/** (backend, pool, host, port, transport, key, overlaps: 0 or 1) => attention worker; port 0 chooses a free port */
Napi::Value bind_create_attention_worker(Arguments& in, Napi::Env env) {
  auto backend = registries().backends.get(in.handle("backend"));
  auto pool = registries().pools.get(in.handle("KV pool"));
  if (!pool->has_memory()) throw std::runtime_error("Cannot create an attention worker: its pool has no memory");
  const HostPort address = address_argument(in, 0);
  const Transport transport = transport_argument(in);
  const HashKey key = key_argument(in);
  const bool overlaps = in.integer("overlaps", 0, 1) == 1;
  return number(env, registries().attention_workers.add(std::make_shared<AttentionWorker>(std::move(backend), std::move(pool), address, transport, key, overlaps)));
}

Napi::Value bind_attention_worker_port(Arguments& in, Napi::Env env) { return number(env, registries().attention_workers.get(in.handle("attention worker"))->port()); }

/** (attention worker) => { steps, calls, rows, earlyCalls, earlySeconds, lateSeconds, idleSeconds, bytesIn, bytesOut, broken, refused, heartbeats, pulledPages, pullYields } */
Napi::Value bind_attention_worker_counts(Arguments& in, Napi::Env env) {
  const auto worker = registries().attention_workers.get(in.handle("attention worker"));
  const AttentionWorkerCounts counts = worker->counts();
  const PullCounts pulls = worker->puller().counts();
  Napi::Object result = Napi::Object::New(env);
  result.Set("steps", static_cast<double>(counts.steps));
  result.Set("calls", static_cast<double>(counts.calls));
  result.Set("rows", static_cast<double>(counts.rows));
  result.Set("earlyCalls", static_cast<double>(counts.early_calls));
  result.Set("earlySeconds", static_cast<double>(counts.early_nanoseconds) / 1e9);
  result.Set("lateSeconds", static_cast<double>(counts.late_nanoseconds) / 1e9);
  result.Set("idleSeconds", static_cast<double>(counts.idle_nanoseconds) / 1e9);
  result.Set("bytesIn", static_cast<double>(counts.bytes_in));
  result.Set("bytesOut", static_cast<double>(counts.bytes_out));
  result.Set("broken", static_cast<double>(counts.broken));
  result.Set("refused", static_cast<double>(counts.refused));
  result.Set("heartbeats", static_cast<double>(counts.heartbeats));
  result.Set("pulledPages", static_cast<double>(pulls.pages));
  result.Set("pullYields", static_cast<double>(pulls.yields));
  return result;
}

/** The arguments of a pull: pool, shard, pages (n, 2). `Puller`: a queue of pulls, or a sender. */
template <class Puller>
int begin_pull(Arguments& in, Puller& puller) {
  auto source = registries().pools.get(in.handle("KV pool"));
  const int shard = in.integer("shard", 0, 1 << 16);
  const Span<int32_t> words = in.array<int32_t>("pages");
  if (words.size % 2 != 0) throw std::runtime_error("Cannot pull pages: they are not pairs");
  std::vector<PulledPage> pages;
  for (size_t i = 0; i < words.size; i += 2) pages.push_back({words[i], words[i + 1]});
  return puller.pull(std::move(source), shard, std::move(pages));
}

/** The arguments of a pull of received pages: receive buffer, shard, pages (slots). */
template <class Puller>
int begin_received_pull(Arguments& in, Puller& puller) {
  auto buffer = registries().receive_buffers.get(in.handle("receive buffer"));
  const int shard = in.integer("shard", 0, 1 << 16);
  const Span<int32_t> pages = in.array<int32_t>("pages");
  return puller.pull_received(std::move(buffer), shard, {pages.data, pages.data + pages.size});
}

/** (attention worker, pool, shard, pages (n, 2): page of the pool, page of the worker) => number of the pull */
Napi::Value bind_pull_pages(Arguments& in, Napi::Env env) {
  return number(env, begin_pull(in, registries().attention_workers.get(in.handle("attention worker"))->puller().queue()));
}

/** (attention worker, receive buffer, shard, pages (slots): of the worker) => number of the pull, which lasts until it is cancelled */
Napi::Value bind_pull_received(Arguments& in, Napi::Env env) {
  return number(env, begin_received_pull(in, registries().attention_workers.get(in.handle("attention worker"))->puller().queue()));
}

/** (attention worker, pull) => true once all its pages are there */
Napi::Value bind_is_pulled(Arguments& in, Napi::Env env) {
  const auto worker = registries().attention_workers.get(in.handle("attention worker"));
  return Napi::Boolean::New(env, worker->puller().queue().is_done(in.integer("pull", 0, INT32_MAX)));
}

/** (attention worker, pull): nothing of it is written afterwards */
Napi::Value bind_cancel_pull(Arguments& in, Napi::Env env) {
  const auto worker = registries().attention_workers.get(in.handle("attention worker"));
  worker->puller().queue().cancel(in.integer("pull", 0, INT32_MAX));
  return env.Undefined();
}

/** (attention worker): ends its connections; running calls end first */
Napi::Value bind_free_attention_worker(Arguments& in, Napi::Env env) {
  registries().attention_workers.remove(in.handle("attention worker"));
  return env.Undefined();
}

/** The arguments of a link: backend, kvType, kvHeads, headDim, host, port, transport, key, deadlineMs, form, firstPage. */
template <class Opened>
std::shared_ptr<Opened> open_link(Arguments& in) {
  const auto backend = registries().backends.get(in.handle("backend"));
  const auto type = static_cast<KvType>(in.integer("kvType", 0, kKvTypes - 1));
  const int kv_heads = in.integer("kvHeads", 1, 1 << 16);
  const int head_dim = in.integer("headDim", 1, 1 << 16);
  const HostPort address = address_argument(in, 1);
  const Transport transport = transport_argument(in);
  const HashKey key = key_argument(in);
  const std::chrono::milliseconds deadline(in.integer("deadlineMs", 1, INT32_MAX));
  const auto form = static_cast<AttentionForm>(in.integer("form", 0, 1));
  const int first_page = in.integer("firstPage", 0, INT32_MAX);
  return std::make_shared<Opened>(backend->isa, KvLayout{type, kv_heads, head_dim}, address, transport, key, deadline, form, first_page);
}

/** (arguments of a link) => link to the attention worker at that address */
Napi::Value bind_open_worker_link(Arguments& in, Napi::Env env) { return number(env, registries().worker_links.add(open_link<WorkerLink>(in))); }

/** (arguments of a link) => attempt to open it, in a thread of its own */
Napi::Value bind_begin_worker_link(Arguments& in, Napi::Env env) { return number(env, registries().worker_link_attempts.add(open_link<WorkerLinkAttempt>(in))); }

/** (attempt) => link, and the attempt is freed; 0 while the attempt lasts. Throws if it has failed, and frees it. */
Napi::Value bind_poll_worker_link(Arguments& in, Napi::Env env) {
  const int handle = in.handle("attempt to open a worker link");
  std::shared_ptr<WorkerLink> link;
  try {
    link = registries().worker_link_attempts.get(handle)->poll();
  } catch (const std::exception&) {
    registries().worker_link_attempts.remove(handle);
    throw;
  }
  if (link == nullptr) return number(env, 0);
  registries().worker_link_attempts.remove(handle);
  return number(env, registries().worker_links.add(std::move(link)));
}

/** (link) => pages of the attention worker */
Napi::Value bind_worker_link_pages(Arguments& in, Napi::Env env) { return number(env, registries().worker_links.get(in.handle("worker link"))->pages()); }

Napi::Value bind_worker_link_broken(Arguments& in, Napi::Env env) { return Napi::Boolean::New(env, registries().worker_links.get(in.handle("worker link"))->is_broken()); }

/** (link) => { calls, bytesOut, bytesIn, waitSeconds, earlySeconds, lateSeconds } */
Napi::Value bind_worker_link_counts(Arguments& in, Napi::Env env) {
  const WorkerLinkCounts& counts = registries().worker_links.get(in.handle("worker link"))->counts();
  Napi::Object result = Napi::Object::New(env);
  result.Set("calls", static_cast<double>(counts.calls));
  result.Set("bytesOut", static_cast<double>(counts.bytes_out));
  result.Set("bytesIn", static_cast<double>(counts.bytes_in));
  result.Set("waitSeconds", static_cast<double>(counts.wait_nanoseconds) / 1e9);
  result.Set("earlySeconds", static_cast<double>(counts.early_nanoseconds) / 1e9);
  result.Set("lateSeconds", static_cast<double>(counts.late_nanoseconds) / 1e9);
  return result;
}

Napi::Value bind_close_worker_link(Arguments& in, Napi::Env env) {
  registries().worker_links.remove(in.handle("worker link"));
  return env.Undefined();
}

/** (link, used by nothing else) => sender of pages to its attention worker */
Napi::Value bind_create_shard_sender(Arguments& in, Napi::Env env) {
  return number(env, registries().shard_senders.add(std::make_shared<ShardSender>(registries().worker_links.get(in.handle("worker link")))));
}

/** (sender, link for steps to the same worker): its steps wait for the sent pages of cancelled pulls */
Napi::Value bind_precede_steps(Arguments& in, Napi::Env env) {
  const auto sender = registries().shard_senders.get(in.handle("shard sender"));
  sender->precede(*registries().worker_links.get(in.handle("worker link")));
  return env.Undefined();
}

/** (sender, pool, shard, pages (n, 2): page of the pool, page of the worker) => number of the pull */
Napi::Value bind_send_shard(Arguments& in, Napi::Env env) {
  const auto sender = registries().shard_senders.get(in.handle("shard sender"));
  return number(env, begin_pull(in, *sender));
}

/** (sender, receive buffer, shard, pages (slots): of the worker) => number of the pull, which lasts until it is cancelled */
Napi::Value bind_send_received_shard(Arguments& in, Napi::Env env) {
  const auto sender = registries().shard_senders.get(in.handle("shard sender"));
  return number(env, begin_received_pull(in, *sender));
}

/** (sender, pull) => true once the worker has stored all its pages */
Napi::Value bind_is_shard_sent(Arguments& in, Napi::Env env) {
  const auto sender = registries().shard_senders.get(in.handle("shard sender"));
  return Napi::Boolean::New(env, sender->is_done(in.integer("pull", 0, INT32_MAX)));
}

/** (sender) => pages that the worker has stored */
Napi::Value bind_shard_pages_sent(Arguments& in, Napi::Env env) {
  return Napi::Number::New(env, static_cast<double>(registries().shard_senders.get(in.handle("shard sender"))->pages()));
}

/** (sender, pull): the worker writes nothing of it in later steps, nor after pages that are sent afterwards */
Napi::Value bind_cancel_shard(Arguments& in, Napi::Env env) {
  const auto sender = registries().shard_senders.get(in.handle("shard sender"));
  sender->cancel(in.integer("pull", 0, INT32_MAX));
  return env.Undefined();
}

/** (sender): breaks its link */
Napi::Value bind_free_shard_sender(Arguments& in, Napi::Env env) {
  registries().shard_senders.remove(in.handle("shard sender"));
  return env.Undefined();
}

}  // namespace

void bind_attention_workers(Napi::Env env, Napi::Object exports) {
  bind<bind_create_attention_worker>(env, exports, "createAttentionWorker");
  bind<bind_attention_worker_port>(env, exports, "attentionWorkerPort");
  bind<bind_attention_worker_counts>(env, exports, "attentionWorkerCounts");
  bind<bind_pull_pages>(env, exports, "pullPages");
  bind<bind_pull_received>(env, exports, "pullReceived");
  bind<bind_is_pulled>(env, exports, "isPulled");
  bind<bind_cancel_pull>(env, exports, "cancelPull");
  bind<bind_free_attention_worker>(env, exports, "freeAttentionWorker");
  bind<bind_open_worker_link>(env, exports, "openWorkerLink");
  bind<bind_begin_worker_link>(env, exports, "beginWorkerLink");
  bind<bind_poll_worker_link>(env, exports, "pollWorkerLink");
  bind<bind_worker_link_pages>(env, exports, "workerLinkPages");
  bind<bind_worker_link_broken>(env, exports, "workerLinkBroken");
  bind<bind_worker_link_counts>(env, exports, "workerLinkCounts");
  bind<bind_close_worker_link>(env, exports, "closeWorkerLink");
  bind<bind_create_shard_sender>(env, exports, "createShardSender");
  bind<bind_precede_steps>(env, exports, "precedeSteps");
  bind<bind_send_shard>(env, exports, "sendShard");
  bind<bind_send_received_shard>(env, exports, "sendReceivedShard");
  bind<bind_is_shard_sent>(env, exports, "isShardSent");
  bind<bind_shard_pages_sent>(env, exports, "shardPagesSent");
  bind<bind_cancel_shard>(env, exports, "cancelShard");
  bind<bind_free_shard_sender>(env, exports, "freeShardSender");
}

}  // namespace kvasir
