// SPDX-License-Identifier: Apache-2.0
// Private: parameters that have memory on a device only while operators use their unit.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/offload/unit_copy.hpp"
#include "accelerate/units/gather_on_use.hpp"
#include "accelerate/units/unit_plan.hpp"

namespace accelerate::offload {

/// A parameter or buffer, and where its values are.
struct OffloadedParameter {
  std::string name{};
  at::Tensor parameter{};
  WeightSource source{};
  bool is_buffer = false;
};

/// The units of one model, which are copied to one device. It is owned by the memory of the parameters, so it exists
/// as long as one of them. Thread-safe.
class OffloadedUnits : public std::enable_shared_from_this<OffloadedUnits> {
 public:
  /// Takes the memory from the parameters, one unit after the other.
  static void create(std::vector<OffloadedParameter> parameters, c10::Device device, const units::UnitOptions& options,
                     bool prefetch);
  ~OffloadedUnits();
  OffloadedUnits(const OffloadedUnits&) = delete;
  OffloadedUnits& operator=(const OffloadedUnits&) = delete;

 private:
  struct Unit;
  struct Slot;

  /// One parameter of a unit.
  struct Member final : units::GatherOnUse {
    void before_operator(const units::GatheredParameter& used, bool writes) override {
      parent->use(*this, used.name, writes);
    }
    void after_operator() noexcept override { parent->release(*unit); }
    [[nodiscard]] std::optional<c10::Device> execution_device() const override {
      return parent->device_.is_cpu() ? std::nullopt : std::optional(parent->device_);
    }
    [[nodiscard]] bool refuses_writes() const override { return true; }

    OffloadedUnits* parent = nullptr;
    Unit* unit = nullptr;
    std::string name{};
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // the storage owns the units
    size_t offset = 0;                                  // in the memory of the unit
    bool learns = false;
    bool is_buffer = false;

    explicit Member(const c10::Storage& of)
        : storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(of.unsafeGetStorageImpl())) {}
  };

  enum class State { absent, loading, loaded, present };

  struct Slot {
    UnitMemory memory{};
    Unit* unit = nullptr;
  };

  struct Unit {
    size_t index = 0;
    std::vector<std::unique_ptr<Member>> members{};
    std::unique_ptr<UnitContent> content{};
    State state = State::absent;
    Slot* slot = nullptr;
    int64_t users = 0;      // operators that run now
    uint64_t last_use = 0;  // number of the last change of units that used it
    Unit* next = nullptr;   // the unit that was used after this one
    std::exception_ptr error{};
  };

  OffloadedUnits(c10::Device device, bool prefetch) : copies_(device), device_(device), prefetches_(prefetch) {}
  void add_unit(std::vector<OffloadedParameter> parameters);
  void set_memory(const Member& member, void* memory);
  void use(Member& member, const std::string& name, bool writes);
  void release(Unit& unit) noexcept;
  void make_present(Unit& unit, std::unique_lock<std::mutex>& lock);
  void prefetch_after(const Unit& unit);
  /// Returns false if no slot is free now.
  bool start(Unit& unit, bool may_grow);
  [[nodiscard]] Slot* find_slot(bool may_grow);
  void make_absent(Unit& unit);
  void load_units();

  UnitCopies copies_;
  c10::Device device_;
  bool prefetches_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::deque<Unit*> queue_;
  size_t slot_bytes_ = 0;
  Unit* last_ = nullptr;
  uint64_t changes_ = 0;
  uint64_t loads_ = 0;  // completed, failed ones too
  bool ends_ = false;
  std::thread loader_;
};

}  // namespace accelerate::offload
