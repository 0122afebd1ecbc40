// What the files of the addon share: the registries, and the functions that each file binds. Include <napi.h> first.
#pragma once
#include "addon/arguments.hpp"
#include "kv/page_loader.hpp"
#include "program/program.hpp"
#include "remote/listener.hpp"
#include "remote/server.hpp"
#include "store/block_store.hpp"
#include "transfer/local_page_sender.hpp"
#include "transfer/page_receiver.hpp"
#include "transfer/remote_page_sender.hpp"

namespace kvasir {

/** A linear layer beside the shape it was made of, to check packing against. */
struct BoundLinear {
  std::shared_ptr<Linear> linear;
  std::vector<SegmentSpec> segments;
};

struct BoundLandings;

/** Several threads load the addon: one set of objects serves them all. Never destroyed, since threads may outlive the main one's exit. */
struct Registries {
  Registry<Team> teams{"backend"};
  Registry<BoundLinear> linears{"linear layer"};
  Registry<const FloatVector> vectors{"vector"};
  Registry<KvPool> pools{"KV pool"};
  Registry<Program> programs{"program"};
  Registry<BoundLandings> landing_boards{"landings"};
  Registry<LayerArrivals> arrivals{"arrivals"};
  Registry<Landing> landings{"landing"};
  Registry<Messenger> messengers{"messenger"};
  Registry<PageLoader> page_loaders{"page loader"};
  Registry<BlockStore> block_stores{"block store"};
  Registry<Room> rooms{"guest room"};
  Registry<GuestDoor> guest_doors{"guest door"};
  Registry<PageReceiver> page_receivers{"page receiver"};
  Registry<FarMessenger> far_messengers{"far messenger"};

  void forget_thread() {
    far_messengers.forget_thread();
    page_receivers.forget_thread();
    messengers.forget_thread();
    block_stores.forget_thread();
    guest_doors.forget_thread();
    rooms.forget_thread();
    page_loaders.forget_thread();
    landings.forget_thread();
    arrivals.forget_thread();
    landing_boards.forget_thread();
    programs.forget_thread();
    pools.forget_thread();
    vectors.forget_thread();
    linears.forget_thread();
    teams.forget_thread();
  }
};

Registries& registries();

inline Napi::Value number(Napi::Env env, double value) { return Napi::Number::New(env, value); }

/** Reads `step` and `parcels (n, 3): layer, page, place` of what is to be sent. */
std::vector<Parcel> parcels_argument(Arguments& in);
/** Host and port; `least` 0 where any free port will do. */
HostPort address_argument(Arguments& in, int least);
HashKey key_argument(Arguments& in);
Way way_argument(Arguments& in);
Napi::Object counts_object(Napi::Env env, const MessengerCounts& counts);

void bind_pools(Napi::Env env, Napi::Object exports);
void bind_transfers(Napi::Env env, Napi::Object exports);
void bind_guests(Napi::Env env, Napi::Object exports);
void bind_far(Napi::Env env, Napi::Object exports);
void bind_stores(Napi::Env env, Napi::Object exports);
void bind_weights(Napi::Env env, Napi::Object exports);
void bind_programs(Napi::Env env, Napi::Object exports);
void bind_benches(Napi::Env env, Napi::Object exports);

}  // namespace kvasir
