// SPDX-License-Identifier: Apache-2.0
// The open passes over prepared loaders, and the loop that accumulate() and gather_for_metrics() follow.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "accelerate/prepared/batch_record.hpp"
#include "accelerate/state/batch_info.hpp"

namespace accelerate::prepared {

class ActiveLoaderScope;

/// The open passes over the loaders of one Accelerator, in the order in which they began.
///
/// A pass is either a loop (a `for`), or is advanced by hand beside a loop, for example an iterator of a second loader
/// that is begun again whenever it ends. Loops are nested, and the innermost loop is active, so that an evaluation loop
/// within the training loop counts its own samples. A pass that is advanced by hand is active only if no loop is open;
/// the one that began first then counts. begin() is the same call for both, so a pass counts as advanced by hand if
///   - another loop enters its body while this pass is between two batches: a loop is then within its own body, or
///   - the pass began within the body of a loop and is still open when that loop enters its next body, or
///   - its iterator was assigned to another iterator (`it = loader.begin()`), or
///   - its loader had such a pass since the outermost loop began, or
///   - the pass began within the body of a loop and was dereferenced before it was compared with end(). Later passes
///     over that loader may be loops.
/// One case is not recognised: an iterator that begins within a body, and is compared with end() there before its first
/// use, counts as nested until the next body of that loop.
class ActiveLoaders {
 public:
  /// Position of the active loop; null if no pass is open.
  [[nodiscard]] const state::BatchInfo* active() const;

  /// Position of the latest open pass over that loader, or {-1, false, -1} if no pass is open.
  [[nodiscard]] state::BatchInfo of(const void* loader) const;

  /// Returns the positions of the batches to which the tensors of one value belong.
  ///
  /// A tensor of a batch, or a view of one, belongs to that batch: the latest of its pass, or the one before it. Any
  /// other tensor belongs to the same batch as the tensors beside it if these are all of one batch, otherwise to the
  /// active loop.
  /// \returns One position per tensor; empty if no pass is open.
  [[nodiscard]] std::vector<state::BatchInfo> positions_of(const std::vector<at::Tensor>& tensors) const;

 private:
  friend class ActiveLoaderScope;
  [[nodiscard]] std::optional<state::BatchInfo> position_of_batch(const at::Tensor& tensor) const;

  std::vector<ActiveLoaderScope*> loops_;
  // Loaders with a pass that was advanced by hand. Their later passes within the same outer loop are, too.
  std::unordered_set<const void*> by_hand_loaders_;
  int64_t events_ = 0;
};

/// One pass on the list, from its begin() until its iterator is destroyed. Passes end in any order.
class ActiveLoaderScope {
 public:
  /// \param list, info  Must outlive this object.
  ActiveLoaderScope(ActiveLoaders& list, const void* loader, const state::BatchInfo& info);
  ~ActiveLoaderScope();
  ActiveLoaderScope(const ActiveLoaderScope&) = delete;
  ActiveLoaderScope& operator=(const ActiveLoaderScope&) = delete;

  /// The iterator is dereferenced: the body of the loop begins or runs.
  void dereference() {
    if (!in_body_) enter_body();
  }
  /// The iterator is compared with end(), as a `for` does before each body.
  void compare_with_end() { compared_ = true; }
  /// The iterator is incremented.
  void step();
  /// The pass returned a batch with these tensors.
  void record_batch(const std::vector<at::Tensor>& tensors);
  /// The pass has no further batch. Its iterator may live on.
  void end();
  [[nodiscard]] bool is_open() const { return !ended_; }
  /// The iterator was assigned to one that had a pass already.
  void advance_by_hand() {
    by_hand_ = true;
    list_.by_hand_loaders_.insert(loader_);
  }

 private:
  friend class ActiveLoaders;
  void enter_body();
  void release_passes_beside();
  [[nodiscard]] bool is_by_hand() const { return by_hand_ || beside_ != nullptr; }

  ActiveLoaders& list_;
  const void* loader_;
  const state::BatchInfo* info_;
  BatchRecord batch_{}, batch_before_{};
  int64_t began_, stepped_;  // event numbers of begin() and of the last step
  bool in_body_ = false;     // dereferenced since the last step
  bool ended_ = false;
  bool by_hand_ = false;                       // permanent
  bool compared_ = false;                      // with end(), since begin()
  bool in_outer_body_;                         // began within the body of a loop
  const ActiveLoaderScope* beside_ = nullptr;  // the loop with a body that began between two batches of this pass
};

}  // namespace accelerate::prepared
