// Creating pools, and opening those of other processes after a check of their description.
#include "kv/kv_pool.hpp"

#include <cstring>
#include <stdexcept>

namespace kvasir {
namespace {

constexpr uint64_t kMagic = 0x6c6f6f70'7369766bull;  // "kvispool"
constexpr uint32_t kVersion = 1;
constexpr int kSizeMax = 1 << 16;

/** The last bytes of a pool's shared memory object. */
struct Description {
  uint64_t magic;
  uint32_t version;
  int32_t type, kv_heads, head_dim, pages;
  uint32_t unused;
};

size_t object_bytes(const KvLayout& layout, int pages) { return layout.page_bytes() * static_cast<size_t>(pages) + sizeof(Description); }

std::string described(int pages) { return "a KV pool of " + std::to_string(pages) + " pages"; }

Description read_description(const std::string& name) {
  const size_t bytes = shared_object_bytes(name);
  Description found = {};
  if (bytes >= sizeof found) read_shared_object(name, bytes - sizeof found, &found, sizeof found);
  const bool known = found.magic == kMagic && found.version == kVersion;
  const bool sane = found.type >= 0 && found.type < kKvTypes && found.kv_heads > 0 && found.kv_heads <= kSizeMax && found.head_dim > 0 &&
                    found.head_dim <= kSizeMax && found.pages > 0;
  if (known && sane) return found;
  throw std::runtime_error("Cannot open KV pool " + name + ": it is not a pool of version " + std::to_string(kVersion));
}

}  // namespace

KvPool::KvPool(Isa of, const KvLayout& shape, int count)
    : isa(of), layout(shape), pages(count), memory_(object_bytes(shape, count), described(count)) {
  const Description own = {kMagic, kVersion, static_cast<int32_t>(shape.type), shape.kv_heads, shape.head_dim, count, 0};
  std::memcpy(memory_.data() + memory_.bytes() - sizeof own, &own, sizeof own);
}

KvPool::KvPool(Isa of, const KvLayout& shape, int count, const std::string& name)
    : isa(of), layout(shape), pages(count), memory_(name, object_bytes(shape, count), described(count)) {}

KvPool::KvPool(Isa of, const KvLayout& shape, int count, size_t bytes) : isa(of), layout(shape), pages(count), memory_(bytes, described(count)) {}

std::shared_ptr<KvPool> KvPool::at_workers(Isa isa, const KvLayout& layout, int pages) {
  return std::shared_ptr<KvPool>(new KvPool(isa, layout, pages, sizeof(Description)));
}

std::shared_ptr<KvPool> KvPool::open(Isa isa, const std::string& name) {
  const Description found = read_description(name);
  const KvLayout layout = {static_cast<KvType>(found.type), found.kv_heads, found.head_dim};
  return std::shared_ptr<KvPool>(new KvPool(isa, layout, found.pages, name));
}

}  // namespace kvasir
