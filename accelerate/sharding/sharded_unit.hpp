// SPDX-License-Identifier: Apache-2.0
// Private: one unit of a sharded model: the memory of its parameters and of their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/device/factor.hpp"
#include "accelerate/sharding/part_copies.hpp"
#include "accelerate/sharding/unit_buffers.hpp"
#include "accelerate/units/gather_on_use.hpp"

namespace accelerate::sharding {

class ShardedUnit;

/// Decides which units have memory.
class UnitScheduler {
 public:
  virtual ~UnitScheduler() = default;
  /// Gathers the unit. Returns with unit.users incremented, or throws.
  virtual void use(ShardedUnit& unit, const units::GatheredParameter& parameter, bool writes) = 0;
  virtual void release(ShardedUnit& unit) noexcept = 0;
};

struct UnitMember {
  std::string name{};
  at::Tensor parameter{};
  c10::Storage storage{};  ///< of the parameter when it was divided
  std::shared_ptr<const units::GatheredParameter> gathered{};
  at::Tensor master{};         ///< whole float32 master, until adopt() takes this rank's part
  size_t item = 0;             ///< index of the parameter in the plan
  int64_t offset = 0;          ///< in the flat tensors of the unit, in elements
  bool has_gradient = false;   ///< a backward of this rank reached it since its gradient was zeroed
  bool is_used = false;        ///< the same for any rank, known from the last step on
  bool is_filled = false;      ///< the unit's whole gradient has values of it
  bool has_arrived = false;    ///< in this backward
  bool is_in_forward = false;  ///< an operator used it since the forward began
  int64_t arrivals = 0;        ///< number of gradients so far
  /// Number of the backward before the last step on it; -1 if its gradient was zeroed since.
  int64_t stepped_after = -1;
};

/// Flat tensors of a unit, and the collectives on them. Not thread-safe: its scheduler locks.
class ShardedUnit final : public units::GatherOnUse, public std::enable_shared_from_this<ShardedUnit> {
 public:
  ShardedUnit(int64_t index, std::vector<UnitMember> members, int64_t numel, bool learns);
  ~ShardedUnit() override;

  /// Moves the parameters into a flat tensor.
  /// \param keep  If true, the parameters keep that memory and part() is a view of it; otherwise each rank keeps a copy
  ///              of its part, and operators on the parameters gather.
  /// \param buffers Memory of the whole gradient, and of the whole parameters if they do not keep theirs.
  /// \param copies  If set, this rank's part, its masters and its gradient are in pinned memory of the host. Requires
  ///                that the parameters do not keep their memory.
  void adopt(const comm::Group& group, bool keep, std::weak_ptr<UnitScheduler> scheduler,
             std::shared_ptr<UnitBuffers> buffers, std::shared_ptr<PartCopies> copies = nullptr);

  [[nodiscard]] int64_t index() const { return index_; }
  [[nodiscard]] bool learns() const { return learns_; }
  [[nodiscard]] std::vector<UnitMember>& members() { return members_; }
  [[nodiscard]] const std::vector<UnitMember>& members() const { return members_; }
  /// Values of this rank, [numel / ranks].
  [[nodiscard]] const at::Tensor& part() const { return part_; }
  /// Float32 masters of this rank's values, [numel / ranks]; undefined if part() has all bits.
  [[nodiscard]] const at::Tensor& master() const { return master_; }
  /// Reduced gradient of this rank, [numel / ranks], in the dtype of the masters if there are any; undefined without
  /// one.
  [[nodiscard]] at::Tensor& gradient() { return gradient_; }
  [[nodiscard]] const at::Tensor& gradient() const { return gradient_; }
  [[nodiscard]] bool is_whole() const { return is_whole_; }
  [[nodiscard]] bool is_under_way() const { return whole_.defined() && !is_whole_; }
  [[nodiscard]] bool has_local_gradient() const { return whole_gradient_.defined(); }
  [[nodiscard]] bool is_reducing() const { return incoming_.defined(); }
  /// True while this rank's part of the sum over the shard group is not known.
  [[nodiscard]] bool is_scattering() const { return is_reducing() && whole_gradient_.defined(); }
  /// Returns a member with a parameter that has another storage now, because the module was moved, or null.
  [[nodiscard]] const UnitMember* moved_member() const;
  /// "unit 3 (blocks.2.norm.weight and 5 more)".
  [[nodiscard]] std::string name() const;

