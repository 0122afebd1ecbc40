// Shared by the addon's files: registries, argument readers, and the binding functions. Include <napi.h> first.
#pragma once
#include "addon/arguments.hpp"
#include "kv/page_loader.hpp"
#include "program/staggered.hpp"
#include "remote/listener.hpp"
#include "remote/server.hpp"
#include "store/block_store.hpp"
#include "transfer/local_page_sender.hpp"
#include "transfer/page_receiver.hpp"
#include "transfer/remote_page_sender.hpp"
#include "workers/attention_worker.hpp"
#include "workers/shard_sender.hpp"

namespace kvasir {

/** A linear layer and its shape, against which packing is checked. */
struct BoundLinear {
  std::shared_ptr<Linear> linear;
  std::vector<SegmentSpec> segments;
};

struct BoundCompletionQueue;

/**
 * One set of objects for all threads that load the addon. Never destroyed, because threads may outlive the main one.
 */
struct Registries {
  Registry<Backend> backends{"backend"};
  Registry<BoundLinear> linears{"linear layer"};
  Registry<const FloatVector> vectors{"vector"};
  Registry<KvPool> pools{"KV pool"};
  Registry<Program> programs{"program"};
  Registry<BoundCompletionQueue> completion_queues{"completion queue"};
  Registry<LayerArrivals> arrivals{"arrivals"};
  Registry<ReceiveBuffer> receive_buffers{"receive buffer"};
  Registry<LocalPageSender> local_senders{"local page sender"};
  Registry<PageLoader> page_loaders{"page loader"};
  Registry<BlockStore> block_stores{"block store"};
  Registry<RemoteAttentionEndpoint> remote_endpoints{"remote attention endpoint"};
  Registry<RemoteAttentionListener> remote_listeners{"remote attention listener"};
  Registry<AttentionWorker> attention_workers{"attention worker"};
  Registry<WorkerLink> worker_links{"worker link"};
  Registry<ShardSender> shard_senders{"shard sender"};
  Registry<WorkerLinkAttempt> worker_link_attempts{"attempt to open a worker link"};
  Registry<PageReceiver> page_receivers{"page receiver"};
  Registry<RemotePageSender> remote_senders{"remote page sender"};

  void forget_thread() {
    remote_senders.forget_thread();
    shard_senders.forget_thread();
    worker_links.forget_thread();
    worker_link_attempts.forget_thread();
    attention_workers.forget_thread();
    page_receivers.forget_thread();
    local_senders.forget_thread();
    block_stores.forget_thread();
    remote_listeners.forget_thread();
    remote_endpoints.forget_thread();
    page_loaders.forget_thread();
    receive_buffers.forget_thread();
    arrivals.forget_thread();
    completion_queues.forget_thread();
    programs.forget_thread();
    pools.forget_thread();
    vectors.forget_thread();
    linears.forget_thread();
    backends.forget_thread();
  }
};

Registries& registries();

inline Napi::Value number(Napi::Env env, double value) { return Napi::Number::New(env, value); }

/** Reads `step` and `descriptors (n, 3): layer, page, slot`. */
std::vector<PageDescriptor> descriptors_argument(Arguments& in);
/** Reads host and port. `port_least` 0 admits port 0, which chooses a free port. */
HostPort address_argument(Arguments& in, int port_least);
HashKey key_argument(Arguments& in);
Transport transport_argument(Arguments& in);
Napi::Object counts_object(Napi::Env env, const SendCounts& counts);

void bind_attention_workers(Napi::Env env, Napi::Object exports);
void bind_pools(Napi::Env env, Napi::Object exports);
void bind_local_transfers(Napi::Env env, Napi::Object exports);
void bind_remote_attention(Napi::Env env, Napi::Object exports);
void bind_remote_transfers(Napi::Env env, Napi::Object exports);
void bind_stores(Napi::Env env, Napi::Object exports);
void bind_weights(Napi::Env env, Napi::Object exports);
void bind_programs(Napi::Env env, Napi::Object exports);
void bind_benches(Napi::Env env, Napi::Object exports);

}  // namespace kvasir
