// Pieces of a frame, so that what was checked is in the cache still when it is copied, and stopping a stream waits for no more than one of them.
#include "transfer/frame_writer.hpp"

#include <algorithm>
#include <cstring>

namespace kvasir {
namespace {

/** Copied into a line's memory, or sent straight, at once. */
constexpr size_t kCopyBytes = size_t{1} << 17, kPieceBytes = size_t{1} << 18;
/** Given to the system at once. */
constexpr size_t kPartsMost = 256;

}  // namespace

FrameWriter::FrameWriter(const KvPool& pool, Line& line, const std::atomic<bool>& broken)
    : pool_(pool), line_(line), broken_(broken), page_bytes_(pool.layout.page_bytes()) {}

bool FrameWriter::write(FrameHeader header, const std::vector<Parcel>& parcels, const Reading& reading) {
  std::vector<uint32_t> places;
  for (const Parcel& parcel : parcels) places.push_back(static_cast<uint32_t>(parcel.place));
  header.checksum = header_checksum(pool_.isa, header, places.data());
  const size_t list_bytes = places.size() * sizeof(uint32_t);
  head_.resize(sizeof header + list_bytes);
  std::memcpy(head_.data(), &header, sizeof header);
  if (list_bytes > 0) std::memcpy(head_.data() + sizeof header, places.data(), list_bytes);
  return line_.is_shared() ? write_copies(header, parcels, reading) : write_straight(header, parcels, reading);
}

FrameWriter::Piece FrameWriter::next(const FrameHeader& header, size_t from) const {
  const size_t to = std::min<size_t>(header.bytes, from + (line_.is_shared() ? kCopyBytes : kPieceBytes));
  return {from, to, to == header.bytes};
}

bool FrameWriter::write_copies(const FrameHeader& header, const std::vector<Parcel>& parcels, const Reading& reading) {
  PagesChecksum sum(pool_.isa, kPagesSeed, page_bytes_);
  bool wanted = true;
  for (Piece piece = next(header, 0);; piece = next(header, piece.to)) {
    const size_t head = piece.from == 0 ? head_.size() : 0, bytes = piece.to - piece.from;
    uint8_t* out = line_.draft(head + bytes + sizeof end_, kNever, broken_);
    if (out == nullptr) return false;
    if (head > 0) std::memcpy(out, head_.data(), head);
    wanted = wanted && reading.begin();
    if (wanted) {
      copy_pages(parcels, piece, sum, out + head);
      reading.end();
    } else {
      std::memset(out + head, 0, bytes);
    }
    end_ = wanted ? sum.value() : given_up(header);
    if (piece.all) std::memcpy(out + head + bytes, &end_, sizeof end_);
    if (!line_.post(head + bytes + (piece.all ? sizeof end_ : 0), kNever, broken_)) return false;
    if (piece.all) return true;
  }
}

void FrameWriter::copy_pages(const std::vector<Parcel>& parcels, const Piece& piece, PagesChecksum& sum, uint8_t* out) const {
  for (size_t at = piece.from; at < piece.to;) {
    const size_t offset = at % page_bytes_, bytes = std::min(page_bytes_ - offset, piece.to - at);
    sum.add(pool_.page(parcels[at / page_bytes_].page) + offset, bytes, out + (at - piece.from));
    at += bytes;
  }
}

bool FrameWriter::write_straight(const FrameHeader& header, const std::vector<Parcel>& parcels, const Reading& reading) {
  PagesChecksum sum(pool_.isa, kPagesSeed, page_bytes_);
  zeros_.resize(kPieceBytes);
  bool wanted = true;
  for (Piece piece = next(header, 0);; piece = next(header, piece.to)) {
    parts_.clear();
    if (piece.from == 0) add_part(head_.data(), head_.size());
    wanted = wanted && reading.begin();
    if (wanted) add_pages(parcels, piece, sum);
    else if (piece.to > piece.from) add_part(zeros_.data(), piece.to - piece.from);
    end_ = wanted ? sum.value() : given_up(header);
    if (piece.all) add_part(&end_, sizeof end_);
    if (!send_parts(header, piece, reading, wanted)) return false;
    if (piece.all) return true;
  }
}

void FrameWriter::add_pages(const std::vector<Parcel>& parcels, const Piece& piece, PagesChecksum& sum) {
  for (size_t at = piece.from; at < piece.to;) {
    const Parcel& parcel = parcels[at / page_bytes_];
    const size_t offset = at % page_bytes_, bytes = std::min(page_bytes_ - offset, piece.to - at);
    const uint8_t* page = pool_.page(parcel.page) + offset;
    if (parcel.fills) {
      copies_.resize(kPieceBytes);
      uint8_t* copy = copies_.data() + (at - piece.from);
      sum.add(page, bytes, copy);
      add_part(copy, bytes);
    } else {
      sum.add(page, bytes);
      add_part(page, bytes);
    }
    at += bytes;
  }
}

/** Pages that are neighbours in the pool are one part. */
void FrameWriter::add_part(const void* data, size_t bytes) {
  const iovec part = {const_cast<void*>(data), bytes};
  const bool goes_on = !parts_.empty() && is_page(parts_.back()) && is_page(part) && static_cast<uint8_t*>(parts_.back().iov_base) + parts_.back().iov_len == data;
  if (goes_on) parts_.back().iov_len += bytes;
  else parts_.push_back(part);
}

bool FrameWriter::is_page(const iovec& part) const {
  const auto* at = static_cast<const uint8_t*>(part.iov_base);
  return at >= pool_.data() && at < pool_.page(pool_.pages);
}

/** Nothing is read any more of what has not left; false where that was no page. */
bool FrameWriter::drop_pages(size_t first) {
  bool any = false;
  for (size_t i = first; i < parts_.size(); i++) {
    if (!is_page(parts_[i])) continue;
    parts_[i].iov_base = zeros_.data();
    any = true;
  }
  return any;
}

/** Pages are read inside the calls alone, and only while `wanted`. */
bool FrameWriter::send_parts(const FrameHeader& header, const Piece& piece, const Reading& reading, bool& wanted) {
  for (size_t first = 0;;) {
    const size_t count = std::min(parts_.size() - first, kPartsMost);
    const int64_t sent = line_.send_parts(parts_.data() + first, static_cast<int>(count), true);
    if (wanted) reading.end();
    if (sent == Line::kBroken) return false;
    size_t gone = static_cast<size_t>(std::max<int64_t>(sent, 0));
    for (; first < parts_.size() && gone >= parts_[first].iov_len; first++) gone -= parts_[first].iov_len;
    if (first == parts_.size()) return true;
    parts_[first].iov_base = static_cast<uint8_t*>(parts_[first].iov_base) + gone;
    parts_[first].iov_len -= gone;
    if (!line_.await_writable(kNever, broken_)) return false;
    if (!wanted) continue;
    wanted = reading.begin();
    if (!wanted && drop_pages(first) && piece.all) end_ = given_up(header);
  }
}

}  // namespace kvasir
