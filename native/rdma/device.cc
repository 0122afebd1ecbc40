// Selects a device with an active port and a usable GID.
#include "rdma/device.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <stdexcept>

namespace kvasir {
namespace {

/** Ports that are tried without a selection. */
constexpr int kPortsMost = 2;

/** NAME[:PORT[:GID]]; 0 and -1 are any port and any GID. */
struct Selection {
  std::string name;
  int port = 0, gid = -1;

  explicit Selection(const char* text) {
    if (text == nullptr) return;
    const std::string all = text;
    const size_t first = all.find(':'), second = first == std::string::npos ? first : all.find(':', first + 1);
    name = all.substr(0, first);
    if (first != std::string::npos) port = number(all.substr(first + 1, second == std::string::npos ? second : second - first - 1), 1);
    if (second != std::string::npos) gid = number(all.substr(second + 1), 0);
  }

 private:
  static int number(const std::string& text, int least) {
    const bool valid = !text.empty() && text.size() <= 3 && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    const int value = valid ? std::stoi(text) : -1;
    if (value < least || value > 255) throw std::runtime_error("KVASIR_RDMA_DEVICE must be NAME[:PORT[:GID]]");
    return value;
  }
};

bool is_zero(const verbs::Gid& gid) {
  return std::all_of(std::begin(gid.raw), std::end(gid.raw), [](uint8_t byte) { return byte == 0; });
}

/** An IPv4 address in an IPv6 address. */
bool is_ipv4(const verbs::Gid& gid) {
  constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix, sizeof kPrefix) == 0;
}

/** True for RoCE version 2, whose packets are routed as UDP. The kernel names the version in sysfs only. */
bool is_routable(const std::string& device, int port, int index) {
  std::ifstream file("/sys/class/infiniband/" + device + "/ports/" + std::to_string(port) + "/gid_attrs/types/" + std::to_string(index));
  std::string type;
  return std::getline(file, type) && type.find("v2") != std::string::npos;
}

}  // namespace

std::shared_ptr<RdmaDevice> RdmaDevice::open() {
  static std::mutex mutex;
  static std::weak_ptr<RdmaDevice> known;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<RdmaDevice> device = known.lock();
  if (device != nullptr) return device;
  device.reset(new RdmaDevice());
  known = device;
  return device;
}

RdmaDevice::RdmaDevice() : verbs_(VerbsLibrary::load()) {
  int count = 0;
  verbs::Device** devices = verbs_.get_device_list(&count);
  if (devices == nullptr) throw std::runtime_error(std::string("this machine has no RDMA devices: ") + std::strerror(errno));
  try {
    select(devices, count);
  } catch (...) {
    verbs_.free_device_list(devices);
    throw;
  }
  verbs_.free_device_list(devices);
}

RdmaDevice::~RdmaDevice() { close(); }

void RdmaDevice::select(verbs::Device** devices, int count) {
  const Selection selection(std::getenv("KVASIR_RDMA_DEVICE"));
  for (int i = 0; i < count; i++) {
    if (!selection.name.empty() && selection.name != verbs_.get_device_name(devices[i])) continue;
    if (try_open(devices[i], selection.port, selection.gid)) return;
    close();
  }
  const std::string named = selection.name.empty() ? "" : " named " + selection.name;
  throw std::runtime_error("this machine has no RDMA device" + named + " with an active port");
}

bool RdmaDevice::try_open(verbs::Device* device, int port, int gid_index) {
  name_ = verbs_.get_device_name(device);
  context_ = verbs_.open_device(device);
  if (context_ == nullptr) return false;
  const bool active = port > 0 ? has_active_port(port) : has_active_port(1) || has_active_port(kPortsMost);
  if (!active || !find_gid(gid_index)) return false;
  domain_ = verbs_.alloc_pd(context_);
  return domain_ != nullptr;
}

bool RdmaDevice::has_active_port(int port) {
  port_ = static_cast<uint8_t>(port);
  attributes_ = {};
  return verbs_.query_port(context_, port_, &attributes_) == 0 && attributes_.state == verbs::kPortActive;
}

/** Ethernet: prefers a routable IPv4 address, then a routable one. InfiniBand: the first GID. */
bool RdmaDevice::find_gid(int index) {
  int best = -1;
  for (int i = index < 0 ? 0 : index; i < (index < 0 ? std::min(attributes_.gids, 256) : index + 1); i++) {
    verbs::Gid gid;
    if (verbs_.query_gid(context_, port_, i, &gid) != 0 || is_zero(gid)) continue;
    const int rank = is_ethernet() ? 2 * is_routable(name_, port_, i) + is_ipv4(gid) : 0;
    if (rank <= best) continue;
    best = rank;
    gid_ = gid;
    gid_index_ = static_cast<uint8_t>(i);
  }
  return best >= 0 || !is_ethernet();
}

void RdmaDevice::close() {
  if (domain_ != nullptr) verbs_.dealloc_pd(domain_);
  if (context_ != nullptr) verbs_.close_device(context_);
  domain_ = nullptr;
  context_ = nullptr;
}

}  // namespace kvasir
