// Bindings of transfers between processes: page receivers, and senders to their receive buffers.
#include <napi.h>

#include <unordered_set>

#include "addon/addon.hpp"
#include "bench/cores.hpp"
#include "bench/sockets.hpp"
#include "net/rdma_connection.hpp"

namespace kvasir {
namespace {

constexpr int kFrameBytesMax = 1 << 26;

/** A receive buffer of another process: sender, host, port, number, key as text, slots. */
struct RemoteTarget {
  explicit RemoteTarget(Arguments& in) : sender(registries().remote_senders.get(in.handle("remote page sender"))), address(address_argument(in, 1)) {
    buffer.number = static_cast<uint32_t>(in.handle("receive buffer"));
    buffer.key = std::strtoull(in.text("receive buffer key").c_str(), nullptr, 16);
    buffer.slots = in.integer("slots", 0, INT32_MAX);
  }
  std::shared_ptr<RemotePageSender> sender;
  HostPort address;
  RemoteReceiveBuffer buffer;
};

/** (pool, host, port, transport, key) => receiver; port 0 chooses a free port */
Napi::Value bind_create_receiver(Arguments& in, Napi::Env env) {
  const auto pool = registries().pools.get(in.handle("KV pool"));
  const HostPort address = address_argument(in, 0);
  const Transport transport = transport_argument(in);
  return number(env, registries().page_receivers.add(std::make_shared<PageReceiver>(pool, address, transport, key_argument(in))));
}

Napi::Value bind_receiver_port(Arguments& in, Napi::Env env) { return number(env, registries().page_receivers.get(in.handle("page receiver"))->port()); }

std::vector<int> cores_argument(Arguments& in) {
  const Span<int32_t> cores = in.array<int32_t>("cores");
  return std::vector<int>(cores.data, cores.data + cores.size);
}

std::string key_text(uint64_t key) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(key));
  return text;
}

/** (receiver, buffer) => key, as text, that senders must present */
Napi::Value bind_register_receive_buffer(Arguments& in, Napi::Env env) {
  const auto receiver = registries().page_receivers.get(in.handle("page receiver"));
  return Napi::String::New(env, key_text(receiver->register_buffer(registries().receive_buffers.get(in.handle("receive buffer")))));
}

/** (receiver) => { pages, bytes, late, refused, broken } */
Napi::Value bind_receiver_counts(Arguments& in, Napi::Env env) {
  const ReceiverCounts counts = registries().page_receivers.get(in.handle("page receiver"))->counts();
  Napi::Object result = Napi::Object::New(env);
  result.Set("pages", static_cast<double>(counts.pages));
  result.Set("bytes", static_cast<double>(counts.bytes));
  result.Set("late", static_cast<double>(counts.late));
  result.Set("refused", static_cast<double>(counts.refused));
  result.Set("broken", static_cast<double>(counts.broken));
  return result;
}

Napi::Value bind_free_receiver(Arguments& in, Napi::Env env) {
  registries().page_receivers.remove(in.handle("page receiver"));
  return env.Undefined();
}

/** (pool, transport, key, frameBytes, giveUpMs) => sender */
Napi::Value bind_create_remote_sender(Arguments& in, Napi::Env env) {
  const auto pool = registries().pools.get(in.handle("KV pool"));
  const Transport transport = transport_argument(in);
  const HashKey key = key_argument(in);
  const auto frame_bytes = static_cast<size_t>(in.integer("frameBytes", 1, kFrameBytesMax));
  const int give_up_ms = in.integer("giveUpMs", 0, INT32_MAX);
  return number(env, registries().remote_senders.add(std::make_shared<RemotePageSender>(pool, transport, key, frame_bytes, give_up_ms)));
}

/** (target, step, descriptors (n, 3): layer, page, slot, last, pages that may be written while they are sent) */
Napi::Value bind_send_pages_remote(Arguments& in, Napi::Env env) {
  const RemoteTarget to(in);
  std::vector<PageDescriptor> descriptors = descriptors_argument(in);
  const bool last = in.integer("last", 0, 1) == 1;
  const Span<int32_t> filling_pages = in.array<int32_t>("filling pages");
  const std::unordered_set<int32_t> filling(filling_pages.data, filling_pages.data + filling_pages.size);
  for (PageDescriptor& descriptor : descriptors) descriptor.filling = filling.count(descriptor.page) > 0;
  to.sender->send(to.address, to.buffer, descriptors, last);
  return env.Undefined();
}

/** (target): the sender reads none of the buffer's pages after the return */
Napi::Value bind_stop_sending_remote(Arguments& in, Napi::Env env) {
  const RemoteTarget to(in);
  to.sender->stop(to.address, to.buffer);
  return env.Undefined();
}

/** (target) => queued and unacknowledged pages */
Napi::Value bind_pending_pages_remote(Arguments& in, Napi::Env env) {
  const RemoteTarget to(in);
  return number(env, static_cast<double>(to.sender->pending(to.address, to.buffer)));
}

/** (sender, host, port) => transport of the latest connection; `automatic` before the first */
Napi::Value bind_transport_to(Arguments& in, Napi::Env env) {
  const auto sender = registries().remote_senders.get(in.handle("remote page sender"));
  return number(env, static_cast<int>(sender->transport_to(address_argument(in, 1))));
}

