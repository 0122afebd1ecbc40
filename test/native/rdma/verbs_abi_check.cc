// Compares the declarations of native/rdma/verbs_abi.hpp with the installed header of libibverbs. Compiling it is the
// check.
#include <infiniband/verbs.h>

#include "rdma/verbs_abi.hpp"

namespace v = kvasir::verbs;

#define SAME_SIZE(OWN, THEIRS) static_assert(sizeof(OWN) == sizeof(THEIRS), #THEIRS)
#define SAME_PLACE(OWN, FIELD, THEIRS, THEIR_FIELD) \
  static_assert(offsetof(OWN, FIELD) == offsetof(THEIRS, THEIR_FIELD) && sizeof(OWN::FIELD) == sizeof(THEIRS::THEIR_FIELD), #THEIRS "." #THEIR_FIELD)

SAME_SIZE(v::ContextOps, ibv_context_ops);
SAME_PLACE(v::ContextOps, poll_completions, ibv_context_ops, poll_cq);
SAME_PLACE(v::ContextOps, request_event, ibv_context_ops, req_notify_cq);
SAME_PLACE(v::ContextOps, post_send, ibv_context_ops, post_send);
SAME_PLACE(v::ContextOps, post_receive, ibv_context_ops, post_recv);
SAME_PLACE(v::Context, device, ibv_context, device);
SAME_PLACE(v::Context, ops, ibv_context, ops);

SAME_SIZE(v::MemoryRegion, ibv_mr);
SAME_PLACE(v::MemoryRegion, local_key, ibv_mr, lkey);
SAME_PLACE(v::MemoryRegion, remote_key, ibv_mr, rkey);
SAME_PLACE(v::MemoryRegion, address, ibv_mr, addr);
SAME_PLACE(v::MemoryRegion, bytes, ibv_mr, length);

SAME_SIZE(v::CompletionChannel, ibv_comp_channel);
SAME_PLACE(v::CompletionChannel, descriptor, ibv_comp_channel, fd);
SAME_PLACE(v::QueuePair, number, ibv_qp, qp_num);
SAME_PLACE(v::QueuePair, context, ibv_qp, context);

SAME_SIZE(v::PortAttributes, ibv_port_attr);
SAME_PLACE(v::PortAttributes, state, ibv_port_attr, state);
SAME_PLACE(v::PortAttributes, mtu_active, ibv_port_attr, active_mtu);
SAME_PLACE(v::PortAttributes, gids, ibv_port_attr, gid_tbl_len);
SAME_PLACE(v::PortAttributes, lid, ibv_port_attr, lid);
SAME_PLACE(v::PortAttributes, link_layer, ibv_port_attr, link_layer);
SAME_SIZE(v::Gid, ibv_gid);

SAME_SIZE(v::GlobalRoute, ibv_global_route);
SAME_PLACE(v::GlobalRoute, destination, ibv_global_route, dgid);
SAME_PLACE(v::GlobalRoute, source_index, ibv_global_route, sgid_index);
SAME_PLACE(v::GlobalRoute, hop_limit, ibv_global_route, hop_limit);
SAME_SIZE(v::Path, ibv_ah_attr);
SAME_PLACE(v::Path, route, ibv_ah_attr, grh);
SAME_PLACE(v::Path, destination_lid, ibv_ah_attr, dlid);
SAME_PLACE(v::Path, service_level, ibv_ah_attr, sl);
SAME_PLACE(v::Path, is_global, ibv_ah_attr, is_global);
SAME_PLACE(v::Path, port, ibv_ah_attr, port_num);

SAME_SIZE(v::QueueLimits, ibv_qp_cap);
SAME_PLACE(v::QueueLimits, send_requests, ibv_qp_cap, max_send_wr);
SAME_PLACE(v::QueueLimits, receive_requests, ibv_qp_cap, max_recv_wr);
SAME_PLACE(v::QueueLimits, send_parts, ibv_qp_cap, max_send_sge);
SAME_PLACE(v::QueueLimits, receive_parts, ibv_qp_cap, max_recv_sge);
SAME_PLACE(v::QueueLimits, inline_bytes, ibv_qp_cap, max_inline_data);
SAME_SIZE(v::QueuePairOptions, ibv_qp_init_attr);
SAME_PLACE(v::QueuePairOptions, send_queue, ibv_qp_init_attr, send_cq);
SAME_PLACE(v::QueuePairOptions, receive_queue, ibv_qp_init_attr, recv_cq);
SAME_PLACE(v::QueuePairOptions, limits, ibv_qp_init_attr, cap);
SAME_PLACE(v::QueuePairOptions, type, ibv_qp_init_attr, qp_type);
SAME_PLACE(v::QueuePairOptions, signals_all, ibv_qp_init_attr, sq_sig_all);

SAME_SIZE(v::QueuePairAttributes, ibv_qp_attr);
SAME_PLACE(v::QueuePairAttributes, state, ibv_qp_attr, qp_state);
SAME_PLACE(v::QueuePairAttributes, path_mtu, ibv_qp_attr, path_mtu);
SAME_PLACE(v::QueuePairAttributes, receive_packet, ibv_qp_attr, rq_psn);
SAME_PLACE(v::QueuePairAttributes, send_packet, ibv_qp_attr, sq_psn);
SAME_PLACE(v::QueuePairAttributes, peer_number, ibv_qp_attr, dest_qp_num);
SAME_PLACE(v::QueuePairAttributes, access, ibv_qp_attr, qp_access_flags);
SAME_PLACE(v::QueuePairAttributes, path, ibv_qp_attr, ah_attr);
SAME_PLACE(v::QueuePairAttributes, partition_index, ibv_qp_attr, pkey_index);
SAME_PLACE(v::QueuePairAttributes, reads_most, ibv_qp_attr, max_rd_atomic);
SAME_PLACE(v::QueuePairAttributes, incoming_reads_most, ibv_qp_attr, max_dest_rd_atomic);
SAME_PLACE(v::QueuePairAttributes, not_ready_delay, ibv_qp_attr, min_rnr_timer);
SAME_PLACE(v::QueuePairAttributes, port, ibv_qp_attr, port_num);
SAME_PLACE(v::QueuePairAttributes, timeout, ibv_qp_attr, timeout);
SAME_PLACE(v::QueuePairAttributes, retries, ibv_qp_attr, retry_cnt);
SAME_PLACE(v::QueuePairAttributes, not_ready_retries, ibv_qp_attr, rnr_retry);

SAME_SIZE(v::MemoryPart, ibv_sge);
SAME_PLACE(v::MemoryPart, address, ibv_sge, addr);
SAME_PLACE(v::MemoryPart, bytes, ibv_sge, length);
SAME_PLACE(v::MemoryPart, local_key, ibv_sge, lkey);
SAME_SIZE(v::SendRequest, ibv_send_wr);
SAME_PLACE(v::SendRequest, id, ibv_send_wr, wr_id);
SAME_PLACE(v::SendRequest, next, ibv_send_wr, next);
SAME_PLACE(v::SendRequest, parts, ibv_send_wr, sg_list);
SAME_PLACE(v::SendRequest, part_count, ibv_send_wr, num_sge);
SAME_PLACE(v::SendRequest, operation, ibv_send_wr, opcode);
SAME_PLACE(v::SendRequest, flags, ibv_send_wr, send_flags);
SAME_PLACE(v::SendRequest, immediate, ibv_send_wr, imm_data);
SAME_PLACE(v::SendRequest, remote_address, ibv_send_wr, wr.rdma.remote_addr);
SAME_PLACE(v::SendRequest, remote_key, ibv_send_wr, wr.rdma.rkey);
SAME_SIZE(v::ReceiveRequest, ibv_recv_wr);
SAME_PLACE(v::ReceiveRequest, part_count, ibv_recv_wr, num_sge);
SAME_SIZE(v::WorkCompletion, ibv_wc);
SAME_PLACE(v::WorkCompletion, id, ibv_wc, wr_id);
SAME_PLACE(v::WorkCompletion, status, ibv_wc, status);
SAME_PLACE(v::WorkCompletion, operation, ibv_wc, opcode);

static_assert(v::kPortActive == IBV_PORT_ACTIVE && v::kInfiniBand == IBV_LINK_LAYER_INFINIBAND && v::kEthernet == IBV_LINK_LAYER_ETHERNET, "ports");
static_assert(v::kMtuLeast == IBV_MTU_256 && v::kMtuMost == IBV_MTU_4096, "ibv_mtu");
static_assert(v::kLocalWrite == IBV_ACCESS_LOCAL_WRITE && v::kRemoteWrite == IBV_ACCESS_REMOTE_WRITE, "ibv_access_flags");
static_assert(v::kReliable == IBV_QPT_RC, "ibv_qp_type");
static_assert(v::kInitialised == IBV_QPS_INIT && v::kReadyToReceive == IBV_QPS_RTR && v::kReadyToSend == IBV_QPS_RTS && v::kFailed == IBV_QPS_ERR, "ibv_qp_state");
static_assert(v::kSetState == IBV_QP_STATE && v::kSetAccess == IBV_QP_ACCESS_FLAGS && v::kSetPartition == IBV_QP_PKEY_INDEX && v::kSetPort == IBV_QP_PORT, "ibv_qp_attr_mask");
static_assert(v::kSetPath == IBV_QP_AV && v::kSetMtu == IBV_QP_PATH_MTU && v::kSetTimeout == IBV_QP_TIMEOUT && v::kSetRetries == IBV_QP_RETRY_CNT, "ibv_qp_attr_mask");
static_assert(v::kSetNotReadyRetries == IBV_QP_RNR_RETRY && v::kSetReceivePacket == IBV_QP_RQ_PSN && v::kSetReads == IBV_QP_MAX_QP_RD_ATOMIC, "ibv_qp_attr_mask");
static_assert(v::kSetNotReadyDelay == IBV_QP_MIN_RNR_TIMER && v::kSetSendPacket == IBV_QP_SQ_PSN && v::kSetIncomingReads == IBV_QP_MAX_DEST_RD_ATOMIC && v::kSetPeer == IBV_QP_DEST_QPN,
              "ibv_qp_attr_mask");
static_assert(v::kWrite == IBV_WR_RDMA_WRITE && v::kWriteWithImmediate == IBV_WR_RDMA_WRITE_WITH_IMM, "ibv_wr_opcode");
static_assert(v::kSignaled == IBV_SEND_SIGNALED && v::kInline == IBV_SEND_INLINE, "ibv_send_flags");
static_assert(v::kSuccess == IBV_WC_SUCCESS && v::kFlushed == IBV_WC_WR_FLUSH_ERR && v::kRemoteAccessError == IBV_WC_REM_ACCESS_ERR && v::kRetriesExceeded == IBV_WC_RETRY_EXC_ERR,
              "ibv_wc_status");

int main() {}
