// The functions of libibverbs, found at run time.
#pragma once
#include "rdma/verbs_abi.hpp"

namespace kvasir {

/** Each member is the function `ibv_` plus its name. */
struct VerbsLibrary {
  verbs::Device** (*get_device_list)(int* count);
  void (*free_device_list)(verbs::Device** list);
  const char* (*get_device_name)(verbs::Device* device);
  verbs::Context* (*open_device)(verbs::Device* device);
  int (*close_device)(verbs::Context* context);
  int (*query_port)(verbs::Context* context, uint8_t port, verbs::PortAttributes* attributes);
  int (*query_gid)(verbs::Context* context, uint8_t port, int index, verbs::Gid* gid);
  verbs::ProtectionDomain* (*alloc_pd)(verbs::Context* context);
  int (*dealloc_pd)(verbs::ProtectionDomain* domain);
  verbs::MemoryRegion* (*reg_mr)(verbs::ProtectionDomain* domain, void* address, size_t bytes, int access);
  int (*dereg_mr)(verbs::MemoryRegion* region);
  verbs::CompletionChannel* (*create_comp_channel)(verbs::Context* context);
  int (*destroy_comp_channel)(verbs::CompletionChannel* channel);
  verbs::CompletionQueue* (*create_cq)(verbs::Context* context, int entries, void* user, verbs::CompletionChannel* channel, int vector);
  int (*destroy_cq)(verbs::CompletionQueue* queue);
  int (*get_cq_event)(verbs::CompletionChannel* channel, verbs::CompletionQueue** queue, void** user);
  void (*ack_cq_events)(verbs::CompletionQueue* queue, unsigned count);
  verbs::QueuePair* (*create_qp)(verbs::ProtectionDomain* domain, verbs::QueuePairOptions* options);
  int (*modify_qp)(verbs::QueuePair* pair, verbs::QueuePairAttributes* attributes, int mask);
  int (*destroy_qp)(verbs::QueuePair* pair);

  /**
   * Loads `KVASIR_IBVERBS`, a path, or libibverbs.so.1. The library stays loaded: drivers of it cannot be unloaded.
   * @throws std::runtime_error with the reason if the library or one of the functions is missing
   */
  static VerbsLibrary load();
};

}  // namespace kvasir
