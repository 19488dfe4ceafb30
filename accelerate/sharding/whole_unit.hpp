// SPDX-License-Identifier: Apache-2.0
// Private: one unit of parameters that every rank keeps whole, and the all-gather of the parts after a step.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/sharding/use_order.hpp"
#include "accelerate/units/gather_on_use.hpp"

namespace accelerate::sharding {

/// A parameter and its place in the flat tensor of its unit, in elements.
struct PlacedParameter {
  std::string name{};
  at::Tensor parameter{};
  int64_t offset = 0;
};

/// The parameters of a unit share the memory of one flat tensor, of which each rank steps on an equal part. After a
/// step start_exchange() sends this rank's part and returns. The first operator that uses a parameter waits for the
/// parts of the other ranks; on an accelerator its stream waits, not the host. Until then code that reads the memory
/// without an operator throws. Operators may run on several threads and streams.
class WholeUnit final : public units::GatherOnUse, public std::enable_shared_from_this<WholeUnit> {
 public:
  /// \param name   For messages: "unit 3 (blocks.2.norm.weight and 5 more)".
  /// \param group  The ranks that divide the unit.
  WholeUnit(int64_t index, std::string name, comm::Group group, std::shared_ptr<UseOrder> order);
  /// Waits for an exchange. The parameters keep the memory of the flat tensor.
  ~WholeUnit() override;

  /// Gives the parameters the memory of `values`, which has their values. Call once.
  /// \param values  [numel], a multiple of the ranks.
  void adopt(at::Tensor values, std::vector<PlacedParameter> parameters);
  /// Takes the values of parameters that have another storage now, because set_data() replaced it.
  void adopt_replaced_storages();
  /// Makes the parameters independent of this object. They keep the memory of the flat tensor.
  void release();

  /// Values of this rank, [numel / ranks], a view of the parameters' memory.
  [[nodiscard]] at::Tensor part() const;

  /// Sends this rank's part. All ranks must start the exchanges of their units in one order. Collective.
  void start_exchange();
  /// Waits for the exchange, if there is one. Thread-safe.
  /// \throws Error (peer) that names the unit, also in later calls.
  void finish_exchange();

  /// Must be called after a step was captured as a graph: each replay exchanges the parts and waits by itself.
  void forget_exchange();

  void before_operator(const units::GatheredParameter& parameter, bool writes) override;
  void after_operator() noexcept override {}

 private:
  struct Member {
    PlacedParameter placed{};
    int64_t numel = 0;
    c10::Storage storage{};
    std::shared_ptr<const units::GatheredParameter> gathered{};
  };

  void share_memory(Member& member);
  void start_all_gather();
  void end_all_gather();
  void end_exchange();
  void make_stream_wait();

  int64_t index_;
  std::string name_;
  comm::Group group_;
  std::shared_ptr<UseOrder> order_;
  std::vector<Member> members_;
  at::Tensor values_;
  bool has_aliases_ = false;  // other tensors share the memory of parameters

  std::atomic<bool> is_pending_ = false;
  std::mutex mutex_;  // of the members below
  at::Tensor sent_;
  std::optional<c10::Stream> sent_stream_;  // of the memory of `sent_`, on an accelerator
  comm::Pending pending_;
  std::exception_ptr failure_;
  std::optional<c10::Event> arrived_;  // on an accelerator: recorded by the first stream that waited
  std::vector<c10::Stream> waited_;    // streams that waited for it
};

}  // namespace accelerate::sharding
