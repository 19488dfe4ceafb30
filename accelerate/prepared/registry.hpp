// SPDX-License-Identifier: Apache-2.0
// Registry of the models, optimizers, loaders and schedules that an Accelerator prepared.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accelerate::prepared {

enum class Kind { model, optimizer, loader, scheduler };

[[nodiscard]] std::string_view prepared_kind_name(Kind kind);

/// Reads and sets the state of an object through any of its live handles.
template <typename State>
class StateAccess {
 public:
  /// \param handle  Keeps the object that `get` and `set` use. They are called only while it is alive.
  void add(std::weak_ptr<void> handle, std::function<State()> get, std::function<void(const State&)> set) {
    std::erase_if(accessors_, [](const StateAccessor& way) { return way.handle.expired(); });
    accessors_.push_back({std::move(handle), std::move(get), std::move(set)});
  }
  /// Returns the state through the newest live handle. Unset if no handle is alive.
  [[nodiscard]] std::optional<State> get() const {
    for (const StateAccessor& way : accessors_ | std::views::reverse) {
      if (const auto held = way.handle.lock()) return way.get();
    }
    return std::nullopt;
  }
  /// Sets the state through every live handle, because each may have its own position. Returns false if no handle is
  /// alive.
  bool set(const State& state) const {
    bool any = false;
    for (const StateAccessor& way : accessors_) {
      const auto held = way.handle.lock();
      if (!held) continue;
      way.set(state);
      any = true;
    }
    return any;
  }

 private:
  struct StateAccessor {
    std::weak_ptr<void> handle;
    std::function<State()> get;
    std::function<void(const State&)> set;
  };
  std::vector<StateAccessor> accessors_;
};

/// One object that was given to prepare(). The core of each kind derives from it.
///
/// A model stays in the registry until it is removed, because its gradients are reduced even if it runs without a
/// handle. An object that prepare() owns or shares stays, too. An object that is only referenced is removed with its
/// last handle, because it may be destroyed without notice. A loader is also removed with its last handle, because
/// nothing can iterate over it afterwards.
class Entry {
 public:
  /// \param identity  Address that identifies the object among all live objects.
  Entry(Kind kind, const void* identity) : kind_(kind), identity_(identity) {}
  virtual ~Entry() = default;
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  [[nodiscard]] Kind kind() const { return kind_; }
  /// Index among the entries of the same kind, from 0, in the order of preparation.
  [[nodiscard]] int64_t index() const { return index_; }
  /// Returns "optimizer", then "optimizer_1" and so on. Names are equal on all ranks and in all runs that prepare
  /// the same objects in this order.
  [[nodiscard]] std::string name() const;
  [[nodiscard]] const void* identity() const { return identity_; }

  /// Adds a handle of the object.
  /// \param owned  The registry owns the object, too.
  /// \returns The pointer that the handle keeps. All handles of an object share it.
  std::shared_ptr<void> add_handle(std::shared_ptr<void> object, bool owned);
  [[nodiscard]] bool gone() const { return kind_ != Kind::model && !owned_ && handles_.expired(); }

  /// Called after the registry removed the entry. Handles may still exist.
  virtual void retire() {}

 private:
  friend class Registry;

  Kind kind_;
  const void* identity_;
  int64_t index_ = 0;
  std::shared_ptr<void> owned_;
  std::weak_ptr<void> handles_;
};

/// Entries in the order of preparation, which is the same on every rank.
class Registry {
 public:
  /// Changes whenever an entry is added or removed. Results of a lookup are valid while it stays the same.
  [[nodiscard]] int64_t version() const { return version_; }

  [[nodiscard]] const std::vector<std::shared_ptr<Entry>>& entries();
  /// Returns the entries of one kind, as in `for (ModelCore& model : registry.of<ModelCore>())`.
  template <typename Core>
  [[nodiscard]] auto of() {
    return entries() | std::views::filter([](const auto& entry) { return entry->kind() == Core::kEntryKind; }) |
           std::views::transform([](const auto& entry) -> Core& { return static_cast<Core&>(*entry); });
  }
  /// Returns the same entries with shared ownership.
  template <typename Core>
  [[nodiscard]] std::vector<std::shared_ptr<Core>> list() {
    std::vector<std::shared_ptr<Core>> found;
    for (const auto& entry : entries()) {
      if (entry->kind() == Core::kEntryKind) found.push_back(std::static_pointer_cast<Core>(entry));
    }
    return found;
  }
  /// Returns the first entry of its kind for which `which` returns true, or null.
  template <typename Core, typename Which>
  [[nodiscard]] std::shared_ptr<Core> find(const Which& which) {
    for (const auto& core : list<Core>()) {
      if (which(*core)) return core;
    }
    return nullptr;
  }

  void add(std::shared_ptr<Entry> entry) { insert(entries_.size(), std::move(entry)); }
  /// Removes the entry and retires it.
  /// \returns Its position, at which insert() can place a successor.
  size_t remove(const Entry& entry);
  void insert(size_t place, std::shared_ptr<Entry> entry);
  /// Removes and retires all entries.
  void clear();

 private:
  void changed();

  std::vector<std::shared_ptr<Entry>> entries_;
  int64_t version_ = 0;
};

}  // namespace accelerate::prepared
