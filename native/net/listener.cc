// The accepting thread of a listener, and the connecting side.
#include "net/listener.hpp"

#include <poll.h>

#include <stdexcept>

#include "net/rdma_connection.hpp"
#include "net/shared_memory_connection.hpp"

namespace kvasir {
namespace {

constexpr int kHandshakeMs = 3000, kAgreementMs = 12000;
constexpr int kAcceptWaitMs = 100;
constexpr size_t kSessionsMax = 256;
/** Of the sessions, those that have not proved the key: other connections cannot take the places of peers. */
constexpr size_t kUnprovenMax = 32;

std::unique_ptr<Connection> connect_over_shared_memory(Socket socket, const HashKey& key, const KvLayout& layout, Deadline deadline, const std::atomic<bool>& ended) {
  if (handshake_as_sender(socket, key, layout, deadline, ended) != HandshakeResult::done) return nullptr;
  return SharedMemoryConnection::offer(std::move(socket), deadline, ended);
}

/** Null if the transport is another one, or this machine has no device. */
std::shared_ptr<RdmaDevice> device_for(Transport transport) {
  if (transport != Transport::rdma) return nullptr;
  try {
    return RdmaDevice::open();
  } catch (const std::runtime_error&) {
    return nullptr;
  }
}

/** Over RDMA if there is a device on both sides. */
std::unique_ptr<Connection> connect_over_network(const HostPort& address, const std::shared_ptr<RdmaDevice>& device, const HashKey& key, const KvLayout& layout, int timeout_ms,
                                                 const std::atomic<bool>& ended) {
  Socket socket = connect_to(address, in_milliseconds(timeout_ms), ended);
  bool rdma = device != nullptr;
  if (!socket.is_open() || handshake_as_sender(socket, key, layout, in_milliseconds(timeout_ms), ended, &rdma) != HandshakeResult::done) return nullptr;
  if (rdma) return RdmaConnection::agree_as_sender(std::move(socket), device, in_milliseconds(kAgreementMs), ended);
  return std::make_unique<Socket>(std::move(socket));
}

}  // namespace

std::unique_ptr<Connection> open_connection(const HostPort& address, Transport transport, const HashKey& key, const KvLayout& layout, int timeout_ms, const std::atomic<bool>& ended) {
  if (transport == Transport::automatic || transport == Transport::shared) {
    Socket socket = connect_locally(local_socket_name(key, address));
    const Deadline deadline = in_milliseconds(timeout_ms);
    auto connection = socket.is_open() ? connect_over_shared_memory(std::move(socket), key, layout, deadline, ended) : nullptr;
    // A listener that exists and does not answer in time would not answer over TCP either.
    if (connection != nullptr || std::chrono::steady_clock::now() >= deadline) return connection;
  }
  return transport == Transport::shared ? nullptr : connect_over_network(address, device_for(transport), key, layout, timeout_ms, ended);
}

Listener::Listener(const HostPort& address, Transport transport, const HashKey& key, const KvLayout& layout, Serve serve)
    : key_(key), layout_(layout), serve_(std::move(serve)), device_(device_for(transport)), listening_(listen_at(address)), port_(port_of(listening_)) {
  if (transport == Transport::automatic || transport == Transport::shared) local_ = listen_locally(local_socket_name(key, {address.host, port_}));
  if (transport == Transport::shared && !local_.is_open()) throw std::runtime_error("Cannot listen over shared memory: this system has no abstract Unix sockets");
  thread_ = std::thread([this] { accept_all(); });
}

Listener::~Listener() {
  ended_ = true;
  thread_.join();
  join_finished(true);
}

void Listener::accept_all() {
  while (!ended_) {
    // poll ignores negative descriptors.
    pollfd waiting[2] = {{listening_.descriptor(), POLLIN, 0}, {local_.descriptor(), POLLIN, 0}};
    if (poll(waiting, 2, kAcceptWaitMs) <= 0) continue;
    join_finished(false);
    for (const bool is_local : {false, true}) {
      if (waiting[is_local ? 1 : 0].revents == 0) continue;
      try {
        auto socket = std::make_shared<Socket>(is_local ? accept_locally(local_) : accept_from(listening_));
        // Refused at a limit, or without a descriptor: the peer retries.
        if (!socket->is_open() || !has_room()) continue;
        std::list<Session> started(1);
        Session& session = started.front();
        session.thread = std::thread([this, &session, socket, is_local] { serve_session(session, std::move(*socket), is_local); });
        sessions_.splice(sessions_.end(), started);
      } catch (const std::exception&) {
        // No thread can start now, or no memory is left: the connection is refused.
      }
    }
  }
}

bool Listener::has_room() const {
  size_t unproven = 0;
  for (const Session& session : sessions_) unproven += session.proven || session.over ? 0 : 1;
  return sessions_.size() < kSessionsMax && unproven < kUnprovenMax;
}

/** A session that lacks a thread or memory ends alone. */
void Listener::serve_session(Session& session, Socket socket, bool is_local) {
  try {
    handle(session, std::move(socket), is_local);
  } catch (const std::exception&) {
  }
  session.over = true;
}

void Listener::handle(Session& session, Socket socket, bool is_local) {
  const Deadline deadline = in_milliseconds(kHandshakeMs);
  bool rdma = device_ != nullptr && !is_local;
  const HandshakeResult result = handshake_as_receiver(socket, key_, layout_, deadline, ended_, &rdma);
  if (result == HandshakeResult::refused) refused_++;
  if (result != HandshakeResult::done) return;
  session.proven = true;
  std::unique_ptr<Connection> connection;
  if (!is_local) socket.enlarge_receive_buffer();
  if (is_local) connection = SharedMemoryConnection::accept(std::move(socket), deadline, ended_);
  else if (rdma) connection = RdmaConnection::agree_as_receiver(std::move(socket), device_, in_milliseconds(kAgreementMs), ended_);
  else connection = std::make_unique<Socket>(std::move(socket));
  if (connection == nullptr) {
    if (rdma) refused_++;
    return;
  }
  serve_(*connection, ended_);
  connection->shut_down();
}

void Listener::join_finished(bool all) {
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    if (!all && !at->over) {
      ++at;
      continue;
    }
    at->thread.join();
    at = sessions_.erase(at);
  }
}

}  // namespace kvasir
