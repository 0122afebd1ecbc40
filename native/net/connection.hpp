// A connection between two processes, whatever carries it: a stream of bytes each way that never blocks for longer than its user allows.
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

/** One thread receives and one sends; any may cut. Waits last a moment at a time, so that they notice when nobody wants them any more. */
class Line {
 public:
  virtual ~Line() = default;
  /** Ends what both sides do with it; whoever waits for it is woken. */
  virtual void cut() const = 0;

  /** What is there or can be taken, at once: bytes moved, 0 at the other side's end, or `kNothing` and `kBroken`. */
  static constexpr int64_t kNothing = -1, kBroken = -2;
  /** Into several places, one behind the other. */
  virtual int64_t receive_parts(const iovec* parts, int count) const = 0;
  /** From several places. With `more` the end of it may wait for what comes next, or for `flush`. */
  virtual int64_t send_parts(const iovec* parts, int count, bool more) const = 0;
  virtual void flush() const {}
  int64_t receive_some(void* to, size_t bytes) const;
  int64_t send_some(const void* from, size_t bytes) const;

  /** Is it memory of this host, that both sides have? There `draft` and `arrived` save a copy; elsewhere parts are what costs least. */
  virtual bool is_shared() const { return false; }
  /** What is there, where it lies until it is taken; nothing where the line is not shared. The other side may write to it still. */
  virtual const uint8_t* arrived(size_t& bytes) const {
    bytes = 0;
    return nullptr;
  }
  virtual void take(size_t) const {}

  /** At once? Also where the other side has ended. */
  virtual bool is_readable() const = 0;
  /** As `is_readable`, soon: looks for a moment, without sleeping. */
  virtual bool comes_soon() const = 0;
  /** False when `ended` is set or the deadline is over. */
  bool await_readable(Deadline deadline, const std::atomic<bool>& ended) const { return await(Ready::to_receive, deadline, ended); }
  bool await_writable(Deadline deadline, const std::atomic<bool>& ended) const { return await(Ready::to_send, deadline, ended); }
  /** Until so many bytes are there, the other side has ended, or a moment is over. Who waits for many is woken less often. */
  virtual void await_bytes(size_t count) const = 0;

  /** Would a draft be there at once? False where the line does not know. */
  virtual bool has_room() const { return false; }
  /** Where the next bytes to be sent are written, at most `kDraftBytes`, until they are posted; null where there will be no room for them. */
  static constexpr size_t kDraftBytes = size_t{1} << 18;
  virtual uint8_t* draft(size_t bytes, Deadline deadline, const std::atomic<bool>& ended);
  /** Sends the draft's first bytes. */
  virtual bool post(size_t bytes, Deadline deadline, const std::atomic<bool>& ended);

  /** All of it, or false. */
  bool receive(void* to, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const;
  bool send(const void* from, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const;

 protected:
  enum class Ready { to_receive, to_send };
  virtual bool await(Ready ready, Deadline deadline, const std::atomic<bool>& ended) const = 0;

 private:
  std::vector<uint8_t> draft_;  // of lines that are not shared
};

}  // namespace kvasir
