// The part of the binary interface of libibverbs that Kvasir uses. No header of libibverbs is needed to compile.
//
// Layouts and numbers are those of `libibverbs/verbs.h` of rdma-core 44.0 (symbol versions IBVERBS_1.0 and 1.1, which
// no later release has changed). Each declaration names its counterpart. test/native/rdma/verbs_abi_check.cc
// compares sizes, offsets and numbers with that header where it is installed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvasir::verbs {

struct Device;            // struct ibv_device
struct ProtectionDomain;  // struct ibv_pd
struct CompletionQueue;   // struct ibv_cq
struct WorkCompletion;
struct SendRequest;
struct ReceiveRequest;
struct QueuePair;

/** struct ibv_context_ops: the fast operations of a driver. Words without a name are not used. */
struct ContextOps {
  void* unused_until_poll[11];
  int (*poll_completions)(CompletionQueue* queue, int count, WorkCompletion* completions);  // poll_cq
  int (*request_event)(CompletionQueue* queue, int solicited_only);                         // req_notify_cq
  void* unused_until_post[12];
  int (*post_send)(QueuePair* pair, SendRequest* request, SendRequest** failed);
  int (*post_receive)(QueuePair* pair, ReceiveRequest* request, ReceiveRequest** failed);  // post_recv
  void* unused_at_end[5];
};

/** struct ibv_context: an open device. Fields behind `ops` are not used. */
struct Context {
  Device* device;
  ContextOps ops;
};

/** struct ibv_mr */
struct MemoryRegion {
  Context* context;
  ProtectionDomain* domain;
  void* address;
  size_t bytes;
  uint32_t handle;
  uint32_t local_key;   // lkey
  uint32_t remote_key;  // rkey
};

/** struct ibv_comp_channel: becomes readable when a completion queue has an event. */
struct CompletionChannel {
  Context* context;
  int descriptor;  // fd
  int references;  // refcnt
};

/** struct ibv_qp; fields behind `number` are not used. */
struct QueuePair {
  Context* context;
  void* user;
  ProtectionDomain* domain;
  CompletionQueue* send_queue;
  CompletionQueue* receive_queue;
  void* shared_receive_queue;
  uint32_t handle;
  uint32_t number;  // qp_num
};

/** struct ibv_port_attr */
struct PortAttributes {
  int32_t state;
  int32_t mtu_most;    // max_mtu
  int32_t mtu_active;  // active_mtu
  int32_t gids;        // gid_tbl_len
  uint32_t capabilities;
  uint32_t message_bytes_most;
  uint32_t bad_partition_keys;
  uint32_t bad_queue_keys;
  uint16_t partition_keys;
  uint16_t lid;
  uint16_t manager_lid;
  uint8_t unused[8];
  uint8_t link_layer;
  uint8_t flags;
  uint16_t more_capabilities;
};

/** union ibv_gid */
struct alignas(8) Gid {
  uint8_t raw[16];
};

/** struct ibv_global_route */
struct GlobalRoute {
  Gid destination;
  uint32_t flow_label;
  uint8_t source_index;  // sgid_index
  uint8_t hop_limit;
  uint8_t traffic_class;
};

/** struct ibv_ah_attr */
struct Path {
  GlobalRoute route;
  uint16_t destination_lid;
  uint8_t service_level;
  uint8_t source_path;
  uint8_t rate;
  uint8_t is_global;
  uint8_t port;
};

/** struct ibv_qp_cap */
struct QueueLimits {
  uint32_t send_requests, receive_requests, send_parts, receive_parts, inline_bytes;
};

/** struct ibv_qp_init_attr */
struct QueuePairOptions {
  void* user;
  CompletionQueue* send_queue;
  CompletionQueue* receive_queue;
  void* shared_receive_queue;
  QueueLimits limits;
  int32_t type;
  int32_t signals_all;  // sq_sig_all
};

