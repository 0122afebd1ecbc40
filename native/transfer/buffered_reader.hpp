// What arrives over a connection, some of it ahead of being asked for: the small things between pages cost no call of the system each.
#pragma once
#include <algorithm>
#include <cstring>

#include "net/connection.hpp"

namespace kvasir {

class BufferedReader {
 public:
  /** Places, one behind the other. */
  class Parts {
   public:
    static constexpr int kMost = 64;
    bool is_full() const { return count_ == kMost; }
    /** Before it is full. What matches on where the last part ends is one with it. */
    void add(void* to, size_t bytes) {
      if (ends_at(to)) parts_[count_ - 1].iov_len += bytes;
      else parts_[count_++] = {to, bytes};
      bytes_ += bytes;
    }

   private:
    friend class BufferedReader;
    bool ends_at(const void* at) const { return count_ > 0 && static_cast<const uint8_t*>(parts_[count_ - 1].iov_base) + parts_[count_ - 1].iov_len == at; }

    iovec parts_[kMost + 1];  // the last for what comes ahead
    int count_ = 0;
    size_t bytes_ = 0;
  };

  explicit BufferedReader(const Connection& connection) : connection_(connection) {}

  const Connection& connection() const { return connection_; }
  /** Is nothing here ahead? */
  bool is_empty() const { return begin_ == end_; }
  bool is_readable() const { return !is_empty() || connection_.is_readable(); }

  /** Waits until something is here; false where nothing comes any more. */
  bool await_some(const std::atomic<bool>& ended) {
    while (is_empty()) {
      // From memory nothing is taken ahead: it is as cheap later.
      const int64_t got = connection_.receive_some(ahead_, connection_.is_shared() ? 1 : sizeof ahead_);
      if (got == 0 || got == Connection::kBroken) return false;
      if (got > 0) keep(static_cast<size_t>(got));
      else if (!connection_.await_readable(kNever, ended)) return false;
    }
    return true;
  }

  /** As `Connection::receive_parts`, with what is here first. @param ahead takes more, if it is there */
  int64_t receive_parts(Parts& parts, bool ahead) {
    if (!is_empty()) return static_cast<int64_t>(give(parts));
    const bool more = ahead && !connection_.is_shared();
    if (more) parts.parts_[parts.count_] = {ahead_, sizeof ahead_};
    const int64_t got = connection_.receive_parts(parts.parts_, parts.count_ + (more ? 1 : 0));
    if (got <= 0 || static_cast<size_t>(got) <= parts.bytes_) return got;
    keep(static_cast<size_t>(got) - parts.bytes_);
    return static_cast<int64_t>(parts.bytes_);
  }

  /** All of it, or false. */
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
  uint8_t ahead_[1024];  // the end of a frame and the head of the next, with its slots
  size_t begin_ = 0, end_ = 0;
};

}  // namespace kvasir
