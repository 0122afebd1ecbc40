// The RDMA device of this process: one port of one adapter.
#pragma once
#include <memory>
#include <string>

#include "rdma/verbs_library.hpp"

namespace kvasir {

class RdmaDevice {
 public:
  /**
   * The device of this process: the first user opens it, the last one closes it. `KVASIR_RDMA_DEVICE`,
   * NAME[:PORT[:GID]], selects it; otherwise it is the first one with an active port. @throws std::runtime_error with
   * the reason if there is none
   */
  static std::shared_ptr<RdmaDevice> open();
  ~RdmaDevice();
  RdmaDevice(const RdmaDevice&) = delete;
  RdmaDevice& operator=(const RdmaDevice&) = delete;

  /** Name and port. */
  std::string name() const { return name_ + " port " + std::to_string(port_); }
  const VerbsLibrary& verbs() const { return verbs_; }
  verbs::Context* context() const { return context_; }
  verbs::ProtectionDomain* domain() const { return domain_; }
  uint8_t port() const { return port_; }
  const verbs::PortAttributes& attributes() const { return attributes_; }
  bool is_ethernet() const { return attributes_.link_layer == verbs::kEthernet; }
  const verbs::Gid& gid() const { return gid_; }
  uint8_t gid_index() const { return gid_index_; }

 private:
  RdmaDevice();
  void select(verbs::Device** devices, int count);
  bool try_open(verbs::Device* device, int port, int gid_index);
  bool has_active_port(int port);
  bool find_gid(int index);
  void close();

  const VerbsLibrary verbs_;
  verbs::Context* context_ = nullptr;
  verbs::ProtectionDomain* domain_ = nullptr;
  verbs::PortAttributes attributes_ = {};
  verbs::Gid gid_ = {};
  std::string name_;
  uint8_t port_ = 1, gid_index_ = 0;
};

}  // namespace kvasir
