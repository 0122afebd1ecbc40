// Frames are written in chunks: a summed chunk is still cached when it is copied, and stopping a stream waits for one
// chunk at most.
#include "transfer/frame_writer.hpp"

#include <algorithm>
#include <cstring>

namespace kvasir {
namespace {

/** Bytes of a chunk through rings and over TCP. */
constexpr size_t kCopyBytes = size_t{1} << 17, kChunkBytes = size_t{1} << 18;
/** Parts of one system call. */
constexpr size_t kPartsMost = 256;

}  // namespace

FrameWriter::FrameWriter(const KvPool& pool, Connection& connection, const std::atomic<bool>& broken)
    : pool_(pool), connection_(connection), broken_(broken), page_bytes_(pool.layout.page_bytes()) {}

bool FrameWriter::write(FrameHeader header, const std::vector<PageDescriptor>& descriptors, const ReadAccess& reading) {
  std::vector<uint32_t> slots;
  for (const PageDescriptor& descriptor : descriptors) slots.push_back(static_cast<uint32_t>(descriptor.slot));
  header.checksum = header_checksum(pool_.isa, header, slots.data());
  const size_t list_bytes = slots.size() * sizeof(uint32_t);
  head_.resize(sizeof header + list_bytes);
  std::memcpy(head_.data(), &header, sizeof header);
  if (list_bytes > 0) std::memcpy(head_.data() + sizeof header, slots.data(), list_bytes);
  return connection_.has_rings() ? write_copies(header, descriptors, reading) : write_in_place(header, descriptors, reading);
}

FrameWriter::Chunk FrameWriter::next(const FrameHeader& header, size_t from) const {
  const size_t to = std::min<size_t>(header.bytes, from + (connection_.has_rings() ? kCopyBytes : kChunkBytes));
  return {from, to, to == header.bytes};
}

bool FrameWriter::write_copies(const FrameHeader& header, const std::vector<PageDescriptor>& descriptors, const ReadAccess& reading) {
  PagesChecksum sum(pool_.isa, kPagesSeed, page_bytes_);
  bool readable = true;
  for (Chunk chunk = next(header, 0);; chunk = next(header, chunk.to)) {
    const size_t head = chunk.from == 0 ? head_.size() : 0, bytes = chunk.to - chunk.from;
    uint8_t* out = connection_.reserve(head + bytes + sizeof trailer_, kNever, broken_);
    if (out == nullptr) return false;
    if (head > 0) std::memcpy(out, head_.data(), head);
    readable = readable && reading.begin();
    if (readable) {
      copy_pages(descriptors, chunk, sum, out + head);
      reading.end();
    } else {
      std::memset(out + head, 0, bytes);
    }
    trailer_ = readable ? sum.value() : given_up(header);
    if (chunk.last) std::memcpy(out + head + bytes, &trailer_, sizeof trailer_);
    if (!connection_.commit(head + bytes + (chunk.last ? sizeof trailer_ : 0), kNever, broken_)) return false;
    if (chunk.last) return true;
  }
}

void FrameWriter::copy_pages(const std::vector<PageDescriptor>& descriptors, const Chunk& chunk, PagesChecksum& sum, uint8_t* out) const {
  for (size_t at = chunk.from; at < chunk.to;) {
    const size_t offset = at % page_bytes_, bytes = std::min(page_bytes_ - offset, chunk.to - at);
    sum.add(pool_.page(descriptors[at / page_bytes_].page) + offset, bytes, out + (at - chunk.from));
    at += bytes;
  }
}

bool FrameWriter::write_in_place(const FrameHeader& header, const std::vector<PageDescriptor>& descriptors, const ReadAccess& reading) {
  PagesChecksum sum(pool_.isa, kPagesSeed, page_bytes_);
  zeros_.resize(kChunkBytes);
  bool readable = true;
  for (Chunk chunk = next(header, 0);; chunk = next(header, chunk.to)) {
    parts_.clear();
    if (chunk.from == 0) add_part(head_.data(), head_.size());
    readable = readable && reading.begin();
    if (readable) add_pages(descriptors, chunk, sum);
    else if (chunk.to > chunk.from) add_part(zeros_.data(), chunk.to - chunk.from);
    trailer_ = readable ? sum.value() : given_up(header);
    if (chunk.last) add_part(&trailer_, sizeof trailer_);
    if (!send_parts(header, chunk, reading, readable)) return false;
    if (chunk.last) return true;
  }
}

void FrameWriter::add_pages(const std::vector<PageDescriptor>& descriptors, const Chunk& chunk, PagesChecksum& sum) {
  for (size_t at = chunk.from; at < chunk.to;) {
    const PageDescriptor& descriptor = descriptors[at / page_bytes_];
    const size_t offset = at % page_bytes_, bytes = std::min(page_bytes_ - offset, chunk.to - at);
    const uint8_t* page = pool_.page(descriptor.page) + offset;
    if (descriptor.filling) {
      copies_.resize(kChunkBytes);
      uint8_t* copy = copies_.data() + (at - chunk.from);
      sum.add(page, bytes, copy);
      add_part(copy, bytes);
    } else {
      sum.add(page, bytes);
      add_part(page, bytes);
    }
    at += bytes;
  }
}

/** Merges pages that are adjacent in the pool. */
void FrameWriter::add_part(const void* data, size_t bytes) {
  const iovec part = {const_cast<void*>(data), bytes};
  const bool contiguous = !parts_.empty() && is_page(parts_.back()) && is_page(part) && static_cast<uint8_t*>(parts_.back().iov_base) + parts_.back().iov_len == data;
  if (contiguous) parts_.back().iov_len += bytes;
  else parts_.push_back(part);
}

bool FrameWriter::is_page(const iovec& part) const {
  const auto* at = static_cast<const uint8_t*>(part.iov_base);
  return at >= pool_.data() && at < pool_.page(pool_.pages);
}

/** Replaces the unsent pages by zeros; false if none was left. */
bool FrameWriter::drop_pages(size_t first) {
  bool any = false;
  for (size_t i = first; i < parts_.size(); i++) {
    if (!is_page(parts_[i])) continue;
    parts_[i].iov_base = zeros_.data();
    any = true;
  }
  return any;
}

/** Pages are read only inside the send calls, and only while `readable`. */
bool FrameWriter::send_parts(const FrameHeader& header, const Chunk& chunk, const ReadAccess& reading, bool& readable) {
  for (size_t first = 0;;) {
    const size_t count = std::min(parts_.size() - first, kPartsMost);
    const int64_t sent = connection_.send_parts(parts_.data() + first, static_cast<int>(count), true);
    if (readable) reading.end();
    if (sent == Connection::kBroken) return false;
    size_t gone = static_cast<size_t>(std::max<int64_t>(sent, 0));
    for (; first < parts_.size() && gone >= parts_[first].iov_len; first++) gone -= parts_[first].iov_len;
    if (first == parts_.size()) return true;
    parts_[first].iov_base = static_cast<uint8_t*>(parts_[first].iov_base) + gone;
    parts_[first].iov_len -= gone;
    if (!connection_.await_writable(kNever, broken_)) return false;
    if (!readable) continue;
    readable = reading.begin();
    if (!readable && drop_pages(first) && chunk.last) trailer_ = given_up(header);
  }
}

}  // namespace kvasir
