// A connection between two processes: a byte stream each way, over TCP, shared memory or RDMA. Calls return by a
// deadline.
#pragma once
#include <sys/uio.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvasir {

using Deadline = std::chrono::steady_clock::time_point;
inline Deadline in_milliseconds(int64_t count) { return std::chrono::steady_clock::now() + std::chrono::milliseconds(count); }
constexpr Deadline kNever = Deadline::max();

/**
 * How processes connect. `automatic`: over shared memory where possible, else over TCP. `rdma`: over RDMA where both
 * sides have a device, else over TCP.
 */
enum class Transport : int { automatic = 0, tcp = 1, shared = 2, rdma = 3 };

/**
 * At most one thread receives and one sends; any thread may shut it down. A wait checks its `ended` flag several times
 * a second.
 */
class Connection {
 public:
  virtual ~Connection() = default;
  virtual Transport transport() const = 0;
  /** Ends both directions for both sides and wakes the threads that wait. */
  virtual void shut_down() const = 0;

  /** Non-blocking calls return the bytes moved, 0 if the peer has ended, `kWouldBlock` or `kBroken`. */
  static constexpr int64_t kWouldBlock = -1, kBroken = -2;
  /** Scatters what has arrived into `parts`, in order. */
  virtual int64_t receive_parts(const iovec* parts, int count) const = 0;
  /** Gathers from `parts`. With `more` the transport may hold the last bytes back until the next call or `flush`. */
  virtual int64_t send_parts(const iovec* parts, int count, bool more) const = 0;
  virtual void flush() const {}
  int64_t receive_some(void* to, size_t bytes) const;
  int64_t send_some(const void* from, size_t bytes) const;

  /**
   * True if bytes pass through rings in memory. There `reserve` and `peek` save a copy; over TCP `receive_parts` and
   * `send_parts` cost least.
   */
  virtual bool has_rings() const { return false; }
  /** The received bytes in place, until `consume`; null without rings. The peer may still write to them. */
  virtual const uint8_t* peek(size_t& bytes) const {
    bytes = 0;
    return nullptr;
  }
  virtual void consume(size_t) const {}

  /** True if bytes have arrived or the peer has ended. */
  virtual bool is_readable() const = 0;
  /** As `is_readable`, after spinning for some microseconds at most. */
  virtual bool spin_until_readable() const = 0;
  /** False once `ended` is set or the deadline has passed. */
  bool await_readable(Deadline deadline, const std::atomic<bool>& ended) const { return await(Ready::to_receive, deadline, ended); }
  bool await_writable(Deadline deadline, const std::atomic<bool>& ended) const { return await(Ready::to_send, deadline, ended); }
  /**
   * Waits until `count` bytes have arrived, the peer has ended, or about 100 ms have passed. A larger count causes
   * fewer wake-ups.
   */
  virtual void await_bytes(size_t count) const = 0;

  /** True if `reserve` would return at once; false if unknown. */
  virtual bool can_reserve() const { return false; }
  /**
   * Memory for the next bytes to send, at most `kReserveBytes`, valid until `commit`; null if no space becomes free in
   * time.
   */
  static constexpr size_t kReserveBytes = size_t{1} << 18;
  virtual uint8_t* reserve(size_t bytes, Deadline deadline, const std::atomic<bool>& ended);
  /** Sends the first `bytes` of the reserved memory. */
  virtual bool commit(size_t bytes, Deadline deadline, const std::atomic<bool>& ended);

  /** Receives exactly `bytes`; false if that fails or times out. */
  bool receive(void* to, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const;
  bool send(const void* from, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const;

 protected:
  enum class Ready { to_receive, to_send };
  virtual bool await(Ready ready, Deadline deadline, const std::atomic<bool>& ended) const = 0;

 private:
  std::vector<uint8_t> staging_;  // reserved memory of connections without rings
};

}  // namespace kvasir
