// A connection over two rings of bytes in memory, one each way. Its subclasses move the bytes between the processes.
#pragma once
#include <algorithm>
#include <cstring>

#include "base/spin.hpp"
#include "net/connection.hpp"
#include "net/shared_ring.hpp"

namespace kvasir {

/**
 * Waits spin briefly, then sleep. Received bytes are copied or consumed before use, so later writes of the peer do not
 * change them.
 */
class RingConnection : public Connection {
 public:
  bool has_rings() const final { return true; }
  bool is_readable() const final { return has_received(1); }
  bool spin_until_readable() const final {
    return spin([this] { return is_readable(); });
  }

  /** Bytes written before the end are still received. */
  int64_t receive_parts(const iovec* parts, int count) const final {
    const bool last = has_ended();
    size_t available = in_.available();
    if (available == RingEnd::kInvalid) return kBroken;
    if (available == 0) return !last ? kWouldBlock : has_failed() ? kBroken : 0;
    size_t moved = 0;
    const uint8_t* from = in_.next();
    for (int i = 0; i < count && available > 0; i++) {
      const size_t bytes = std::min(parts[i].iov_len, available);
      std::memcpy(parts[i].iov_base, from + moved, bytes);
      moved += bytes;
      available -= bytes;
    }
    consume(moved);
    return static_cast<int64_t>(moved);
  }

  const uint8_t* peek(size_t& bytes) const final {
    const size_t available = in_.available();
    bytes = available == RingEnd::kInvalid ? 0 : available;
    return in_.next();
  }

  int64_t send_parts(const iovec* parts, int count, bool) const final {
    const bool writable = is_writable();
    const size_t free = space();
    if (free == RingEnd::kInvalid || has_ended()) return kBroken;
    if (free == 0 || !writable) return kWouldBlock;
    size_t moved = 0;
    for (int i = 0; i < count && moved < free; i++) {
      const size_t bytes = std::min(parts[i].iov_len, free - moved);
      std::memcpy(out_.next() + moved, parts[i].iov_base, bytes);
      moved += bytes;
    }
    if (moved == 0 || write_out(moved)) return static_cast<int64_t>(moved);
    return has_failed() ? kBroken : kWouldBlock;
  }

  void await_bytes(size_t count) const final {
    const std::atomic<bool> never{false};
    await_received(std::min(count, kRingWaitBytes), in_milliseconds(kWaitMs), never);
  }

  bool can_reserve() const final {
    const bool writable = is_writable();
    const size_t free = space();
    return writable && free != RingEnd::kInvalid && free >= kReserveBytes && !has_ended();
  }

  uint8_t* reserve(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) final {
    static_assert(kReserveBytes <= kRingWaitBytes, "a reservation fits into a ring");
    if (!await_space(bytes, deadline, ended) || has_ended()) return nullptr;
    const size_t free = space();
    return free != RingEnd::kInvalid && free >= bytes ? out_.next() : nullptr;
  }

  bool commit(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) final {
    while (!has_ended()) {
      if (bytes == 0 || write_out(bytes)) return true;
      if (!await_space(0, deadline, ended)) return false;
    }
    return false;
  }

 protected:
  static constexpr int kWaitMs = 100;

  RingConnection(const RingEnd& in, const RingEnd& out) : in_(in), out_(out) {}

  virtual bool has_ended() const = 0;
  /** The connection broke, and bytes that the peer has sent may be missing. */
  virtual bool has_failed() const { return false; }
  /** Bytes that fit into the ring; `RingEnd::kInvalid` if the peer's position is impossible. */
  virtual size_t space() const { return out_.available(); }
  /** True if `write_out` would succeed. */
  virtual bool is_writable() const { return true; }
  /** Hands the next bytes of the ring to the peer. False if that is not possible now. */
  virtual bool write_out(size_t bytes) const = 0;
  /** As `await_readable`, for a number of bytes. */
  virtual bool await_received(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const = 0;
  /** Waits for space and until `write_out` would succeed. */
  virtual bool await_space(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const = 0;

  bool has_received(size_t bytes) const { return in_.available() >= bytes || has_ended(); }
  bool await(Ready ready, Deadline deadline, const std::atomic<bool>& ended) const final {
    return ready == Ready::to_receive ? await_received(1, deadline, ended) : await_space(1, deadline, ended);
  }

  RingEnd in_, out_;
};

}  // namespace kvasir
