// A reader over a connection that reads ahead, so that small fields between pages cost no system call each.
#pragma once
#include <algorithm>
#include <cstring>

#include "net/connection.hpp"

namespace kvasir {

class BufferedReader {
 public:
  /** Destinations of one scattered read, in order. */
  class Parts {
   public:
    static constexpr int kMost = 64;
    bool is_full() const { return count_ == kMost; }
    /** Requires `!is_full()`. Merges with the last part if contiguous. */
    void add(void* to, size_t bytes) {
      if (ends_at(to)) parts_[count_ - 1].iov_len += bytes;
      else parts_[count_++] = {to, bytes};
      bytes_ += bytes;
    }

   private:
    friend class BufferedReader;
    bool ends_at(const void* at) const { return count_ > 0 && static_cast<const uint8_t*>(parts_[count_ - 1].iov_base) + parts_[count_ - 1].iov_len == at; }

    iovec parts_[kMost + 1];  // one more, for the read-ahead buffer
    int count_ = 0;
    size_t bytes_ = 0;
  };

  explicit BufferedReader(const Connection& connection) : connection_(connection) {}

  const Connection& connection() const { return connection_; }
  /** True if nothing is buffered. */
  bool is_empty() const { return begin_ == end_; }
  bool is_readable() const { return !is_empty() || connection_.is_readable(); }

  /** Waits until bytes are buffered; false if the connection has ended. */
  bool await_some(const std::atomic<bool>& ended) {
    while (is_empty()) {
      // A ring needs no read-ahead: a later read costs the same.
      const int64_t got = connection_.receive_some(ahead_, connection_.has_rings() ? 1 : sizeof ahead_);
      if (got == 0 || got == Connection::kBroken) return false;
      if (got > 0) keep(static_cast<size_t>(got));
      else if (!connection_.await_readable(kNever, ended)) return false;
    }
    return true;
  }

  /**
   * As `Connection::receive_parts`, with buffered bytes first. @param ahead also fills the read-ahead buffer if more
   * has arrived
   */
  int64_t receive_parts(Parts& parts, bool ahead) {
    if (!is_empty()) return static_cast<int64_t>(give(parts));
    const bool more = ahead && !connection_.has_rings();
    if (more) parts.parts_[parts.count_] = {ahead_, sizeof ahead_};
    const int64_t got = connection_.receive_parts(parts.parts_, parts.count_ + (more ? 1 : 0));
    if (got <= 0 || static_cast<size_t>(got) <= parts.bytes_) return got;
    keep(static_cast<size_t>(got) - parts.bytes_);
    return static_cast<int64_t>(parts.bytes_);
  }

  /** Receives exactly `bytes`; false if that fails or times out. */
  bool receive(void* to, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) {
    for (auto* at = static_cast<uint8_t*>(to); bytes > 0;) {
      Parts parts;
      parts.add(at, bytes);
      const int64_t got = receive_parts(parts, true);
      if (got == 0 || got == Connection::kBroken) return false;
      if (got == Connection::kWouldBlock) {
        if (!connection_.await_readable(deadline, ended)) return false;
        continue;
      }
      at += got;
      bytes -= static_cast<size_t>(got);
    }
    return true;
  }

 private:
  void keep(size_t bytes) {
    begin_ = 0;
    end_ = bytes;
  }

  size_t give(const Parts& parts) {
    const size_t before = begin_;
    for (int i = 0; i < parts.count_ && !is_empty(); i++) {
      const size_t bytes = std::min(parts.parts_[i].iov_len, end_ - begin_);
      std::memcpy(parts.parts_[i].iov_base, ahead_ + begin_, bytes);
      begin_ += bytes;
    }
    return begin_ - before;
  }

  const Connection& connection_;
  uint8_t ahead_[1024];  // holds the end of a frame and the next frame's header with its slots
  size_t begin_ = 0, end_ = 0;
};

}  // namespace kvasir