/** struct ibv_qp_attr */
struct QueuePairAttributes {
  int32_t state;
  int32_t current_state;
  int32_t path_mtu;
  int32_t migration;
  uint32_t queue_key;
  uint32_t receive_packet;  // rq_psn
  uint32_t send_packet;     // sq_psn
  uint32_t peer_number;     // dest_qp_num
  uint32_t access;          // qp_access_flags
  QueueLimits limits;
  Path path;  // ah_attr
  Path alternative_path;
  uint16_t partition_index;  // pkey_index
  uint16_t alternative_partition;
  uint8_t notifies_drain;
  uint8_t drains;
  uint8_t reads_most;           // max_rd_atomic
  uint8_t incoming_reads_most;  // max_dest_rd_atomic
  uint8_t not_ready_delay;      // min_rnr_timer
  uint8_t port;                 // port_num
  uint8_t timeout;
  uint8_t retries;            // retry_cnt
  uint8_t not_ready_retries;  // rnr_retry
  uint8_t alternative_port;
  uint8_t alternative_timeout;
  uint32_t rate_limit;
};

/** struct ibv_sge: a part of registered memory. */
struct MemoryPart {
  uint64_t address;
  uint32_t bytes;
  uint32_t local_key;
};

/** struct ibv_send_wr, with the member `wr.rdma` of its union */
struct SendRequest {
  uint64_t id;
  SendRequest* next;
  MemoryPart* parts;
  int32_t part_count;
  int32_t operation;  // opcode
  uint32_t flags;
  uint32_t immediate;
  uint64_t remote_address;
  uint32_t remote_key;
  uint32_t unused_of_union[3];
  uint64_t unused_at_end[8];
};

/** struct ibv_recv_wr */
struct ReceiveRequest {
  uint64_t id;
  ReceiveRequest* next;
  MemoryPart* parts;
  int32_t part_count;
};

/** struct ibv_wc */
struct WorkCompletion {
  uint64_t id;
  int32_t status;
  int32_t operation;
  uint32_t vendor_error;
  uint32_t bytes;
  uint32_t immediate;
  uint32_t pair_number;
  uint32_t source_pair;
  uint32_t flags;
  uint16_t partition_index;
  uint16_t source_lid;
  uint8_t service_level;
  uint8_t destination_path;
};

/** enum ibv_port_state, and link_layer of struct ibv_port_attr */
constexpr int32_t kPortActive = 4;
constexpr uint8_t kInfiniBand = 1, kEthernet = 2;
/** enum ibv_mtu: 256 to 4,096 bytes */
constexpr int32_t kMtuLeast = 1, kMtuMost = 5;
/** enum ibv_access_flags */
constexpr int kLocalWrite = 1, kRemoteWrite = 2;
/** enum ibv_qp_type: a reliable connection */
constexpr int32_t kReliable = 2;
/** enum ibv_qp_state */
constexpr int32_t kInitialised = 1, kReadyToReceive = 2, kReadyToSend = 3, kFailed = 6;
/** enum ibv_qp_attr_mask */
constexpr int kSetState = 1 << 0, kSetAccess = 1 << 3, kSetPartition = 1 << 4, kSetPort = 1 << 5, kSetPath = 1 << 7, kSetMtu = 1 << 8, kSetTimeout = 1 << 9,
              kSetRetries = 1 << 10, kSetNotReadyRetries = 1 << 11, kSetReceivePacket = 1 << 12, kSetReads = 1 << 13, kSetNotReadyDelay = 1 << 15,
              kSetSendPacket = 1 << 16, kSetIncomingReads = 1 << 17, kSetPeer = 1 << 20;
/** enum ibv_wr_opcode */
constexpr int32_t kWrite = 0, kWriteWithImmediate = 1;
/** enum ibv_send_flags */
constexpr uint32_t kSignaled = 2, kInline = 8;
/** enum ibv_wc_status */
constexpr int32_t kSuccess = 0, kFlushed = 5, kRemoteAccessError = 10, kRetriesExceeded = 12;

}  // namespace kvasir::verbs
