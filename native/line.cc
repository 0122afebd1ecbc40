// Moving all of something, part after part.
#include "line.hpp"

namespace kvasir {

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
