// Bindings of remote attention: servers, listeners, clients, and their counters.
#include <napi.h>

#include "addon/addon.hpp"
#include "remote/client.hpp"
#include "remote/reader.hpp"

namespace kvasir {
namespace {

std::vector<int32_t> list(const Span<int32_t>& span) { return std::vector<int32_t>(span.data, span.data + span.size); }

/** A server of this process. */
std::shared_ptr<RemoteAttentionServer> server_argument(Arguments& in) {
  const int handle = in.handle("remote attention");
  auto server = std::dynamic_pointer_cast<RemoteAttentionServer>(registries().remote_endpoints.get(handle));
  if (server == nullptr) throw std::runtime_error("Cannot use remote attention server: it belongs to another process: " + std::to_string(handle));
  return server;
}

/** (backend, pool) => server */
Napi::Value bind_create_remote_attention_server(Arguments& in, Napi::Env env) {
  auto backend = registries().backends.get(in.handle("backend"));
  auto pool = registries().pools.get(in.handle("KV pool"));
  return number(env, registries().remote_endpoints.add(std::make_shared<RemoteAttentionServer>(std::move(backend), std::move(pool))));
}

/** (backend of the debtor, server, or client of a server of another process) => reader of its lent pages */
Napi::Value bind_create_remote_page_reader(Arguments& in, Napi::Env env) {
  auto backend = registries().backends.get(in.handle("backend"));
  auto endpoint = registries().remote_endpoints.get(in.handle("remote attention"));
  const auto server = std::dynamic_pointer_cast<RemoteAttentionServer>(endpoint);
  if (server != nullptr) return number(env, registries().remote_endpoints.add(std::make_shared<RemotePageReader>(std::move(backend), server)));
  return number(env, registries().remote_endpoints.add(std::make_shared<RemotePageFetcher>(std::move(backend), std::move(endpoint))));
}

/** (endpoint): refuses its open and later queries */
Napi::Value bind_free_remote_attention(Arguments& in, Napi::Env env) {
  const int handle = in.handle("remote attention");
  const auto server = registries().remote_endpoints.get(handle);
  registries().remote_endpoints.remove(handle);
  server->close();
  return env.Undefined();
}

/** (server, host, port, transport, key) => listener for clients of other processes; port 0 chooses a free port */
Napi::Value bind_open_remote_attention_listener(Arguments& in, Napi::Env env) {
  const auto server = server_argument(in);
  const HostPort address = address_argument(in, 0);
  const Transport transport = transport_argument(in);
  return number(env, registries().remote_listeners.add(std::make_shared<RemoteAttentionListener>(server, server->layout(), address, transport, key_argument(in))));
}

Napi::Value bind_remote_attention_listener_port(Arguments& in, Napi::Env env) { return number(env, registries().remote_listeners.get(in.handle("remote attention listener"))->port()); }

Napi::Value bind_close_remote_attention_listener(Arguments& in, Napi::Env env) {
  registries().remote_listeners.remove(in.handle("remote attention listener"));
  return env.Undefined();
}

/** (pool, host, port, transport, key) => client of the server at that address, over pages with the pool's layout */
Napi::Value bind_create_remote_attention_client(Arguments& in, Napi::Env env) {
  const auto pool = registries().pools.get(in.handle("KV pool"));
  const HostPort address = address_argument(in, 1);
  const Transport transport = transport_argument(in);
  return number(env, registries().remote_endpoints.add(std::make_shared<RemoteAttentionClient>(pool->layout, address, transport, key_argument(in))));
}

/** (server, loan, blocks, pages (blocks, layers)) */
Napi::Value bind_lend_blocks(Arguments& in, Napi::Env env) {
  const auto server = server_argument(in);
  const int loan = in.integer("loan", 0, INT32_MAX);
  const std::vector<int32_t> blocks = list(in.array<int32_t>("blocks"));
  server->lend(loan, blocks, list(in.array<int32_t>("pages")));
  return env.Undefined();
}

/** (server, loan, blocks): no query reads their pages after the return */
Napi::Value bind_take_back_blocks(Arguments& in, Napi::Env env) {
  const auto server = server_argument(in);
  const int loan = in.integer("loan", 0, INT32_MAX);
  server->take_back(loan, list(in.array<int32_t>("blocks")));
  return env.Undefined();
}

/** (server, loan, thousandths) */
Napi::Value bind_set_remote_attention_share(Arguments& in, Napi::Env env) {
  const auto server = server_argument(in);
  const int loan = in.integer("loan", 0, INT32_MAX);
  server->set_cpu_share(loan, in.integer("thousandths", 0, 1000));
  return env.Undefined();
}

Napi::Object counts_object(Napi::Env env, const RemoteAttentionServerCounts& counts) {
  Napi::Object result = Napi::Object::New(env);
  result.Set("queries", static_cast<double>(counts.queries));
  result.Set("rows", static_cast<double>(counts.rows));
  result.Set("refused", static_cast<double>(counts.refused));
  result.Set("seconds", static_cast<double>(counts.nanoseconds) / 1e9);
  result.Set("restSeconds", static_cast<double>(counts.throttled_nanoseconds) / 1e9);
  result.Set("bytesIn", static_cast<double>(counts.bytes_in));
  result.Set("bytesOut", static_cast<double>(counts.bytes_out));
  return result;
}

/** (server) => { queries, rows, refused, seconds, restSeconds, bytesIn, bytesOut } */
Napi::Value bind_remote_attention_server_counts(Arguments& in, Napi::Env env) { return counts_object(env, server_argument(in)->counts()); }

/** (server, loan) => the same counts for one loan */
Napi::Value bind_remote_attention_loan_counts(Arguments& in, Napi::Env env) {
  const auto server = server_argument(in);
  return counts_object(env, server->counts_of(in.integer("loan", 0, INT32_MAX)));
}

/** (backend) => { queries, bytesOut, bytesIn, waitSeconds } */
Napi::Value bind_remote_counts(Arguments& in, Napi::Env env) {
  const RemoteCounters& counters = registries().backends.get(in.handle("backend"))->remote;
  Napi::Object result = Napi::Object::New(env);
  result.Set("queries", static_cast<double>(counters.queries.load()));
  result.Set("bytesOut", static_cast<double>(counters.bytes_out.load()));
  result.Set("bytesIn", static_cast<double>(counters.bytes_in.load()));
  result.Set("waitSeconds", static_cast<double>(counters.wait_nanoseconds.load()) / 1e9);
  return result;
}

}  // namespace

void bind_remote_attention(Napi::Env env, Napi::Object exports) {
  bind<bind_create_remote_attention_server>(env, exports, "createRemoteAttentionServer");
  bind<bind_create_remote_page_reader>(env, exports, "createRemotePageReader");
  bind<bind_free_remote_attention>(env, exports, "freeRemoteAttention");
  bind<bind_open_remote_attention_listener>(env, exports, "openRemoteAttentionListener");
  bind<bind_remote_attention_listener_port>(env, exports, "remoteAttentionListenerPort");
  bind<bind_close_remote_attention_listener>(env, exports, "closeRemoteAttentionListener");
  bind<bind_create_remote_attention_client>(env, exports, "createRemoteAttentionClient");
  bind<bind_lend_blocks>(env, exports, "lendBlocks");
  bind<bind_take_back_blocks>(env, exports, "takeBackBlocks");
  bind<bind_set_remote_attention_share>(env, exports, "setRemoteAttentionShare");
  bind<bind_remote_attention_server_counts>(env, exports, "remoteAttentionServerCounts");
  bind<bind_remote_attention_loan_counts>(env, exports, "remoteAttentionLoanCounts");
  bind<bind_remote_counts>(env, exports, "remoteCounts");
}

}  // namespace kvasir
