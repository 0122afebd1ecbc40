// Sending and receiving whole messages over any transport.
#include "net/connection.hpp"

namespace kvasir {

int64_t Connection::receive_some(void* to, size_t bytes) const {
  const iovec all = {to, bytes};
  return receive_parts(&all, 1);
}

int64_t Connection::send_some(const void* from, size_t bytes) const {
  const iovec all = {const_cast<void*>(from), bytes};
  return send_parts(&all, 1, false);
}

uint8_t* Connection::reserve(size_t bytes, Deadline, const std::atomic<bool>&) {
  if (staging_.size() < bytes) staging_.resize(bytes);
  return staging_.data();
}

bool Connection::commit(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) { return send(staging_.data(), bytes, deadline, ended); }

bool Connection::receive(void* to, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const {
  auto* at = static_cast<uint8_t*>(to);
  while (bytes > 0) {
    const int64_t got = receive_some(at, bytes);
    if (got == 0 || got == kBroken) return false;
    if (got == kWouldBlock) {
      if (!await_readable(deadline, ended)) return false;
      continue;
    }
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool Connection::send(const void* from, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const {
  const auto* at = static_cast<const uint8_t*>(from);
  while (bytes > 0) {
    const int64_t sent = send_some(at, bytes);
    if (sent == kBroken) return false;
    if (sent == kWouldBlock) {
      if (!await_writable(deadline, ended)) return false;
      continue;
    }
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace kvasir
