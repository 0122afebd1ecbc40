// Accepting and greeting, and the other end of it: reaching whoever listens.
#include "net/listener.hpp"

#include <poll.h>

#include <stdexcept>

#include "net/shared_connection.hpp"

namespace kvasir {
namespace {

constexpr int kGreetMs = 5000;
constexpr int kWaitMs = 100;
constexpr size_t kConnectionsMax = 256;

std::unique_ptr<Line> reach_locally(Socket socket, const HashKey& key, const KvLayout& layout, Deadline deadline, const std::atomic<bool>& ended) {
  if (greet_as_sender(socket, key, layout, deadline, ended) != Greeting::done) return nullptr;
  return SharedLine::offer(std::move(socket), deadline, ended);
}

std::unique_ptr<Line> reach_by_tcp(const HostPort& address, const HashKey& key, const KvLayout& layout, int patience_ms, const std::atomic<bool>& ended) {
  auto socket = std::make_unique<Socket>(connect_to(address, in_milliseconds(patience_ms), ended));
  if (!socket->is_open() || greet_as_sender(*socket, key, layout, in_milliseconds(patience_ms), ended) != Greeting::done) return nullptr;
  return socket;
}

}  // namespace

std::unique_ptr<Line> reach(const HostPort& address, Way way, const HashKey& key, const KvLayout& layout, int patience_ms, const std::atomic<bool>& ended) {
  if (way != Way::tcp) {
    Socket socket = connect_locally(local_name(key, address));
    const Deadline deadline = in_milliseconds(patience_ms);
    auto line = socket.is_open() ? reach_locally(std::move(socket), key, layout, deadline, ended) : nullptr;
    // Who is there and does not answer would not do so by tcp.
    if (line != nullptr || std::chrono::steady_clock::now() >= deadline) return line;
  }
  return way == Way::shared ? nullptr : reach_by_tcp(address, key, layout, patience_ms, ended);
}

Listener::Listener(const HostPort& address, Way way, const HashKey& key, const KvLayout& layout, Serve serve)
    : key_(key), layout_(layout), serve_(std::move(serve)), listening_(listen_at(address)), port_(port_of(listening_)) {
  if (way != Way::tcp) local_ = listen_locally(local_name(key, {address.host, port_}));
  if (way == Way::shared && !local_.is_open()) throw std::runtime_error("Cannot share memory with other processes: this system has no sockets for it");
  thread_ = std::thread([this] { accept_all(); });
}

Listener::~Listener() {
  ended_ = true;
  thread_.join();
  reap(true);
}

void Listener::accept_all() {
  while (!ended_) {
    // A descriptor below 0 is passed over.
    pollfd waiting[2] = {{listening_.descriptor(), POLLIN, 0}, {local_.descriptor(), POLLIN, 0}};
    if (poll(waiting, 2, kWaitMs) <= 0) continue;
    reap(false);
    for (const bool is_local : {false, true}) {
      if (waiting[is_local ? 1 : 0].revents == 0) continue;
      auto socket = std::make_shared<Socket>(is_local ? accept_locally(local_) : accept_from(listening_));
      // Those who are too many, or came while no descriptor is free, try again.
      if (!socket->is_open() || connections_.size() >= kConnectionsMax) continue;
      Connection& connection = connections_.emplace_back();
      connection.thread = std::thread([this, &connection, socket, is_local] {
        greet(std::move(*socket), is_local);
        connection.over = true;
      });
    }
  }
}

void Listener::greet(Socket socket, bool is_local) {
  const Deadline deadline = in_milliseconds(kGreetMs);
  const Greeting greeting = greet_as_receiver(socket, key_, layout_, deadline, ended_);
  if (greeting == Greeting::refused) refused_++;
  if (greeting != Greeting::done) return;
  std::unique_ptr<Line> line;
  if (!is_local) socket.make_room();
  if (is_local) line = SharedLine::take(std::move(socket), deadline, ended_);
  else line = std::make_unique<Socket>(std::move(socket));
  if (line == nullptr) return;
  serve_(*line, ended_);
  line->cut();
}

void Listener::reap(bool all) {
  for (auto at = connections_.begin(); at != connections_.end();) {
    if (!all && !at->over) {
      ++at;
      continue;
    }
    at->thread.join();
    at = connections_.erase(at);
  }
}

}  // namespace kvasir
