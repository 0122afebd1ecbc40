// Moving all of something, part after part, whatever carries it.
#include "net/connection.hpp"

namespace kvasir {

int64_t Line::receive_some(void* to, size_t bytes) const {
  const iovec all = {to, bytes};
  return receive_parts(&all, 1);
}

int64_t Line::send_some(const void* from, size_t bytes) const {
  const iovec all = {const_cast<void*>(from), bytes};
  return send_parts(&all, 1, false);
}

uint8_t* Line::draft(size_t bytes, Deadline, const std::atomic<bool>&) {
  if (draft_.size() < bytes) draft_.resize(bytes);
  return draft_.data();
}

bool Line::post(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) { return send(draft_.data(), bytes, deadline, ended); }

bool Line::receive(void* to, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const {
  auto* at = static_cast<uint8_t*>(to);
  while (bytes > 0) {
    const int64_t got = receive_some(at, bytes);
    if (got == 0 || got == kBroken) return false;
    if (got == kNothing) {
      if (!await_readable(deadline, ended)) return false;
      continue;
    }
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool Line::send(const void* from, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const {
  const auto* at = static_cast<const uint8_t*>(from);
  while (bytes > 0) {
    const int64_t sent = send_some(at, bytes);
    if (sent == kBroken) return false;
    if (sent == kNothing) {
      if (!await_writable(deadline, ended)) return false;
      continue;
    }
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace kvasir