/** (sender) => addresses of receive buffers given up since the last call: HOST:PORT/NUMBER/KEY/SLOTS */
Napi::Value bind_take_given_up(Arguments& in, Napi::Env env) {
  Napi::Array all = Napi::Array::New(env);
  registries().remote_senders.get(in.handle("remote page sender"))->take_given_up([&](const HostPort& address, const RemoteReceiveBuffer& buffer) {
    const std::string numbers = std::to_string(buffer.number) + "/" + key_text(buffer.key) + "/" + std::to_string(buffer.slots);
    all.Set(all.Length(), Napi::String::New(env, address.host + ":" + std::to_string(address.port) + "/" + numbers));
  });
  return all;
}

/** (sender) => { pages, bytes, earlyBytes, streams, firstPages, copySeconds, broken, givenUp } */
Napi::Value bind_remote_sender_counts(Arguments& in, Napi::Env env) {
  const PeerSendCounts counts = registries().remote_senders.get(in.handle("remote page sender"))->counts();
  Napi::Object result = counts_object(env, counts.sent);
  result.Set("broken", static_cast<double>(counts.broken));
  result.Set("givenUp", static_cast<double>(counts.given_up));
  return result;
}

Napi::Value bind_free_remote_sender(Arguments& in, Napi::Env env) {
  registries().remote_senders.remove(in.handle("remote page sender"));
  return env.Undefined();
}

/**
 * (from, to, chunkBytes, pages, cores of the reader) => seconds in which a plain socket loop moves the same pages
 * between the pools
 */
Napi::Value bind_bench_sockets(Arguments& in, Napi::Env env) {
  const auto from = registries().pools.get(in.handle("KV pool")), to = registries().pools.get(in.handle("KV pool"));
  const auto chunk_bytes = static_cast<size_t>(in.integer("chunkBytes", 1, kFrameBytesMax));
  const auto bytes = static_cast<size_t>(in.integer("pages", 1, std::min(from->pages, to->pages))) * from->layout.page_bytes();
  return number(env, bench_sockets(from->data(), to->data(), bytes, chunk_bytes, cores_argument(in)));
}

/** () => name of the RDMA device over which processes can connect. Throws with the reason if there is none. */
Napi::Value bind_rdma_device(Arguments&, Napi::Env env) {
  const std::shared_ptr<RdmaDevice> device = RdmaDevice::open();
  RdmaConnection::try_device(device);
  return Napi::String::New(env, device->name());
}

/** () => cores that this thread may run on; empty if unknown */
Napi::Value bind_allowed_cores(Arguments&, Napi::Env env) {
  const std::vector<int> cores = allowed_cores();
  Napi::Array all = Napi::Array::New(env, cores.size());
  for (size_t i = 0; i < cores.size(); i++) all.Set(static_cast<uint32_t>(i), cores[i]);
  return all;
}

/** (cores): pins this thread, and the threads it starts, to them */
Napi::Value bind_set_thread_affinity(Arguments& in, Napi::Env env) {
  set_thread_affinity(cores_argument(in));
  return env.Undefined();
}

}  // namespace

HostPort address_argument(Arguments& in, int port_least) {
  HostPort address;
  address.host = in.text("host");
  address.port = in.integer("port", port_least, 65535);
  return address;
}

Transport transport_argument(Arguments& in) { return static_cast<Transport>(in.integer("transport", 0, static_cast<int>(Transport::rdma))); }

HashKey key_argument(Arguments& in) {
  const Span<uint8_t> bytes = in.array<uint8_t>("key");
  HashKey key;
  if (bytes.size != key.size()) throw std::runtime_error("Cannot use the cluster's key: it has " + std::to_string(bytes.size) + " bytes, not 32");
  std::copy(bytes.data, bytes.data + bytes.size, key.begin());
  return key;
}

void bind_remote_transfers(Napi::Env env, Napi::Object exports) {
  bind<bind_create_receiver>(env, exports, "createReceiver");
  bind<bind_receiver_port>(env, exports, "receiverPort");
  bind<bind_register_receive_buffer>(env, exports, "registerReceiveBuffer");
  bind<bind_receiver_counts>(env, exports, "receiverCounts");
  bind<bind_free_receiver>(env, exports, "freeReceiver");
  bind<bind_create_remote_sender>(env, exports, "createRemoteSender");
  bind<bind_send_pages_remote>(env, exports, "sendPagesRemote");
  bind<bind_stop_sending_remote>(env, exports, "stopSendingRemote");
  bind<bind_pending_pages_remote>(env, exports, "pendingPagesRemote");
  bind<bind_transport_to>(env, exports, "transportTo");
  bind<bind_take_given_up>(env, exports, "takeGivenUp");
  bind<bind_remote_sender_counts>(env, exports, "remoteSenderCounts");
  bind<bind_free_remote_sender>(env, exports, "freeRemoteSender");
  bind<bind_bench_sockets>(env, exports, "benchSockets");
  bind<bind_allowed_cores>(env, exports, "allowedCores");
  bind<bind_rdma_device>(env, exports, "rdmaDevice");
  bind<bind_set_thread_affinity>(env, exports, "setThreadAffinity");
}

}  // namespace kvasir