  void start_gather(const comm::Group& group);
  /// Waits for the gather. The parameters have memory afterwards.
  void finish_gather();
  /// Takes the memory from the parameters. If an operator wrote to them, this rank keeps its part of the new values.
  void free();
  /// Copies new values of the parameters, which user code wrote, to this rank's part. The unit must be whole.
  void take_over();
  /// Must be called after a step has changed the part and the versions of the parameters.
  void mark_stepped() { seen_versions_ = versions(); }
  /// Sends this rank's part to all ranks, for parameters that keep their memory.
  void exchange_parts(const comm::Group& group);
  /// Gives every parameter memory of its own again. The unit must be whole.
  void restore();

  /// True if an operator used a parameter since the forward began. Only for parameters that are gathered.
  [[nodiscard]] bool is_in_forward() const;

  /// Adds share * gradient of a member to the whole gradient.
  void add_gradient(size_t member, const at::Tensor& gradient, const device::Factor& share);
  /// Returns the whole gradient of a member on this rank, in which the caller may change values.
  [[nodiscard]] at::Tensor local_gradient(size_t member);
  /// Members without a gradient count as zeros.
  void start_reduction(const comm::Group& group);
  /// Waits for the reduction within the shard group, and starts the sum of this rank's part over the replicas.
  void start_replica_reduction(const comm::Group& replicas);
  /// Waits for the reduction and adds this rank's part to gradient().
  void finish_reduction();
  /// Multiplies the gradients of all members.
  void scale_gradients(double factor);
  /// Drops the gradient of one member that is not reduced.
  void zero_local_gradient(size_t member, bool set_to_none);
  /// Drops the gradients that are not reduced. Waits for a reduction without an error.
  void drop_local_gradients() noexcept;
  /// Must be called for each operator that uses a parameter.
  void record_use(size_t member) { members_[member].is_in_forward = true; }
  /// Must be called before the first forward after a backward.
  void begin_forward();
  /// Begins to count the arrivals of a backward. A parameter that no operator of the forward used has no gradient, so
  /// the unit is complete without it.
  void begin_backward();
  /// Counts one arrival. \returns true if the gradients of all members arrived.
  bool count_arrival(size_t member);

  void before_operator(const units::GatheredParameter& parameter, bool writes) override;
  void after_operator() noexcept override;

  int64_t users = 0;                   ///< operators that use the parameters now
  bool is_written = false;             ///< an operator wrote to a parameter since the gather
  bool is_complete = false;            ///< the gradients of all members arrived in this backward
  bool is_passed = false;              ///< its turn in the order of reductions is over in this backward
  bool is_reduced_in_forward = false;  ///< a reduction was started since the forward began

 private:
  [[nodiscard]] at::Tensor own_part_of(const at::Tensor& flat) const;
  [[nodiscard]] at::Tensor view_of(const at::Tensor& flat, const UnitMember& member) const;
  void adopt_masters();
  void update_master();
  [[nodiscard]] int64_t versions() const;
  [[nodiscard]] c10::TensorOptions gradient_options() const;
  void await_gather();
  void allocate_whole_gradient();
  void keep_gradient(at::Tensor arrived);
  void give_memory_to_members();
  void take_memory_from_members();

  int64_t index_;
  std::vector<UnitMember> members_;
  int64_t numel_;
  bool learns_;
  bool keeps_ = false;
  bool is_whole_ = false;
  int64_t rank_ = 0, ranks_ = 1;
  std::weak_ptr<UnitScheduler> scheduler_;
  std::shared_ptr<UnitBuffers> buffers_;
  std::shared_ptr<PartCopies> copies_;
  c10::TensorOptions options_;  // of the parameters
  at::Tensor part_, whole_, master_;
  comm::Pending gathering_, reducing_;
  std::optional<PartCopies::Gather> uploaded_gather_;  // in place of gathering_ with copies_
  at::Tensor whole_gradient_, incoming_, gradient_;
  at::Tensor host_gradient_;  // pinned memory of gradient_, kept from step to step
  size_t awaited_ = 0;
  int64_t seen_versions_ = 0;  // of the parameters when part and masters had their values
};

}  // namespace accelerate::sharding
