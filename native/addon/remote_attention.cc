// Bindings of guest rooms, and of what steps ask of them.
#include <napi.h>

#include "addon/addon.hpp"
#include "remote/client.hpp"

namespace kvasir {
namespace {

std::vector<int32_t> list(const Span<int32_t>& span) { return std::vector<int32_t>(span.data, span.data + span.size); }

/** A room whose pages are of this process. */
std::shared_ptr<GuestRoom> own_room(Arguments& in) {
  const int handle = in.handle("guest room");
  auto room = std::dynamic_pointer_cast<GuestRoom>(registries().rooms.get(handle));
  if (room == nullptr) throw std::runtime_error("Cannot use guest room: its pages are another process's: " + std::to_string(handle));
  return room;
}

/** (team, pool) => room */
Napi::Value bind_create_guest_room(Arguments& in, Napi::Env env) {
  auto team = registries().teams.get(in.handle("backend"));
  auto pool = registries().pools.get(in.handle("KV pool"));
  return number(env, registries().rooms.add(std::make_shared<GuestRoom>(std::move(team), std::move(pool))));
}

/** (room): whoever still holds it is refused */
Napi::Value bind_free_guest_room(Arguments& in, Napi::Env env) {
  const int handle = in.handle("guest room");
  const auto room = registries().rooms.get(handle);
  registries().rooms.remove(handle);
  room->close();
  return env.Undefined();
}

/** (room, host, port, way, key) => door: where debtors of other processes reach the room; port 0: one that is free */
Napi::Value bind_open_guest_door(Arguments& in, Napi::Env env) {
  const auto room = own_room(in);
  const HostPort address = address_argument(in, 0);
  const Way way = way_argument(in);
  return number(env, registries().guest_doors.add(std::make_shared<GuestDoor>(room, room->layout(), address, way, key_argument(in))));
}

Napi::Value bind_guest_door_port(Arguments& in, Napi::Env env) { return number(env, registries().guest_doors.get(in.handle("guest door"))->port()); }

Napi::Value bind_close_guest_door(Arguments& in, Napi::Env env) {
  registries().guest_doors.remove(in.handle("guest door"));
  return env.Undefined();
}

/** (pool, host, port, way, key) => room: the one behind a door of another process, over pages like the pool's */
Napi::Value bind_reach_guest_room(Arguments& in, Napi::Env env) {
  const auto pool = registries().pools.get(in.handle("KV pool"));
  const HostPort address = address_argument(in, 1);
  const Way way = way_argument(in);
  return number(env, registries().rooms.add(std::make_shared<FarRoom>(pool->layout, address, way, key_argument(in))));
}

/** (room, loan, blocks, pages (blocks, layers)) */
Napi::Value bind_lend_blocks(Arguments& in, Napi::Env env) {
  const auto room = own_room(in);
  const int loan = in.integer("loan", 0, INT32_MAX);
  const std::vector<int32_t> blocks = list(in.array<int32_t>("blocks"));
  room->lend(loan, blocks, list(in.array<int32_t>("pages")));
  return env.Undefined();
}

/** (room, loan, blocks): once it returns no guest work touches their pages */
Napi::Value bind_take_back_blocks(Arguments& in, Napi::Env env) {
  const auto room = own_room(in);
  const int loan = in.integer("loan", 0, INT32_MAX);
  room->take_back(loan, list(in.array<int32_t>("blocks")));
  return env.Undefined();
}

/** (room, thousandths) */
Napi::Value bind_set_guest_share(Arguments& in, Napi::Env env) {
  const auto room = own_room(in);
  room->set_share(in.integer("thousandths", 0, 1000));
  return env.Undefined();
}

Napi::Object counts_object(Napi::Env env, const GuestRoomCounts& counts) {
  Napi::Object result = Napi::Object::New(env);
  result.Set("queries", static_cast<double>(counts.queries));
  result.Set("rows", static_cast<double>(counts.rows));
  result.Set("refused", static_cast<double>(counts.refused));
  result.Set("seconds", static_cast<double>(counts.nanoseconds) / 1e9);
  result.Set("restSeconds", static_cast<double>(counts.rest_nanoseconds) / 1e9);
  result.Set("bytesIn", static_cast<double>(counts.bytes_in));
  result.Set("bytesOut", static_cast<double>(counts.bytes_out));
  return result;
}

/** (room) => { queries, rows, refused, seconds, restSeconds, bytesIn, bytesOut } */
Napi::Value bind_guest_counts(Arguments& in, Napi::Env env) { return counts_object(env, own_room(in)->counts()); }

/** (room, loan) => the same, of that loan, but for the time */
Napi::Value bind_guest_counts_of(Arguments& in, Napi::Env env) {
  const auto room = own_room(in);
  return counts_object(env, room->counts_of(in.integer("loan", 0, INT32_MAX)));
}

/** (team) => { queries, bytesOut, bytesIn, waitSeconds } */
Napi::Value bind_remote_counts(Arguments& in, Napi::Env env) {
  const RemoteTally& tally = registries().teams.get(in.handle("backend"))->remote;
  Napi::Object result = Napi::Object::New(env);
  result.Set("queries", static_cast<double>(tally.queries.load()));
  result.Set("bytesOut", static_cast<double>(tally.bytes_out.load()));
  result.Set("bytesIn", static_cast<double>(tally.bytes_in.load()));
  result.Set("waitSeconds", static_cast<double>(tally.wait_nanoseconds.load()) / 1e9);
  return result;
}

}  // namespace

void bind_guests(Napi::Env env, Napi::Object exports) {
  bind<bind_create_guest_room>(env, exports, "createGuestRoom");
  bind<bind_free_guest_room>(env, exports, "freeGuestRoom");
  bind<bind_open_guest_door>(env, exports, "openGuestDoor");
  bind<bind_guest_door_port>(env, exports, "guestDoorPort");
  bind<bind_close_guest_door>(env, exports, "closeGuestDoor");
  bind<bind_reach_guest_room>(env, exports, "reachGuestRoom");
  bind<bind_lend_blocks>(env, exports, "lendBlocks");
  bind<bind_take_back_blocks>(env, exports, "takeBackBlocks");
  bind<bind_set_guest_share>(env, exports, "setGuestShare");
  bind<bind_guest_counts>(env, exports, "guestCounts");
  bind<bind_guest_counts_of>(env, exports, "guestCountsOf");
  bind<bind_remote_counts>(env, exports, "remoteCounts");
}

}  // namespace kvasir
