// SPDX-License-Identifier: Apache-2.0
// What was prepared, in one place: whoever looks for models, optimizers, loaders or schedules of an Accelerator, looks
// here.
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

[[nodiscard]] std::string_view name(Kind kind);

/// Where an object stands, asked and told through whichever of its handles lives.
template <typename State>
class StateAccess {
 public:
  /// handle   keeps the object that get and set use
  void add(std::weak_ptr<void> handle, std::function<State()> get, std::function<void(const State&)> set) {
    std::erase_if(ways_, [](const Way& way) { return way.handle.expired(); });
    ways_.push_back({std::move(handle), std::move(get), std::move(set)});
  }
  /// Unset: it cannot say.
  [[nodiscard]] std::optional<State> get() const {
    for (const Way& way : ways_ | std::views::reverse) {
      if (const auto held = way.handle.lock()) return way.get();
    }
    return std::nullopt;
  }
  /// Of every handle: each may keep a place of its own. False: there is none.
  bool set(const State& state) const {
    bool any = false;
    for (const Way& way : ways_) {
      const auto held = way.handle.lock();
      if (!held) continue;
      way.set(state);
      any = true;
    }
    return any;
  }

 private:
  struct Way {
    std::weak_ptr<void> handle;
    std::function<State()> get;
    std::function<void(const State&)> set;
  };
  std::vector<Way> ways_;
};

/// One object that was given to prepare(); the core of each kind derives from it.
///
/// A model stays until it is forgotten: its gradients are reduced whoever runs it. So does what prepare() owns or
/// shares. An object that is only referenced goes with its last handle, because it may die without a word; so does a
/// loader, because nobody can walk it any more.
class Entry {
 public:
  /// identity   address that tells the object from all others that live
  Entry(Kind kind, const void* identity) : kind_(kind), identity_(identity) {}
  virtual ~Entry() = default;
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  [[nodiscard]] Kind kind() const { return kind_; }
  /// Place among those of its kind, from 0, in the order of preparation.
  [[nodiscard]] int64_t index() const { return index_; }
  /// "optimizer", then "optimizer_1" ...: the same on every rank and in every run that prepares alike.
  [[nodiscard]] std::string name() const;
  [[nodiscard]] const void* identity() const { return identity_; }

  /// One more handle holds the object. owned: so does the registry.
  /// returns   what that handle keeps; all handles of an object count together
  std::shared_ptr<void> add_handle(std::shared_ptr<void> object, bool owned);
  [[nodiscard]] bool gone() const { return kind_ != Kind::model && !owned_ && handles_.expired(); }

  /// The registry has let go of it; handles may live on.
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
  /// Changes whenever an entry comes or goes: what was found here holds as long as it stays the same.
  [[nodiscard]] int64_t version() const { return version_; }

  [[nodiscard]] const std::vector<std::shared_ptr<Entry>>& entries();
  /// Those of one kind: for (ModelCore& model : registry.of<ModelCore>()).
  template <typename Core>
  [[nodiscard]] auto of() {
    return entries() | std::views::filter([](const auto& entry) { return entry->kind() == Core::entry_kind; }) |
           std::views::transform([](const auto& entry) -> Core& { return static_cast<Core&>(*entry); });
  }
  /// The same, kept alive.
  template <typename Core>
  [[nodiscard]] std::vector<std::shared_ptr<Core>> list() {
    std::vector<std::shared_ptr<Core>> found;
    for (const auto& entry : entries()) {
      if (entry->kind() == Core::entry_kind) found.push_back(std::static_pointer_cast<Core>(entry));
    }
    return found;
  }
  /// The first one of its kind that is asked for; null where there is none.
  template <typename Core, typename Which>
  [[nodiscard]] std::shared_ptr<Core> find(const Which& which) {
    for (const auto& core : list<Core>()) {
      if (which(*core)) return core;
    }
    return nullptr;
  }

  void add(std::shared_ptr<Entry> entry) { insert(entries_.size(), std::move(entry)); }
  /// Retires it. returns   its place, for insert() of what follows it
  size_t remove(const Entry& entry);
  void insert(size_t place, std::shared_ptr<Entry> entry);
  /// Retires all.
  void clear();

 private:
  void changed();

  std::vector<std::shared_ptr<Entry>> entries_;
  int64_t version_ = 0;
};

}  // namespace accelerate::prepared
