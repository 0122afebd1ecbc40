// Bindings of transfers between processes: receivers that admit senders to landings, and messengers that send to addresses.
#include <napi.h>

#include <unordered_set>

#include "addon/addon.hpp"
#include "bench/cores.hpp"
#include "bench/sockets.hpp"

namespace kvasir {
namespace {

constexpr int kFrameBytesMax = 1 << 26;

/** What a messenger is told about a landing of another process: messenger, host, port, number, key as text, places. */
struct FarTarget {
  explicit FarTarget(Arguments& in) : messenger(registries().far_messengers.get(in.handle("far messenger"))), address(address_argument(in, 1)) {
    landing.number = static_cast<uint32_t>(in.handle("landing"));
    landing.key = std::strtoull(in.text("landing key").c_str(), nullptr, 16);
    landing.places = in.integer("places", 0, INT32_MAX);
  }
  std::shared_ptr<FarMessenger> messenger;
  HostPort address;
  RemoteLanding landing;
};

/** (pool, host, port, way, key) => receiver; port 0: one that is free */
Napi::Value bind_create_receiver(Arguments& in, Napi::Env env) {
  const auto pool = registries().pools.get(in.handle("KV pool"));
  const HostPort address = address_argument(in, 0);
  const Way way = way_argument(in);
  return number(env, registries().page_receivers.add(std::make_shared<PageReceiver>(pool, address, way, key_argument(in))));
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

/** (receiver, landing) => key, as text, that senders have to name */
Napi::Value bind_admit_landing(Arguments& in, Napi::Env env) {
  const auto receiver = registries().page_receivers.get(in.handle("page receiver"));
  return Napi::String::New(env, key_text(receiver->admit(registries().landings.get(in.handle("landing")))));
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

/** (pool, way, key, frameBytes, giveUpMs) => messenger */
Napi::Value bind_create_far_messenger(Arguments& in, Napi::Env env) {
  const auto pool = registries().pools.get(in.handle("KV pool"));
  const Way way = way_argument(in);
  const HashKey key = key_argument(in);
  const auto frame_bytes = static_cast<size_t>(in.integer("frameBytes", 1, kFrameBytesMax));
  const int give_up_ms = in.integer("giveUpMs", 0, INT32_MAX);
  return number(env, registries().far_messengers.add(std::make_shared<FarMessenger>(pool, way, key, frame_bytes, give_up_ms)));
}

/** (target, step, parcels (n, 3): layer, page, place, last, pages of them that may be written meanwhile) */
Napi::Value bind_send_pages_far(Arguments& in, Napi::Env env) {
  const FarTarget to(in);
  std::vector<Parcel> parcels = parcels_argument(in);
  const bool last = in.integer("last", 0, 1) == 1;
  const Span<int32_t> filling = in.array<int32_t>("pages that fill");
  const std::unordered_set<int32_t> fills(filling.data, filling.data + filling.size);
  for (Parcel& parcel : parcels) parcel.fills = fills.count(parcel.page) > 0;
  to.messenger->send(to.address, to.landing, parcels, last);
  return env.Undefined();
}

/** (target): once it returns nothing is read for it any more */
Napi::Value bind_stop_sending_far(Arguments& in, Napi::Env env) {
  const FarTarget to(in);
  to.messenger->stop(to.address, to.landing);
  return env.Undefined();
}

/** (target) => parcels for it whose pages may still be read */
Napi::Value bind_left_far(Arguments& in, Napi::Env env) {
  const FarTarget to(in);
  return number(env, static_cast<double>(to.messenger->left(to.address, to.landing)));
}

/** (messenger, host, port) => way by which pages get there; automatic: none yet */
Napi::Value bind_way_to(Arguments& in, Napi::Env env) {
  const auto messenger = registries().far_messengers.get(in.handle("far messenger"));
  return number(env, static_cast<int>(messenger->way_to(address_argument(in, 1))));
}

/** (messenger) => addresses of landings that have been given up since the last call: HOST:PORT/NUMBER/KEY/PLACES */
Napi::Value bind_take_given_up(Arguments& in, Napi::Env env) {
  Napi::Array all = Napi::Array::New(env);
  registries().far_messengers.get(in.handle("far messenger"))->take_given_up([&](const HostPort& address, const RemoteLanding& landing) {
    const std::string numbers = std::to_string(landing.number) + "/" + key_text(landing.key) + "/" + std::to_string(landing.places);
    all.Set(all.Length(), Napi::String::New(env, address.host + ":" + std::to_string(address.port) + "/" + numbers));
  });
  return all;
}

/** (messenger) => { pages, bytes, earlyBytes, streams, firstPages, copySeconds, broken, givenUp } */
Napi::Value bind_far_messenger_counts(Arguments& in, Napi::Env env) {
  const SenderCounts counts = registries().far_messengers.get(in.handle("far messenger"))->counts();
  Napi::Object result = counts_object(env, counts.sent);
  result.Set("broken", static_cast<double>(counts.broken));
  result.Set("givenUp", static_cast<double>(counts.given_up));
  return result;
}

Napi::Value bind_free_far_messenger(Arguments& in, Napi::Env env) {
  registries().far_messengers.remove(in.handle("far messenger"));
  return env.Undefined();
}

/** (from, to, chunkBytes, pages, cores of the reader) => seconds that a bare socket loop takes to bring the same pages from one pool to the other */
Napi::Value bind_bench_sockets(Arguments& in, Napi::Env env) {
  const auto from = registries().pools.get(in.handle("KV pool")), to = registries().pools.get(in.handle("KV pool"));
  const auto chunk_bytes = static_cast<size_t>(in.integer("chunkBytes", 1, kFrameBytesMax));
  const auto bytes = static_cast<size_t>(in.integer("pages", 1, std::min(from->pages, to->pages))) * from->layout.page_bytes();
  return number(env, bench_sockets(from->data(), to->data(), bytes, chunk_bytes, cores_argument(in)));
}

/** () => cores that this thread may run on; empty where the system does not say */
Napi::Value bind_allowed_cores(Arguments&, Napi::Env env) {
  const std::vector<int> cores = allowed_cores();
  Napi::Array all = Napi::Array::New(env, cores.size());
  for (size_t i = 0; i < cores.size(); i++) all.Set(static_cast<uint32_t>(i), cores[i]);
  return all;
}

/** (cores): this thread, and those that it starts, stay on them */
Napi::Value bind_stay_on(Arguments& in, Napi::Env env) {
  stay_on(cores_argument(in));
  return env.Undefined();
}

}  // namespace

HostPort address_argument(Arguments& in, int port_least) {
  HostPort address;
  address.host = in.text("host");
  address.port = in.integer("port", port_least, 65535);
  return address;
}

Way way_argument(Arguments& in) { return static_cast<Way>(in.integer("way", 0, static_cast<int>(Way::shared))); }

HashKey key_argument(Arguments& in) {
  const Span<uint8_t> bytes = in.array<uint8_t>("key");
  HashKey key;
  if (bytes.size != key.size()) throw std::runtime_error("Cannot use the cluster's key: it has " + std::to_string(bytes.size) + " bytes, not 32");
  std::copy(bytes.data, bytes.data + bytes.size, key.begin());
  return key;
}

void bind_far(Napi::Env env, Napi::Object exports) {
  bind<bind_create_receiver>(env, exports, "createReceiver");
  bind<bind_receiver_port>(env, exports, "receiverPort");
  bind<bind_admit_landing>(env, exports, "admitLanding");
  bind<bind_receiver_counts>(env, exports, "receiverCounts");
  bind<bind_free_receiver>(env, exports, "freeReceiver");
  bind<bind_create_far_messenger>(env, exports, "createFarMessenger");
  bind<bind_send_pages_far>(env, exports, "sendPagesFar");
  bind<bind_stop_sending_far>(env, exports, "stopSendingFar");
  bind<bind_left_far>(env, exports, "leftFar");
  bind<bind_way_to>(env, exports, "wayTo");
  bind<bind_take_given_up>(env, exports, "takeGivenUp");
  bind<bind_far_messenger_counts>(env, exports, "farMessengerCounts");
  bind<bind_free_far_messenger>(env, exports, "freeFarMessenger");
  bind<bind_bench_sockets>(env, exports, "benchSockets");
  bind<bind_allowed_cores>(env, exports, "allowedCores");
  bind<bind_stay_on>(env, exports, "stayOn");
}

}  // namespace kvasir
