// SPDX-License-Identifier: Apache-2.0
// The stand-in as a backend of accelerate::comm: one table row, like any vendor's backend.
#include "accelerate/comm/core/connection.hpp"

#include "accelerate/comm/core/backend_table.hpp"
#include "tests/stand_in/backend.hpp"
#include "tests/stand_in/install.hpp"
#include "tests/stand_in/stand_in.hpp"

namespace stand_in {
namespace {

using accelerate::comm::BackendRow;
using accelerate::comm::Connection;
using accelerate::comm::ConnectionContext;
using accelerate::comm::PeerLost;
using accelerate::comm::Subgroup;

class DeviceConnection final : public Connection {
 public:
  /// Parameters for creating another connection.
  struct Origin {
    c10::intrusive_ptr<c10d::Store> store;
    std::chrono::milliseconds timeout;
    c10::Device device;
  };

  DeviceConnection(Origin origin, const std::string& group, int64_t rank, int64_t size)
      : DeviceConnection(c10::make_intrusive<Backend>(*origin.store, group, static_cast<int>(rank),
                                                      static_cast<int>(size), origin.device, origin.timeout),
                         origin) {}

  /// As with NCCL: waits for pending operations unless the connection was aborted.
  ~DeviceConnection() override {
    try {
      backend_->drain();
    } catch (const std::exception&) {  // destructors never throw
    }
  }

  std::shared_ptr<Connection> split(const Subgroup& part) override {
    return std::make_shared<DeviceConnection>(origin_, part.name, part.rank, static_cast<int64_t>(part.ranks.size()));
  }
  void abort_operations() noexcept override { backend_->give_up("a rank gave up"); }
  void check() override {
    if (const auto failure = backend_->failure())
      throw PeerLost("an earlier operation on the device failed: " + *failure);
  }

 private:
  DeviceConnection(const c10::intrusive_ptr<Backend>& ours, Origin origin)
      // CUSTOM is used by ranks as threads.
      : Connection("standin", c10d::ProcessGroup::BackendType::XCCL, ours),
        backend_(ours),
        origin_(std::move(origin)) {}

  c10::intrusive_ptr<Backend> backend_;
  Origin origin_;
};

std::shared_ptr<Connection> connect(const ConnectionContext& context) {
  return std::make_shared<DeviceConnection>(
      DeviceConnection::Origin{context.store, context.options.timeout, *context.options.device}, context.name,
      context.process.rank, context.process.world_size);
}

}  // namespace

void install_backend() {
  static constexpr BackendRow row{
      .name = "standin", .device = kType, .connect = connect, .missing = "", .uses_store = true};
  accelerate::comm::add_backend(row);
}

}  // namespace stand_in
